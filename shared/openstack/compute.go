package openstack

import (
	"context"
	"net/url"

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
	type page struct {
		Flavors []flavors.Flavor `json:"flavors"`
		Links   []link           `json:"flavors_links"`
	}
	found, err := everyPage(ctx, nova, nova.ServiceURL("flavors", "detail"), url.Values{},
		func(p *page) ([]flavors.Flavor, string) { return p.Flavors, linkTo(p.Links) },
		func(f flavors.Flavor) string { return f.ID })
	return convert(found, err, func(f flavors.Flavor) domain.Flavor {
		return domain.Flavor{ID: f.ID, Name: f.Name, VCPUs: f.VCPUs, RAMMB: f.RAM, DiskGB: f.Disk, Public: f.IsPublic}
	})
}

// KeyPairs lists the caller's SSH keys.
func (s *Session) KeyPairs(ctx context.Context) ([]domain.KeyPair, error) {
	nova, err := s.compute(ctx, computeBase)
	if err != nil {
		return nil, err
	}
	type entry struct {
		KeyPair keypairs.KeyPair `json:"keypair"`
	}
	type page struct {
		KeyPairs []entry `json:"keypairs"`
		Links    []link  `json:"keypairs_links"`
	}
	found, err := everyPage(ctx, nova, nova.ServiceURL("os-keypairs"), url.Values{},
		func(p *page) ([]entry, string) { return p.KeyPairs, linkTo(p.Links) },
		func(k entry) string { return k.KeyPair.Name })
	return convert(found, err, func(k entry) domain.KeyPair { // Nova shows x509 from 2.2 on
		return domain.KeyPair{Name: k.KeyPair.Name, Fingerprint: k.KeyPair.Fingerprint, Type: "ssh"}
	})
}

// Zones lists the availability zones of compute.
func (s *Session) Zones(ctx context.Context) ([]domain.Zone, error) {
	type zone = availabilityzones.AvailabilityZone
	var body struct {
		Zones []zone `json:"availabilityZoneInfo"`
	}
	err := s.getNova(ctx, computeBase, &body, "os-availability-zone")
	return convert(body.Zones, err, func(z zone) domain.Zone {
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
