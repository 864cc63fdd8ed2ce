package launch

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"

	"golang.org/x/sync/errgroup"

	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/lookup"
	"github.com/cloudfn/cloudfn/shared/openstack"
	"github.com/cloudfn/cloudfn/shared/orders"
)

// resolved is one server with the ids of its parts.
type resolved struct {
	spec     domain.LaunchSpec
	flavor   domain.Flavor
	image    domain.Image
	networks []lookup.Ref // by id
}

// catalog is where names are looked up. It is read once for all servers of an order.
type catalog struct {
	flavors  []domain.Flavor
	allowed  []domain.Flavor           // for min; nil = all
	reserved []domain.LeasedFlavor     // those of the reservation; nil = without one
	images   map[string][]domain.Image // by id or name, as in the request
	networks []domain.Network
	groups   []domain.ServerGroup
}

// resolve looks up every name of the request, and reports all that fail: an unknown name is Invalid, one that is not
// unique a Conflict, a size that no flavor has Unprocessable. Each error has the field and what is allowed.
func resolve(
	ctx context.Context, cloud *openstack.Session, req createOrder, reserved []domain.LeasedFlavor,
) ([]resolved, []error) {
	l, err := readCatalog(ctx, cloud, req)
	if err != nil {
		return nil, []error{err}
	}
	l.reserve(reserved, domain.ConnectionLimits{})
	out := make([]resolved, len(req.items))
	var errs []error
	for n, i := range req.items {
		var wrong []error
		out[n], wrong = l.resolve(i)
		errs = append(errs, wrong...)
	}
	return out, distinct(errs)
}

// distinct leaves out the repeated errors of a field that several servers share.
func distinct(errs []error) []error {
	var out []error
	for _, err := range errs {
		isSame := func(other error) bool { return other.Error() == err.Error() }
		if !slices.ContainsFunc(out, isSame) {
			out = append(out, err)
		}
	}
	return out
}

