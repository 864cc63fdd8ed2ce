package openstack_test

import (
	"context"
	"slices"
	"testing"

	"github.com/google/uuid"

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

// TestDroppedKeys: a key of an aggregate's metadata and an extra spec of a flavor are dropped, again and again.
func TestDroppedKeys(t *testing.T) {
	t.Parallel()
	admin, ctx := testkit.Session(t, "admin"), t.Context()
	name := "test-" + uuid.NewString()[:8]
	made, err := admin.EnsureAggregate(ctx, name, map[string]string{"a": "1", "b": "2"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = admin.DeleteAggregate(context.Background(), made.ID) })
	f := domain.PrivateFlavor{
		ID: uuid.NewString(), Name: name, BaseID: testkit.Sandbox(t).FlavorID,
		ExtraSpecs: map[string]string{"a:a": "1", "b:b": "2"},
	}
	t.Cleanup(func() { _ = admin.DeleteFlavor(context.Background(), f.ID) })
	if err := admin.EnsureFlavor(ctx, f); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := admin.DropAggregateMetadata(ctx, made.ID, "a"); err != nil {
			t.Error(err)
		}
		if err := admin.DropFlavorSpec(ctx, f.ID, "a:a"); err != nil {
			t.Error(err)
		}
	}
	now, err := admin.Aggregate(ctx, made.ID)
	if _, has := now.Metadata["a"]; err != nil || has || now.Metadata["b"] != "2" {
		t.Errorf("the aggregate is %+v: %v", now, err)
	}
	if specs, err := admin.FlavorSpecs(ctx, f.ID); err != nil || len(specs) != 1 || specs["b:b"] != "2" {
		t.Errorf("the flavor has %v: %v", specs, err)
	}
}

// TestBuildingServers lists no server that is built.
func TestBuildingServers(t *testing.T) {
	t.Parallel()
	p := testkit.NewProject(t)
	id := p.Create(t, "built")
	p.Await(t, id, "ACTIVE")
	found, err := testkit.Session(t, "admin").BuildingServers(t.Context(), p.ID)
	if err != nil || len(found) > 0 {
		t.Errorf("server %s is built, but got %+v: %v", id, found, err)
	}
}
