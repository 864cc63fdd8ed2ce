package openstack

import (
	"context"

	"github.com/gophercloud/gophercloud/v2"
	"github.com/gophercloud/gophercloud/v2/openstack/compute/v2/availabilityzones"
	"github.com/gophercloud/gophercloud/v2/openstack/compute/v2/flavors"
	"github.com/gophercloud/gophercloud/v2/openstack/compute/v2/keypairs"
	"github.com/gophercloud/gophercloud/v2/openstack/compute/v2/limits"

	"github.com/cloudfn/cloudfn/shared/domain"
)

// Flavors lists every flavor that the project may use: the public ones and those it has access to.
func (s *Session) Flavors(ctx context.Context) ([]domain.Flavor, error) {
	nova, err := s.compute(ctx, computeBase)
	if err != nil {
		return nil, err
	}
	list := flavors.ListDetail(nova, flavors.ListOpts{})
	return listAll(ctx, list, "nova", flavors.ExtractFlavors, func(f flavors.Flavor) domain.Flavor {
		return domain.Flavor{ID: f.ID, Name: f.Name, VCPUs: f.VCPUs, RAMMB: f.RAM, DiskGB: f.Disk, Public: f.IsPublic}
	})
}

// KeyPairs lists the caller's SSH keys.
func (s *Session) KeyPairs(ctx context.Context) ([]domain.KeyPair, error) {
	nova, err := s.compute(ctx, computeBase)
	if err != nil {
		return nil, err
	}
	return listAll(ctx, keypairs.List(nova, keypairs.ListOpts{}), "nova", keypairs.ExtractKeyPairs,
		func(k keypairs.KeyPair) domain.KeyPair {
			return domain.KeyPair{Name: k.Name, Fingerprint: k.Fingerprint, Type: "ssh"} // Nova shows x509 from 2.2 on
		})
}

// Zones lists the availability zones of compute.
func (s *Session) Zones(ctx context.Context) ([]domain.Zone, error) {
	nova, err := s.compute(ctx, computeBase)
	if err != nil {
		return nil, err
	}
	type zone = availabilityzones.AvailabilityZone
	return listAll(ctx, availabilityzones.List(nova), "nova", availabilityzones.ExtractAvailabilityZones,
		func(z zone) domain.Zone {
			return domain.Zone{Name: z.ZoneName, Available: z.ZoneState.Available}
		})
}

// Quota is what the project may use of compute, and uses.
func (s *Session) Quota(ctx context.Context) (domain.Quota, error) {
	nova, err := s.compute(ctx, computeBase)
	if err != nil {
		return domain.Quota{}, err
	}
	found, err := limits.Get(ctx, nova, nil).Extract()
	if err != nil {
		return domain.Quota{}, classify("nova", err)
	}
	a := found.Absolute
	return domain.Quota{
		Instances: domain.QuotaItem{Max: a.MaxTotalInstances, Used: a.TotalInstancesUsed},
		VCPUs:     domain.QuotaItem{Max: a.MaxTotalCores, Used: a.TotalCoresUsed},
		RAMMB:     domain.QuotaItem{Max: a.MaxTotalRAMSize, Used: a.TotalRAMUsed},
		KeyPairs:  a.MaxTotalKeypairs,
	}, nil
}

// ImportKeyPair stores the public half of an SSH key for the caller. It is a Conflict when the caller has a key pair of
// that name.
func (s *Session) ImportKeyPair(ctx context.Context, name, publicKey string) (domain.KeyPair, error) {
	nova, err := s.compute(ctx, computeBase)
	if err != nil {
		return domain.KeyPair{}, err
	}
	made, err := keypairs.Create(ctx, nova, keypairs.CreateOpts{Name: name, PublicKey: publicKey}).Extract()
	if err != nil {
		return domain.KeyPair{}, classify("nova", err)
	}
	return domain.KeyPair{Name: made.Name, Fingerprint: made.Fingerprint, Type: "ssh"}, nil
}

// DeleteKeyPair deletes a key pair of the caller. It succeeds when the caller has none of that name.
func (s *Session) DeleteKeyPair(ctx context.Context, name string) error {
	return absentIsDone(s.act(ctx, func(nova *gophercloud.ServiceClient) error {
		return keypairs.Delete(ctx, nova, name, keypairs.DeleteOpts{}).ExtractErr()
	}))
}
