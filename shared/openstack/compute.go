package openstack

import (
	"context"
	"maps"
	"net/url"
	"slices"
	"strconv"

	"github.com/gophercloud/gophercloud/v2"
	"github.com/gophercloud/gophercloud/v2/openstack/compute/v2/availabilityzones"
	"github.com/gophercloud/gophercloud/v2/openstack/compute/v2/flavors"
	"github.com/gophercloud/gophercloud/v2/openstack/compute/v2/keypairs"
	"github.com/gophercloud/gophercloud/v2/openstack/compute/v2/limits"
	"github.com/gophercloud/gophercloud/v2/openstack/compute/v2/servergroups"

	"github.com/cloudfn/cloudfn/shared/apperr"
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

// Private flavors, by default the cloud's admins only. Each call succeeds when what it requests is so already.

// FlavorSpecs reads a flavor's extra specs.
func (s *Session) FlavorSpecs(ctx context.Context, id string) (map[string]string, error) {
	var body struct {
		Specs map[string]string `json:"extra_specs"`
	}
	err := s.getNova(ctx, computeBase, &body, "flavors", id, "os-extra_specs")
	return body.Specs, err
}

// PrivateFlavors lists the private flavors of all projects, with their extra specs.
func (s *Session) PrivateFlavors(ctx context.Context) ([]domain.PrivateFlavor, error) {
	nova, err := s.compute(ctx, computeFlavorSpecs)
	if err != nil {
		return nil, err
	}
	type entry struct {
		ID    string            `json:"id"`
		Name  string            `json:"name"`
		Specs map[string]string `json:"extra_specs"`
	}
	type page struct {
		Flavors []entry `json:"flavors"`
		Links   []link  `json:"flavors_links"`
	}
	found, err := everyPage(ctx, nova, nova.ServiceURL("flavors", "detail"), url.Values{"is_public": {"false"}},
		func(p *page) ([]entry, string) { return p.Flavors, linkTo(p.Links) }, func(e entry) string { return e.ID })
	return convert(found, err, func(e entry) domain.PrivateFlavor {
		return domain.PrivateFlavor{ID: e.ID, Name: e.Name, ExtraSpecs: e.Specs}
	})
}

// EnsureFlavor finds or makes a private flavor by its id, with the sizes and extra specs of its base and its own. Until
// it is granted to a project only admins can use it, so it may lack its extra specs for a moment. It is NotFound when
// the base is deleted before the flavor is complete.
func (s *Session) EnsureFlavor(ctx context.Context, f domain.PrivateFlavor) error {
	nova, err := s.compute(ctx, computeBase)
	if err != nil {
		return err
	}
	specs, err := s.FlavorSpecs(ctx, f.ID)
	switch {
	case apperr.CodeOf(err) == apperr.NotFound:
		err = s.createFlavor(ctx, nova, f)
	case err == nil && isSubset(f.ExtraSpecs, specs): // all of them are set by one call
		return nil
	}
	if err != nil {
		return err
	}
	base, err := s.FlavorSpecs(ctx, f.BaseID)
	if err != nil {
		return err
	}
	all := flavors.ExtraSpecsOpts{}
	maps.Copy(all, base)
	maps.Copy(all, f.ExtraSpecs)
	if len(all) == 0 {
		return nil
	}
	return classify("nova", flavors.CreateExtraSpecs(ctx, nova, f.ID, all).Err)
}

// isSubset reports whether all contains everything of some.
func isSubset(some, all map[string]string) bool {
	for key, value := range some {
		if found, ok := all[key]; !ok || found != value {
			return false
		}
	}
	return true
}

// createFlavor makes the copy without extra specs. It is a Conflict when another flavor has the name.
func (s *Session) createFlavor(ctx context.Context, nova *gophercloud.ServiceClient, f domain.PrivateFlavor) error {
	base, err := flavors.Get(ctx, nova, f.BaseID).Extract()
	if err != nil {
		return classify("nova", err)
	}
	isPublic := false
	err = classify("nova", flavors.Create(ctx, nova, flavors.CreateOpts{
		ID: f.ID, Name: f.Name, RAM: base.RAM, VCPUs: base.VCPUs, Disk: &base.Disk, Swap: &base.Swap,
		Ephemeral: &base.Ephemeral, RxTxFactor: base.RxTxFactor, IsPublic: &isPublic,
	}).Err)
	if apperr.CodeOf(err) == apperr.Conflict && flavors.Get(ctx, nova, f.ID).Err == nil { // another request was faster
		return nil
	}
	return err
}

// GrantFlavor lets a project use a private flavor.
func (s *Session) GrantFlavor(ctx context.Context, id, projectID string) error {
	nova, err := s.compute(ctx, computeBase)
	if err != nil {
		return err
	}
	err = classify("nova", flavors.AddAccess(ctx, nova, id, flavors.AddAccessOpts{Tenant: projectID}).Err)
	if apperr.CodeOf(err) == apperr.Conflict { // it may use it already
		return nil
	}
	return err
}

// DeleteFlavor deletes a flavor, with its grants. Servers of it stay as they are.
func (s *Session) DeleteFlavor(ctx context.Context, id string) error {
	nova, err := s.compute(ctx, computeBase)
	if err != nil {
		return err
	}
	return absentIsDone(classify("nova", flavors.Delete(ctx, nova, id).ExtractErr()))
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
		return domain.KeyPair{
			Name: k.KeyPair.Name, Fingerprint: k.KeyPair.Fingerprint, Type: "ssh", PublicKey: k.KeyPair.PublicKey,
		}
	})
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
	return domain.KeyPair{Name: made.Name, Fingerprint: made.Fingerprint, Type: "ssh", PublicKey: publicKey}, nil
}

