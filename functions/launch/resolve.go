package launch

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"sync"

	"github.com/google/uuid"
	"golang.org/x/sync/errgroup"

	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/domain"
)

// resolved is what one server is made of, with its names looked up.
type resolved struct {
	spec     domain.LaunchSpec
	flavor   domain.Flavor
	image    domain.Image
	networks []ref // by id
}

// lookup is what names are looked up in. It is read once for all servers of an order.
type lookup struct {
	flavors  []domain.Flavor
	images   map[string][]domain.Image // by what the request calls them
	networks []domain.Network
}

// resolve looks up every name of the request, and gives what is wrong with any of them. An unknown name is Invalid, one
// that is not unique a Conflict, sizes that no flavor has are Unprocessable; all name the field and what is allowed.
func resolve(ctx context.Context, cloud session, w wish) ([]resolved, []error) {
	l, err := look(ctx, cloud, w)
	if err != nil {
		return nil, []error{err}
	}
	out := make([]resolved, len(w.items))
	var errs []error
	for n, i := range w.items {
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

// look reads flavors, images and networks at the same time.
func look(ctx context.Context, cloud session, w wish) (lookup, error) {
	l := lookup{images: map[string][]domain.Image{}}
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(parallel)
	group.Go(func() (err error) {
		l.flavors, err = cloud.Flavors(ctx)
		return err
	})
	group.Go(func() (err error) {
		if slices.ContainsFunc(w.items, func(i item) bool { return len(i.networks) == 0 }) {
			l.networks, err = cloud.Networks(ctx) // which tells the external ones apart
		} else {
			l.networks, err = cloud.NetworkNames(ctx)
		}
		return err
	})
	var mu sync.Mutex
	for _, name := range w.imageNames() {
		group.Go(func() error {
			found, err := findImages(ctx, cloud, name)
			mu.Lock()
			defer mu.Unlock()
			l.images[name] = found
			return err
		})
	}
	return l, group.Wait()
}

func (w wish) imageNames() []string {
	names := make([]string, len(w.items))
	for n, i := range w.items {
		names[n] = i.image.value
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// resolve looks up the names of one server.
func (l lookup) resolve(i item) (resolved, []error) {
	out := resolved{spec: i.spec}
	var errs []error
	var err error
	if out.image, err = l.image(i.image); err != nil {
		errs = append(errs, err)
	}
	if out.flavor, err = l.flavor(i, out.image); err != nil {
		errs = append(errs, err)
	}
	if out.networks, err = l.network(i.networks); err != nil {
		errs = append(errs, err)
	}
	out.spec.FlavorID, out.spec.ImageID = out.flavor.ID, out.image.ID
	out.spec.VCPUs, out.spec.RAMMB = out.flavor.VCPUs, out.flavor.RAMMB
	for _, n := range out.networks {
		out.spec.NetworkIDs = append(out.spec.NetworkIDs, n.value)
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

// named is what can be referred to by id or by name.
type named struct{ id, name string }

// pick finds the index of the thing that ref means: the one with that id, else the only one of that name.
func pick(field, what, ref string, things []named) (int, error) {
	if i := slices.IndexFunc(things, func(t named) bool { return t.id == ref }); i >= 0 {
		return i, nil
	}
	index, ids, names := -1, []string{}, []string{}
	for i, t := range things {
		names = append(names, t.name)
		if t.name == ref {
			index, ids = i, append(ids, t.id)
		}
	}
	switch len(ids) {
	case 0:
		return -1, apperr.InvalidField(field, fmt.Sprintf("there is no %s %q", what, ref), some(names)...)
	case 1:
		return index, nil
	}
	err := apperr.InvalidField(field, fmt.Sprintf("%d %ss are named %q: give an id", len(ids), what, ref), ids...)
	err.Code = apperr.Conflict
	return -1, err
}

// some bounds a list that is shown in an error.
func some(names []string) []string {
	slices.Sort(names)
	names = slices.Compact(names)
	return names[:min(len(names), 50)]
}

func (l lookup) flavor(i item, image domain.Image) (domain.Flavor, error) {
	if i.min != nil {
		return l.smallest(i.fields["min"], *i.min, image)
	}
	things := make([]named, len(l.flavors))
	for n, f := range l.flavors {
		things[n] = named{f.ID, f.Name}
	}
	n, err := pick(i.flavor.field, "flavor", i.flavor.value, things)
	if err != nil {
		return domain.Flavor{}, err
	}
	return l.flavors[n], nil
}

// smallest is the flavor with the least memory, then vCPUs, then disk that has what the request and the image need. One
// without a disk does not count: Nova's policy keeps it for servers that boot from a volume.
func (l lookup) smallest(field string, least size, image domain.Image) (domain.Flavor, error) {
	fitting := slices.DeleteFunc(slices.Clone(l.flavors), func(f domain.Flavor) bool {
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

// findImages takes an id first, because a community image can be used by id without being in any list. Of
// several images of a name those that are not active do not count while one is: retired images often keep it.
func findImages(ctx context.Context, cloud session, name string) ([]domain.Image, error) {
	if uuid.Validate(name) == nil {
		image, err := cloud.Image(ctx, name)
		if err == nil || apperr.CodeOf(err) != apperr.NotFound {
			return []domain.Image{image}, err
		}
	}
	images, err := cloud.Images(ctx, name)
	if err != nil {
		return nil, err
	}
	images = slices.DeleteFunc(images, func(i domain.Image) bool { return i.Name != name })
	if slices.ContainsFunc(images, isActive) {
		images = slices.DeleteFunc(images, func(i domain.Image) bool { return !isActive(i) })
	}
	return images, nil
}

func isActive(i domain.Image) bool { return i.Status == "active" }

func (l lookup) image(r ref) (domain.Image, error) {
	images := l.images[r.value]
	if uuid.Validate(r.value) == nil && len(images) == 1 {
		return images[0], nil // however the id is written
	}
	things := make([]named, len(images))
	for i, image := range images {
		things[i] = named{image.ID, image.Name}
	}
	i, err := pick(r.field, "image", r.value, things)
	if err != nil {
		return domain.Image{}, err
	}
	return images[i], nil
}

// network looks up the networks asked for; when none is, the only one that the project can boot on.
func (l lookup) network(refs []ref) ([]ref, error) {
	if len(refs) == 0 {
		return onlyNetwork(l.networks)
	}
	things := make([]named, len(l.networks))
	for i, n := range l.networks {
		things[i] = named{n.ID, n.Name}
	}
	out := make([]ref, len(refs))
	for k, r := range refs {
		i, err := pick(r.field, "network", r.value, things)
		if err != nil {
			return nil, err
		}
		out[k] = ref{r.field, l.networks[i].ID}
	}
	return out, nil
}

func onlyNetwork(networks []domain.Network) ([]ref, error) {
	usable := slices.DeleteFunc(slices.Clone(networks), func(n domain.Network) bool { return n.External })
	if len(usable) == 1 {
		return []ref{{"networks", usable[0].ID}}, nil
	}
	names := make([]string, len(usable))
	for i, n := range usable {
		names[i] = n.Name
	}
	if len(usable) == 0 {
		return nil, apperr.InvalidField("networks", "the project has no network to launch on")
	}
	err := apperr.InvalidField("networks", "must be given, because the project has several", some(names)...)
	err.Code = apperr.Conflict
	return nil, err
}
