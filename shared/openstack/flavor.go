package openstack

import (
	"context"
	"maps"
	"net/url"

	"github.com/gophercloud/gophercloud/v2"
	"github.com/gophercloud/gophercloud/v2/openstack/compute/v2/flavors"

	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/domain"
)

// Private flavors, by default the cloud's admins only. Each call is done when what it asks for is so already.

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
// the base is gone before the flavor is complete.
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
	if apperr.CodeOf(err) == apperr.Conflict && flavors.Get(ctx, nova, f.ID).Err == nil { // somebody was faster
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
