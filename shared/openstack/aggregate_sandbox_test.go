package openstack_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"

	"github.com/google/uuid"

	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/openstack"
	"github.com/cloudfn/cloudfn/shared/testkit"
)

// generalHost is a host on which other tests' servers may land.
func generalHost(t *testing.T, admin *openstack.Session) domain.ComputeHost {
	t.Helper()
	host, err := admin.ComputeHost(t.Context(), "compute-1")
	if err != nil {
		t.Fatal(err)
	}
	return host
}

// TestAggregateCallsAreRepeatable: all that run-leases does may be done a second time after a crash.
func TestAggregateCallsAreRepeatable(t *testing.T) {
	t.Parallel()
	admin, ctx := testkit.Session(t, "admin"), t.Context()
	host, name := generalHost(t, admin), fmt.Sprintf("test-%x", rand.Uint64())
	metadata := map[string]string{"test": "1"} // it keeps no server off the host
	made, err := admin.EnsureAggregate(ctx, name, metadata)
	if err != nil || made.UUID == "" {
		t.Fatal(made, err)
	}
	t.Cleanup(func() {
		if _, err := admin.Aggregate(context.Background(), made.ID); err == nil {
			t.Error("the aggregate is left")
		}
	})
	for range 2 {
		again, err := admin.EnsureAggregate(ctx, name, metadata)
		if err != nil || again.ID != made.ID || again.Metadata["test"] != "1" {
			t.Errorf("%+v %v", again, err)
		}
		if err := admin.AddHost(ctx, made, host.Name, host.ProviderID); err != nil {
			t.Error(err)
		}
	}
	now, err := admin.Aggregate(ctx, made.ID)
	if err != nil || !slices.Equal(now.Hosts, []string{host.Name}) {
		t.Errorf("%+v %v", now, err)
	}
	isolates(t, admin, made, host)
	if err := admin.DeleteAggregate(ctx, made.ID); apperr.CodeOf(err) != apperr.Invalid {
		t.Errorf("with a host in it: %v", err)
	}
	for range 2 {
		if err := admin.RemoveHost(ctx, made, host.Name, host.ProviderID); err != nil {
			t.Error(err)
		}
	}
	for range 2 {
		if err := admin.DeleteAggregate(ctx, made.ID); err != nil {
			t.Error(err)
		}
		if err := admin.RemoveHost(ctx, made, host.Name, host.ProviderID); err != nil {
			t.Errorf("from a deleted one: %v", err)
		}
	}
	if err := admin.AddHost(ctx, made, host.Name, host.ProviderID); apperr.CodeOf(err) != apperr.NotFound {
		t.Errorf("into a deleted one: %v", err)
	}
}

// isolates tests that the provider of a host in an aggregate is listed as long as it has the trait.
func isolates(t *testing.T, admin *openstack.Session, a domain.Aggregate, host domain.ComputeHost) {
	t.Helper()
	trait, list := fmt.Sprintf("CUSTOM_TEST_%X", rand.Uint64()), func(aggregate, trait string) []string {
		ids, err := admin.IsolatedProviders(t.Context(), aggregate, trait)
		if err != nil {
			t.Error(err)
		}
		return ids
	}
	if ids := list(a.UUID, trait); len(ids) > 0 {
		t.Errorf("a trait that does not exist: %v", ids)
	}
	if err := admin.EnsureTrait(t.Context(), trait); err != nil {
		t.Fatal(err)
	}
	for _, present := range []bool{true, false} {
		if err := admin.SetProviderTrait(t.Context(), host.ProviderID, trait, present); err != nil {
			t.Fatal(err)
		}
		if ids := list(a.UUID, trait); slices.Equal(ids, []string{host.ProviderID}) != present {
			t.Errorf("with the trait %t: %v", present, ids)
		}
		if ids := list(uuid.NewString(), trait); len(ids) > 0 {
			t.Errorf("in an aggregate that does not exist: %v", ids)
		}
	}
	if err := admin.DeleteTrait(t.Context(), trait); err != nil {
		t.Error(err)
	}
}

