package postgres_test

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"

	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/postgres"
	"github.com/cloudfn/cloudfn/shared/testkit"
)

// TestResourcesRespectLimits, and are shown to who may use the connection.
func TestResourcesRespectLimits(t *testing.T) {
	t.Parallel()
	store := postgres.Connections{DB: open(t, testkit.Database(t))}
	want := newConnection()
	want.Limits = domain.ConnectionLimits{
		Images: []string{"i1"}, Networks: []string{"n1", "n2"},
		Flavors: []string{"tiny"}, Regions: []string{"west"},
	}
	want.UsableNames = []domain.UsableByName{{ID: "u2", User: "joe"}, {ID: "p2", Project: "web", Domain: "Default"}}
	stored := storedConnection(t, store, want)
	who := domain.Identity{UserID: "u2", ProjectID: "p9", WriteRoles: []string{"member"}}
	got, err := store.Get(t.Context(), who, want.ID)
	if diff := cmp.Diff(want.Limits, got.Limits) + cmp.Diff(want.UsableNames, got.UsableNames); err != nil ||
		diff != "" {
		t.Errorf("%v %s", err, diff)
	}
	if diff := cmp.Diff(want.UsableBy, stored.UsableBy); diff != "" {
		t.Error(diff)
	}
	bare := storedConnection(t, store, newConnection())
	if !bare.Limits.IsZero() || bare.UsableNames != nil {
		t.Errorf("got %+v and %v", bare.Limits, bare.UsableNames)
	}
}

// TestRecordResources: the newest of what replicas see, of the project's own connection, while that is active; it goes
// with the connection.
func TestRecordResources(t *testing.T) {
	t.Parallel()
	database := testkit.Database(t)
	db, conn := open(t, database), testkit.Connect(t, database)
	store, works := postgres.Connections{DB: db}, postgres.Delegations{DB: as(t, database, "cloudfn_events")}
	c := storedConnection(t, store, newConnection())
	if _, _, found, err := store.Resources(t.Context(), "p1", c.ID); err != nil || found {
		t.Errorf("before anything was seen: %t %v", found, err)
	}
	want := domain.SeenResources{
		Flavors: []domain.Flavor{{
			ID: "f1", Name: "tiny",
			VCPUs: 1,
		}}, Images: []domain.Image{}, Quota: &domain.Quota{Instances: domain.QuotaItem{Max: 3, Used: 1}},
		Truncated: []string{domain.SeenFlavors}, Problems: map[string]domain.Problem{domain.SeenNetworks: {
			Code:   "forbidden",
			Detail: "no",
		}},
	}
	began := testkit.Scalar[time.Time](t, conn, "select clock_timestamp()")
	see := func(ago time.Duration, seen domain.SeenResources) {
		t.Helper()
		if err := works.RecordResources(t.Context(), "p1", c.ID, began.Add(-ago), seen); err != nil {
			t.Error(err)
		}
	}
	see(time.Minute, domain.SeenResources{})
	see(time.Second, want)
	see(time.Minute, domain.SeenResources{}) // of a replica that hung
	got, age, found, err := store.Resources(t.Context(), "p1", c.ID)
	if err != nil || !found || age < time.Second || age > 30*time.Second || time.Since(got.AsOf) > 30*time.Second {
		t.Fatalf("%t %s %s %v", found, age, got.AsOf, err)
	}
	want.AsOf = got.AsOf
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	if _, _, found, err := store.Resources(t.Context(), "p2", c.ID); err != nil || found {
		t.Errorf("as another project's: %t %v", found, err)
	}
	for project, id := range map[string]uuid.UUID{"p2": c.ID, "p1": uuid.New()} {
		if err := works.RecordResources(t.Context(), project, id, began, domain.SeenResources{}); err != nil {
			t.Error(err)
		}
	}
	if n := testkit.Scalar[int](t, conn,
		"select count(*)::int from connection_resources where seen->'flavors' <> 'null'"); n != 1 {
		t.Errorf("there are %d rows", n)
	}

	ended := storedConnection(t, store, newConnection())
	if _, err := store.End(t.Context(), "p1", ended.ID, domain.ConnectionDeleted, "over", true); err != nil {
		t.Fatal(err)
	}
	if err := works.RecordResources(t.Context(), "p1", ended.ID, began, want); err != nil {
		t.Error(err)
	}
	if _, _, found, _ := store.Resources(t.Context(), "p1", ended.ID); found {
		t.Error("what was seen of a connection that has ended is stored")
	}
	if _, err := store.End(t.Context(), "p1", c.ID, domain.ConnectionDeleted, "over", true); err != nil {
		t.Fatal(err)
	}
	if err := works.Retire(t.Context(), 0, 0); err != nil {
		t.Fatal(err)
	}
	if n := testkit.Scalar[int](t, conn, "select count(*)::int from connection_resources"); n != 0 {
		t.Errorf("%d rows are left of retired connections", n)
	}
}