// DeleteKeyPair deletes a key pair of the caller. It succeeds when the caller has none of that name.
func (s *Session) DeleteKeyPair(ctx context.Context, name string) error {
	return absentIsDone(s.act(ctx, func(nova *gophercloud.ServiceClient) error {
		return keypairs.Delete(ctx, nova, name, keypairs.DeleteOpts{}).ExtractErr()
	}))
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

// EnsureServerGroup returns the id of the project's server group of that name, which it makes if it is absent. It must
// not run twice concurrently for one name: names are not unique.
func (s *Session) EnsureServerGroup(ctx context.Context, name, policy string) (string, error) {
	known, err := s.serverGroups(ctx, name)
	if err != nil || len(known) > 0 {
		return firstOf(known), err
	}
	nova, err := s.compute(ctx, computeSoftGroups)
	if err != nil {
		return "", err
	}
	group, err := servergroups.Create(ctx, nova, servergroups.CreateOpts{
		Name: name, Policies: []string{policy},
	}).Extract()
	if err != nil {
		return "", classify("nova", err)
	}
	return group.ID, nil
}

func firstOf(all []string) string {
	if len(all) == 0 {
		return ""
	}
	return all[0]
}

// DeleteServerGroups deletes the project's server groups of that name.
func (s *Session) DeleteServerGroups(ctx context.Context, name string) error {
	known, err := s.serverGroups(ctx, name)
	if err != nil || len(known) == 0 {
		return err
	}
	nova, err := s.compute(ctx, computeSoftGroups)
	if err != nil {
		return err
	}
	for _, id := range known {
		if err := absentIsDone(classify("nova", servergroups.Delete(ctx, nova, id).ExtractErr())); err != nil {
			return err
		}
	}
	return nil
}

// serverGroups lists the ids of the project's server groups of that name, sorted.
func (s *Session) serverGroups(ctx context.Context, name string) ([]string, error) {
	all, err := s.ServerGroups(ctx)
	var ids []string
	for _, g := range all {
		if g.Name == name {
			ids = append(ids, g.ID)
		}
	}
	slices.Sort(ids)
	return ids, err
}

// ServerGroups lists the project's server groups.
func (s *Session) ServerGroups(ctx context.Context) (all []domain.ServerGroup, err error) {
	nova, err := s.compute(ctx, computeSoftGroups)
	if err != nil {
		return nil, err
	}
	for {
		var body struct {
			Groups []domain.ServerGroup `json:"server_groups"`
		}
		query := url.Values{"limit": {strconv.Itoa(watchPage)}, "offset": {strconv.Itoa(len(all))}}
		if err := getPage(ctx, nova, nova.ServiceURL("os-server-groups")+"?"+query.Encode(), &body); err != nil {
			return nil, classify("nova", err)
		}
		if len(body.Groups) == 0 {
			return all, nil
		}
		all = append(all, body.Groups...)
	}
}
