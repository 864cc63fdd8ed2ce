package openstack_test

import (
	"slices"
	"testing"

	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/testkit"
)

// TestMayChangeAggregates asks Nova's policy, and leaves nothing: no aggregate is made or changed.
func TestMayChangeAggregates(t *testing.T) {
	t.Parallel()
	admin, ctx := testkit.Session(t, "admin"), t.Context()
	if err := admin.MayChangeAggregates(ctx); err != nil {
		t.Errorf("an admin: %v", err)
	}
	if err := testkit.Session(t, "demo").MayChangeAggregates(ctx); apperr.CodeOf(err) != apperr.Forbidden {
		t.Errorf("a member: %v", err)
	}
	all, err := admin.Aggregates(ctx)
	if err != nil || slices.ContainsFunc(all, func(a domain.Aggregate) bool { return a.Name == "cloudfn" }) {
		t.Errorf("the aggregates are %+v: %v", all, err)
	}
}

// TestUnplacedServers lists the servers that no host takes, and none that is on a host.
func TestUnplacedServers(t *testing.T) {
	t.Parallel()
	p := testkit.NewProject(t)
	id := p.Create(t, "built")
	p.Await(t, id, "ACTIVE")
	facts, flavor := testkit.Sandbox(t), p.PrivateFlavor(t)
	testkit.RequireTrait(t, flavor, "HW_CPU_X86_AVX512F") // which no host has
	failed, err := p.Session(t).CreateServer(t.Context(), domain.LaunchSpec{
		FlavorID: flavor, ImageID: facts.ImageID, NetworkIDs: []string{facts.NetworkID},
	}, "failed", "", nil)
	if err != nil {
		t.Fatal(err)
	}
	p.Await(t, failed, "ERROR")
	found, err := testkit.Session(t, "admin").UnplacedServers(t.Context(), p.ID)
	if err != nil || len(found) != 1 || found[0].ID != failed || found[0].Host != "" || found[0].Launched ||
		found[0].Flavor.Name == "" {
		t.Errorf("server %s is built and %s is not, but got %+v: %v", id, failed, found, err)
	}
}