// readCatalog reads flavors, images and networks at the same time.
func readCatalog(ctx context.Context, cloud *openstack.Session, req createOrder) (catalog, error) {
	l := catalog{images: map[string][]domain.Image{}}
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(orders.Parallel)
	group.Go(func() (err error) {
		l.flavors, err = cloud.Flavors(ctx)
		return err
	})
	group.Go(func() (err error) {
		if slices.ContainsFunc(req.items, func(i item) bool { return len(i.attachments) == 0 }) {
			l.networks, err = cloud.Networks(ctx) // which shows the external ones
		} else {
			l.networks, err = cloud.NetworkNames(ctx)
		}
		return err
	})
	if slices.ContainsFunc(req.items, func(i item) bool { return i.group.Value != "" }) {
		group.Go(func() (err error) {
			l.groups, err = cloud.ServerGroups(ctx)
			return err
		})
	}
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
	var names []string
	for _, i := range req.items {
		if i.bootsFromImage() {
			names = append(names, i.image.Value)
		}
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// resolve looks up the names of one server.
func (l catalog) resolve(i item) (resolved, []error) {
	out := resolved{spec: i.spec}
	var wrong faults
	var err error
	if i.bootsFromImage() {
		out.image, err = lookup.PickImage(l.images[i.image.Value], i.image)
		wrong.add(err)
		wrong.add(out.spec.BootFrom(out.image, i.fields["boot_volume"]))
	}
	out.flavor, err = l.flavor(i, out.image)
	wrong.add(err)
	if len(i.networks) > 0 || len(i.attachments) == 0 {
		out.networks, err = lookup.PickNetworks(l.networks, i.networks)
		wrong.add(err)
	}
	if i.group.Value != "" {
		group, err := lookup.PickServerGroup(l.groups, i.group)
		wrong.add(err)
		out.spec.ServerGroup = group.ID
	}
	l.sized(&out.spec, out.flavor)
	out.spec.ImageID = out.image.ID
	i.attach(&out.spec, out.networks)
	return out, append(wrong, i.checkGroups(out.spec.Attachments)...)
}

// first is the error of the answer: the first without fields, else one with the fields of all.
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

// flavor is the one that is named, or the smallest that has the least sizes of the request; those that it does not give
// are the named flavor's.
func (l catalog) flavor(i item, image domain.Image) (base domain.Flavor, err error) {
	if i.flavor.Value != "" || i.min == nil {
		if base, err = l.pickFlavor(i.flavor); err != nil || i.min == nil {
			return base, err
		}
	}
	return l.smallest(i, i.min.over(base), image)
}

func (l catalog) pickFlavor(name lookup.Ref) (domain.Flavor, error) {
	if l.reserved != nil {
		return l.pickReserved(name)
	}
	return lookup.PickFlavor(l.flavors, name)
}

// over returns the sizes, where none is given the flavor's.
func (m MinSize) over(f domain.Flavor) MinSize {
	return MinSize{VCPUs: cmp.Or(m.VCPUs, f.VCPUs), RAMMB: cmp.Or(m.RAMMB, f.RAMMB), DiskGB: cmp.Or(m.DiskGB, f.DiskGB)}
}

// smallest is the flavor with the least memory, then vCPUs, then disk that suffices for the request and the image. One
// without a disk does not count: Nova's policy reserves it for servers that boot from a volume.
func (l catalog) smallest(i item, least MinSize, image domain.Image) (domain.Flavor, error) {
	field, leastDisk := i.fields["min"], max(1, least.DiskGB)
	if _, ok := i.spec.BootVolume(); ok {
		leastDisk, image = least.DiskGB, withoutDisk(image)
	}
	flavors := l.flavors
	if l.allowed != nil {
		flavors = l.allowed
	}
	fitting := slices.DeleteFunc(slices.Clone(flavors), func(f domain.Flavor) bool {
		return f.VCPUs < least.VCPUs || f.RAMMB < least.RAMMB || f.DiskGB < leastDisk ||
			len(tooSmall(f, image)) > 0
	})
	if len(fitting) == 0 {
		of := "that the project may use"
		if l.reserved != nil {
			of = "of the reservation"
		}
		err := apperr.InvalidField(field, "no flavor "+of+" has as much, and what the image needs")
		err.Code = apperr.Unprocessable
		return domain.Flavor{}, err
	}
	return slices.MinFunc(fitting, func(a, b domain.Flavor) int {
		return cmp.Or(cmp.Compare(a.RAMMB, b.RAMMB), cmp.Compare(a.VCPUs, b.VCPUs), cmp.Compare(a.DiskGB, b.DiskGB),
			cmp.Compare(a.ID, b.ID))
	}), nil
}

// tooSmall lists what the flavor has too little of for the image.
func tooSmall(f domain.Flavor, image domain.Image) []string {
	var why []string
	if size := image.DiskGB(); f.DiskGB > 0 && f.DiskGB < size {
		why = append(why, fmt.Sprintf("has a disk of %d GB, the image needs %d GB", f.DiskGB, size))
	}
	if f.RAMMB < image.MinRAMMB {
		why = append(why, fmt.Sprintf("has %d MB of memory, the image needs %d MB", f.RAMMB, image.MinRAMMB))
	}
	return why
}

// names are the key pairs, security groups, zones and ports that there are. What no server has is not read.
type names struct {
	keys     []domain.KeyPair
	groups   []domain.SecurityGroup
	zones    []string
	ports    map[string]domain.Port
	withheld map[string]string // why those of a field are unknown
}

// readNames reads what the servers of an order may name.
func readNames(ctx context.Context, cloud *openstack.Session, req createOrder) (out names, err error) {
	group, ctx := errgroup.WithContext(ctx)
	anyItem := func(has func(item) bool) bool { return slices.ContainsFunc(req.items, has) }
	if req.generateKey || anyItem(func(i item) bool { return i.spec.KeyName != "" }) {
		group.Go(func() (err error) {
			out.keys, err = cloud.KeyPairs(ctx)
			return err
		})
	}
	var noGroups, noZones string
	if anyItem(func(i item) bool { return len(i.spec.SecurityGroups) > 0 || i.hasNetworkGroups() }) {
		group.Go(func() (err error) {
			if out.groups, err = cloud.SecurityGroups(ctx); err != nil {
				noGroups, err = whyWithheld(err)
			}
			return err
		})
	}
	if anyItem(func(i item) bool { return i.spec.Zone != "" }) {
		group.Go(func() error {
			zones, err := cloud.Zones(ctx)
			for _, z := range zones {
				if z.Available {
					out.zones = append(out.zones, z.Name)
				}
			}
			if err != nil {
				noZones, err = whyWithheld(err)
			}
			return err
		})
	}
	group.Go(func() (err error) {
		out.ports, err = readPorts(ctx, cloud, req)
		return err
	})
	err = group.Wait()
	out.withheld = map[string]string{"security_groups": noGroups, "availability_zone": noZones}
	return out, err
}

const portReaders = 8

// readPorts reads the ports that the servers are to have. One that does not exist is left out.
func readPorts(ctx context.Context, cloud *openstack.Session, req createOrder) (map[string]domain.Port, error) {
	found, mu := map[string]domain.Port{}, sync.Mutex{}
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(portReaders)
	for _, i := range req.items {
		for _, n := range i.attachments {
			if n.PortID == "" {
				continue
			}
			group.Go(func() error {
				port, err := cloud.Port(ctx, n.PortID)
				if apperr.CodeOf(err) == apperr.NotFound {
					return nil
				}
				mu.Lock()
				defer mu.Unlock()
				found[n.PortID] = port
				return err
			})
		}
	}
	return found, group.Wait()
}

// check lists the names of an order that nothing has. An admin's zone may name a host, too: nova:compute-1.
func (n names) check(req createOrder) []error {
	var wrong faults
	for _, i := range req.items {
		wrong = append(wrong, n.checkPorts(i)...)
		_, unknown := n.securityGroups(i)
		wrong = append(wrong, unknown...)
		_, unknown = n.networkGroups(i)
		wrong = append(wrong, unknown...)
		if name := i.spec.KeyName; name != "" {
			wrong.add(lookup.CheckKeyPair(n.keys, lookup.Ref{Field: i.fields["key_name"], Value: name}))
		}
		zone, _, _ := strings.Cut(i.spec.Zone, ":")
		if zone != "" && n.withheld["availability_zone"] == "" && !slices.Contains(n.zones, zone) {
			wrong.add(lookup.Absent(i.fields["availability_zone"], "availability zone", zone, n.zones))
		}
	}
	return distinct(wrong)
}

// networkGroups are the ids of the security groups of each of a server's networks. Neutron takes no names.
func (n names) networkGroups(i item) (ids [][]string, wrong faults) {
	ids = make([][]string, len(i.attachments))
	why := n.withheld["security_groups"]
	for k, network := range i.attachments {
		if network.SecurityGroups == nil {
			continue
		}
		if why != "" {
			wrong.forbid(true, i.groupsField(k), why)
			continue
		}
		found, unknown := lookup.PickSecurityGroups(n.groups, i.groupsField(k), texts(network.SecurityGroups))
		ids[k], wrong = found, append(wrong, unknown...)
	}
	return ids, wrong
}

// securityGroups are the ids of a server's security groups, or what the request has for them when they are unknown.
func (n names) securityGroups(i item) (ids []string, wrong []error) {
	if n.withheld["security_groups"] != "" {
		return i.spec.SecurityGroups, nil
	}
	return lookup.PickSecurityGroups(n.groups, i.fields["security_groups"], i.spec.SecurityGroups)
}
