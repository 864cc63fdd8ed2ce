package launch

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"sync"

	"golang.org/x/sync/errgroup"

	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/lookup"
	"github.com/cloudfn/cloudfn/shared/orders"
)

// resolved is what one server is made of, with its names looked up.
type resolved struct {
	spec     domain.LaunchSpec
	flavor   domain.Flavor
	image    domain.Image
	networks []lookup.Ref // by id
}

// catalog is what names are looked up in. It is read once for all servers of an order.
type catalog struct {
	flavors  []domain.Flavor
	allowed  []domain.Flavor           // those of them that a size may choose; nil = all
	images   map[string][]domain.Image // by what the request calls them
	networks []domain.Network
}

// resolve looks up every name of the request, and gives what is wrong with any of them. An unknown name is Invalid, one
// that is not unique a Conflict, sizes that no flavor has are Unprocessable; all name the field and what is allowed.
func resolve(ctx context.Context, cloud session, req createOrder) ([]resolved, []error) {
	l, err := readCatalog(ctx, cloud, req)
	if err != nil {
		return nil, []error{err}
	}
	out := make([]resolved, len(req.items))
	var errs []error
	for n, i := range req.items {
		var wrong []error
		out[n], wrong = l.resolve(i)
		errs = append(errs, wrong...)
	}
	return out, distinct(errs)
}

// distinct leaves out what is wrong with a field that several servers share.
func distinct(errs []error) []error {
	var out []error
	for _, err := range errs {
		if !slices.ContainsFunc(out, func(other error) bool { return other.Error() == err.Error() }) {
			out = append(out, err)
		}
	}
	return out
}

// readCatalog reads flavors, images and networks at the same time.
func readCatalog(ctx context.Context, cloud session, req createOrder) (catalog, error) {
	l := catalog{images: map[string][]domain.Image{}}
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(orders.Parallel)
	group.Go(func() (err error) {
		l.flavors, err = cloud.Flavors(ctx)
		return err
	})
	group.Go(func() (err error) {
		if slices.ContainsFunc(req.items, func(i item) bool { return len(i.networks) == 0 }) {
			l.networks, err = cloud.Networks(ctx) // which tells the external ones apart
		} else {
			l.networks, err = cloud.NetworkNames(ctx)
		}
		return err
	})
	var mu sync.Mutex
	for _, name := range req.imageNames() {
		group.Go(func() error {
			found, err := lookup.FindImages(ctx, cloud, name)
			mu.Lock()
			defer mu.Unlock()
			l.images[name] = found
			return err
		})
	}
	return l, group.Wait()
}

func (req createOrder) imageNames() []string {
	names := make([]string, len(req.items))
	for n, i := range req.items {
		names[n] = i.image.Value
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// resolve looks up the names of one server.
func (l catalog) resolve(i item) (resolved, []error) {
	out := resolved{spec: i.spec}
	var errs []error
	var err error
	if out.image, err = lookup.PickImage(l.images[i.image.Value], i.image); err != nil {
		errs = append(errs, err)
	}
	if out.flavor, err = l.flavor(i, out.image); err != nil {
		errs = append(errs, err)
	}
	if out.networks, err = lookup.PickNetworks(l.networks, i.networks); err != nil {
		errs = append(errs, err)
	}
	out.spec.Sized(out.flavor)
	out.spec.ImageID = out.image.ID
	for _, n := range out.networks {
		out.spec.NetworkIDs = append(out.spec.NetworkIDs, n.Value)
	}
	return out, errs
}

// first is the error to answer with: one that is not about a field before one that is.
func first(errs []error) error {
	for _, err := range errs {
		if len(apperr.As(err).Fields) == 0 {
			return err
		}
	}
	if len(errs) == 0 {
		return nil
	}
	all := *apperr.As(errs[0])
	for _, err := range errs[1:] {
		all.Fields = append(slices.Clip(all.Fields), apperr.As(err).Fields...)
	}
	return &all
}

func (l catalog) flavor(i item, image domain.Image) (domain.Flavor, error) {
	if i.min != nil {
		return l.smallest(i.fields["min"], *i.min, image)
	}
	return lookup.PickFlavor(l.flavors, i.flavor)
}

// smallest is the flavor with the least memory, then vCPUs, then disk that has what the request and the image need. One
// without a disk does not count: Nova's policy keeps it for servers that boot from a volume.
func (l catalog) smallest(field string, least size, image domain.Image) (domain.Flavor, error) {
	flavors := l.flavors
	if l.allowed != nil {
		flavors = l.allowed
	}
	fitting := slices.DeleteFunc(slices.Clone(flavors), func(f domain.Flavor) bool {
		return f.VCPUs < least.VCPUs || f.RAMMB < least.RAMMB || f.DiskGB < max(1, least.DiskGB) || len(tooSmall(f, image)) > 0
	})
	if len(fitting) == 0 {
		err := apperr.InvalidField(field, "no flavor that the project may use has as much, and what the image needs")
		err.Code = apperr.Unprocessable
		return domain.Flavor{}, err
	}
	return slices.MinFunc(fitting, func(a, b domain.Flavor) int {
		return cmp.Or(cmp.Compare(a.RAMMB, b.RAMMB), cmp.Compare(a.VCPUs, b.VCPUs), cmp.Compare(a.DiskGB, b.DiskGB), cmp.Compare(a.ID, b.ID))
	}), nil
}

const gib = 1 << 30

// tooSmall says what the flavor has too little of for the image.
func tooSmall(f domain.Flavor, image domain.Image) []string {
	var why []string
	if f.DiskGB > 0 && f.DiskGB < image.MinDiskGB {
		why = append(why, fmt.Sprintf("has a disk of %d GB, the image needs %d GB", f.DiskGB, image.MinDiskGB))
	}
	if size := (image.SizeBytes + gib - 1) / gib; f.DiskGB > 0 && int64(f.DiskGB) < size {
		why = append(why, fmt.Sprintf("has a disk of %d GB, the image alone has %d GB", f.DiskGB, size))
	}
	if f.RAMMB < image.MinRAMMB {
		why = append(why, fmt.Sprintf("has %d MB of memory, the image needs %d MB", f.RAMMB, image.MinRAMMB))
	}
	return why
}
