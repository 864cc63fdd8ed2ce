package postgres_test

import (
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"

	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/postgres"
	"github.com/cloudfn/cloudfn/shared/testkit"
)

// TestMaxConnections: the maximum holds also when many are created concurrently. Ended connections do not count.
func TestMaxConnections(t *testing.T) {
	t.Parallel()
	store := postgres.Connections{DB: open(t, testkit.Database(t))}
	first := storedConnection(t, store, newConnection())
	other := newConnection()
	other.ProjectID = "p2"
	storedConnection(t, store, other)
	var mu sync.Mutex
	refused := 0
	concurrently(domain.MaxConnections+4, func(int) {
		_, err := store.Create(t.Context(), newConnection())
		mu.Lock()
		defer mu.Unlock()
		if apperr.CodeOf(err) == apperr.Conflict {
			refused++
		} else if err != nil {
			t.Error(err)
		}
	})
	if refused != 5 {
		t.Errorf("%d were refused", refused)
	}
	must(store.End(t.Context(), "p1", first.ID, domain.ConnectionExpired, "", false))(t)
	storedConnection(t, store, newConnection())
	wantCode(t, "got", errOf(store.Create(t.Context(), newConnection())), apperr.Conflict)
}

// TestConnectionsOfLeasesDoNotCount: a project with the most connections can still lease instances, and those of leases
// leave room for as many.
func TestConnectionsOfLeasesDoNotCount(t *testing.T) {
	t.Parallel()
	database := testkit.Database(t)
	db, conn := open(t, database), testkit.Connect(t, database)
	lease := func() {
		t.Helper()
		made, delegated := newLease(time.Hour, 0), newConnection()
		made.Connection = &delegated
		made.Lease.Reservations = []domain.Reservation{{
			ID: uuid.New(), Type: domain.InstanceReservation, InstanceID: addInstance(t, conn),
		}}
		must(postgres.Leases{DB: db}.Create(t.Context(), made))(t)
	}
	store := postgres.Connections{DB: db}
	lease()
	for range domain.MaxConnections {
		storedConnection(t, store, newConnection())
	}
	lease()
	wantCode(t, "one more connection", errOf(store.Create(t.Context(), newConnection())), apperr.Conflict)
	wantValue(t, conn, domain.MaxConnections+2, "there are %d connections", "select count(*)::int from connections")
}

// TestConnectionEndsAt: a connection ends at its expiry, or when it was idle for too long.
func TestConnectionEndsAt(t *testing.T) {
	t.Parallel()
	database := testkit.Database(t)
	db, conn := open(t, database), testkit.Connect(t, database)
	store := postgres.Connections{DB: db}
	c := storedConnection(t, store, newConnection())
	must(conn.Exec(t.Context(),
		"update connections set last_used_at = created_at + interval '10 hours' where id = $1", c.ID))(t)
	used, now, err := store.Usable(t.Context(), delegator, c.ID)
	if err != nil || !used.EndsAt().Equal(c.CreatedAt.Add(34*time.Hour)) || now.Sub(c.CreatedAt) > time.Minute {
		t.Errorf("it ends at %s, now is %s: %v", used.EndsAt(), now, err)
	}
	for after, want := range map[time.Duration]apperr.Code{33 * time.Hour: "", 34 * time.Hour: apperr.Forbidden} {
		if err := used.Permits(c.CreatedAt.Add(after), domain.MayStart); apperr.CodeOf(err) != want {
			t.Errorf("after %s: %v", after, err)
		}
	}
	err = used.Permits(now, domain.MayAllocate, domain.MayDeallocate)
	if apperr.CodeOf(err) != apperr.Forbidden || !strings.Contains(err.Error(), "allocate, start") {
		t.Errorf("what is not permitted: %v", err)
	}
	used.Status, used.Reason = domain.ConnectionLost, "gone"
	if err := used.Permits(now); apperr.CodeOf(err) != apperr.DelegationLost || !strings.Contains(err.Error(), "gone") {
		t.Errorf("a lost one: %v", err)
	}
}

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
	store, works := postgres.Connections{DB: db}, postgres.Delegations{DB: db}
	c := storedConnection(t, store, newConnection())
	if _, _, found, err := store.Resources(t.Context(), "p1", c.ID); err != nil || found {
		t.Errorf("before anything was read: %t %v", found, err)
	}
	want := domain.AvailableResources{
		Flavors: []domain.Flavor{{
			ID: "f1", Name: "tiny",
			VCPUs: 1,
		}}, Images: []domain.Image{}, Quota: &domain.Quota{Instances: domain.QuotaItem{Max: 3, Used: 1}},
		Truncated: []string{domain.ResourceFlavors}, Problems: map[string]domain.Problem{domain.ResourceNetworks: {
			Code:   "forbidden",
			Detail: "no",
		}},
	}
	began := testkit.Scalar[time.Time](t, conn, "select clock_timestamp()")
	see := func(ago time.Duration, seen domain.AvailableResources) {
		t.Helper()
		if err := works.RecordResources(t.Context(), "p1", c.ID, began.Add(-ago), seen); err != nil {
			t.Error(err)
		}
	}
	see(time.Minute, domain.AvailableResources{})
	see(time.Second, want)
	see(time.Minute, domain.AvailableResources{}) // of a replica that hung
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
		if err := works.RecordResources(t.Context(), project, id, began, domain.AvailableResources{}); err != nil {
			t.Error(err)
		}
	}
	wantValue(t, conn, 1, "there are %d rows",
		"select count(*)::int from connection_resources where seen->'flavors' <> 'null'")

	ended := storedConnection(t, store, newConnection())
	must(store.End(t.Context(), "p1", ended.ID, domain.ConnectionDeleted, "over", true))(t)
	noError(t, works.RecordResources(t.Context(), "p1", ended.ID, began, want))
	if _, _, found, _ := store.Resources(t.Context(), "p1", ended.ID); found {
		t.Error("what was read of a connection that has ended is stored")
	}
	must(store.End(t.Context(), "p1", c.ID, domain.ConnectionDeleted, "over", true))(t)
	noError(t, works.Retire(t.Context(), 0, 0))
	wantValue(t, conn, 0, "%d rows are left of retired connections", "select count(*)::int from connection_resources")
}
