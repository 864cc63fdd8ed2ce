package managed

import (
	"context"

	"github.com/cloudfn/cloudfn/shared/domain"
)

// Changes are the differences that a declaration makes of objects that are as the one before declares: what will be
// removed, and how. Names that the cloud does not show now count as other objects.
func (s Session) Changes(ctx context.Context, before, after domain.Managed) []Difference {
	s.lists = &lists{}
	driver, object := s.declaredObject(ctx, before, after)
	if driver == nil {
		return nil
	}
	in := Desired{Resource: after, Spec: after.Spec, Made: domain.Revision{
		Number: before.Revision, Spec: before.Spec, Digest: before.Digest, Labels: before.Labels,
		Schedule: before.Schedule,
	}}
	in.Resource.Revision = before.Revision + 1
	in.names, _ = s.resolve(ctx, in, object) // what is not known is compared as texts
	found := driver.Differences(in, object)
	if t := (&resource{Managed: after}).target(); t.isDeployment && t.surges {
		replaceDisrupting(found)
	}
	return found
}

// declaredObject is an object as it is declared, with its driver, in those fields whose change takes another object. No
// driver means that each change is made in place, or was refused. Names are looked up where the next declaration has
// others.
func (s Session) declaredObject(ctx context.Context, m, next domain.Managed) (Driver, Object) {
	switch m.Kind {
	case domain.KindMachine, domain.KindDeployment, domain.KindPod, domain.KindPodDeployment:
		spec, other := read[domain.MachineSpec](m.Spec), read[domain.MachineSpec](next.Spec)
		server := domain.Server{Zone: m.Schedule.Zone, Image: &domain.ImageRef{ID: spec.Image}}
		server.Flavor.Name = spec.Flavor
		if spec.BootVolume != nil {
			server.Image = nil
		}
		if spec.Flavor != other.Flavor {
			if found, err := findFlavor(ctx, s, spec.Flavor); err == nil {
				server.Flavor.ID, server.Flavor.Name = found.ID, found.Name
			}
		}
		if server.Image != nil && spec.Image != other.Image {
			if id, err := volumeImage(ctx, s, Desired{}, spec.Image); err == nil {
				server.Image.ID = id
			}
		}
		return &MachineDriver{}, Object{Raw: server}
	case domain.KindImage:
		spec := read[domain.ImageSpec](m.Spec)
		image := domain.ImageDetail{ContainerFormat: containerFormat(spec), SHA512: contentSum(spec)}
		image.DiskFormat = spec.DiskFormat
		return ImageDriver{}, Object{Raw: image}
	case domain.KindBalancer:
		spec, other := read[domain.BalancerSpec](m.Spec), read[domain.BalancerSpec](next.Spec)
		b := loadBalancer{domain.LoadBalancer{Address: spec.Address}, spec.Network}
		if spec.Network != other.Network {
			all, _ := s.networks(ctx)
			ids := names{networks: all}.networkIDs([]string{spec.Network, other.Network})
			if ids[0] == ids[1] {
				b.network = other.Network
			}
		}
		return &BalancerDriver{}, Object{Raw: b}
	case domain.KindSecret:
		return SecretDriver{}, Object{}
	}
	return nil, Object{}
}