// TestTraitsOfAProvider: twenty at once change one provider, and none undoes another's change.
func TestTraitsOfAProvider(t *testing.T) {
	t.Parallel()
	admin, ctx := testkit.Session(t, "admin"), t.Context()
	host := generalHost(t, admin)
	names := make([]string, 4)
	for i := range names {
		names[i] = fmt.Sprintf("CUSTOM_TEST_%X", rand.Uint64())
		for range 2 {
			if err := admin.EnsureTrait(ctx, names[i]); err != nil {
				t.Fatal(err)
			}
		}
	}
	set := func(present bool) {
		var all sync.WaitGroup
		for _, name := range names {
			all.Go(func() {
				for range 2 {
					if err := admin.SetProviderTrait(ctx, host.ProviderID, name, present); err != nil {
						t.Error(err)
					}
				}
			})
		}
		all.Wait()
	}
	set(true)
	now, err := admin.ProviderTraits(ctx, host.ProviderID)
	for _, name := range append(names, "COMPUTE_NODE") {
		if !slices.Contains(now, name) {
			t.Errorf("%s is lost of %v %v", name, now, err)
		}
	}
	if err := admin.DeleteTrait(ctx, names[0]); apperr.CodeOf(err) != apperr.Conflict {
		t.Errorf("a trait in use: %v", err)
	}
	set(false)
	for _, name := range append(names, names...) {
		if err := admin.DeleteTrait(ctx, name); err != nil {
			t.Error(err)
		}
	}
	absent := uuid.NewString()
	if err := admin.SetProviderTrait(ctx, absent, names[0], false); err != nil {
		t.Errorf("taken from no provider: %v", err)
	}
	if err := admin.SetProviderTrait(ctx, absent, "COMPUTE_NODE", true); apperr.CodeOf(err) != apperr.NotFound {
		t.Errorf("given to no provider: %v", err)
	}
}

func TestPrivateFlavorsAreCopies(t *testing.T) {
	t.Parallel()
	admin, ctx, p := testkit.Session(t, "admin"), t.Context(), testkit.NewProject(t)
	f := domain.PrivateFlavor{
		ID: uuid.NewString(), BaseID: testkit.Sandbox(t).FlavorID,
		ExtraSpecs: map[string]string{"trait:CUSTOM_TEST": "required"},
	}
	f.Name = "copy-" + f.ID[:8]
	for range 2 {
		if err := admin.EnsureFlavor(ctx, f); err != nil {
			t.Fatal(err)
		}
	}
	mine := p.Session(t)
	has := func() bool {
		list, err := mine.Flavors(ctx)
		if err != nil {
			t.Fatal(err)
		}
		return slices.ContainsFunc(list, func(one domain.Flavor) bool {
			return one.ID == f.ID && one.Name == f.Name && !one.Public && one.RAMMB == 512 && one.VCPUs == 1 &&
				one.DiskGB == 1
		})
	}
	if has() {
		t.Error("it is anybody's before it is granted")
	}
	for range 2 {
		if err := admin.GrantFlavor(ctx, f.ID, p.ID); err != nil {
			t.Fatal(err)
		}
	}
	if specs, err := admin.FlavorSpecs(ctx, f.ID); !has() || err != nil || specs["trait:CUSTOM_TEST"] != "required" {
		t.Errorf("granted: %v %v", specs, err)
	}
	copied := domain.PrivateFlavor{ID: uuid.NewString(), BaseID: f.ID, Name: f.Name + "-2", ExtraSpecs: map[string]string{"a:b": "c"}}
	if err := admin.EnsureFlavor(ctx, copied); err != nil {
		t.Fatal(err)
	}
	if specs, err := admin.FlavorSpecs(ctx, copied.ID); err != nil || len(specs) != 2 {
		t.Errorf("the base's extra specs: %v %v", specs, err)
	}
	all, err := admin.PrivateFlavors(ctx)
	if n := slices.IndexFunc(all, func(one domain.PrivateFlavor) bool { return one.ID == copied.ID }); err != nil ||
		n < 0 || all[n].Name != copied.Name || len(all[n].ExtraSpecs) != 2 || all[n].ExtraSpecs["a:b"] != "c" {
		t.Errorf("the private flavors are %+v %v", all, err)
	}
	for _, id := range []string{f.ID, f.ID, copied.ID} {
		if err := admin.DeleteFlavor(ctx, id); err != nil {
			t.Error(err)
		}
	}
	if err := admin.EnsureFlavor(ctx, copied); apperr.CodeOf(err) != apperr.NotFound {
		t.Errorf("without its base: %v", err)
	}
}
