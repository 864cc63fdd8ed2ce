package postgres_test

import (
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/postgres"
	"github.com/cloudfn/cloudfn/shared/testkit"
)

// TestMaxConnections: the maximum holds also when many are created at once. Ended connections do not count.
func TestMaxConnections(t *testing.T) {
	t.Parallel()
	store := postgres.Connections{DB: open(t, testkit.Database(t))}
	first := storedConnection(t, store, newConnection())
	other := newConnection()
	other.ProjectID = "p2"
	storedConnection(t, store, other)
	var mu sync.Mutex
	refused := 0
	var all sync.WaitGroup
	for range domain.MaxConnections + 4 {
		all.Go(func() {
			_, err := store.Create(t.Context(), newConnection())
			mu.Lock()
			defer mu.Unlock()
			if apperr.CodeOf(err) == apperr.Conflict {
				refused++
			} else if err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	if refused != 5 {
		t.Errorf("%d were refused", refused)
	}
	if _, err := store.End(t.Context(), "p1", first.ID, domain.ConnectionExpired, "", false); err != nil {
		t.Fatal(err)
	}
	storedConnection(t, store, newConnection())
	if _, err := store.Create(t.Context(), newConnection()); apperr.CodeOf(err) != apperr.Conflict {
		t.Errorf("got %v", err)
	}
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
		if _, err := (postgres.Leases{DB: db}).Create(t.Context(), made); err != nil {
			t.Fatal(err)
		}
	}
	store := postgres.Connections{DB: db}
	lease()
	for range domain.MaxConnections {
		storedConnection(t, store, newConnection())
	}
	lease()
	if _, err := store.Create(t.Context(), newConnection()); apperr.CodeOf(err) != apperr.Conflict {
		t.Errorf("one more connection: %v", err)
	}
	if n := testkit.Scalar[int](t, conn, "select count(*)::int from connections"); n != domain.MaxConnections+2 {
		t.Errorf("there are %d connections", n)
	}
}

// TestUsedQuota: instances count that have a server, or may still get one.
func TestUsedQuota(t *testing.T) {
	t.Parallel()
	database := testkit.Database(t)
	db, conn := open(t, database), testkit.Connect(t, database)
	store := postgres.Connections{DB: db}
	c, other := storedConnection(t, store, newConnection()), storedConnection(t, store, newConnection())
	for _, tc := range []struct {
		project, server, problem, state string
		connection                      uuid.UUID
		let                             bool
	}{
		{"p1", "s1", "", "active", c.ID, false},
		{"p1", "", "", "requested", c.ID, false},
		{"p1", "s2", "", "stopped", c.ID, true},             // disconnected: it counts until its server is deleted
		{"p1", "s3", `{"code": "x"}`, "error", c.ID, false}, // broken, but it exists
		{"p1", "", `{"code": "x"}`, "error", c.ID, false},   // refused
		{"p1", "s4", "", "deleted", c.ID, false},
		{"p1", "s5", "", "active", other.ID, false},
		{"p2", "s6", "", "active", c.ID, false}, // of no such connection there
	} {
		_, err := conn.Exec(t.Context(), `
insert into instances (project_id, id, position, connection_id, name, server_id, problem, state, origin, spec,
  disconnected_at)
values ($1, gen_random_uuid(), 0, $2, 'n', nullif($3, ''), nullif($4, '')::jsonb, $5, 'launched',
  '{"vcpus": 2, "ram_mb": 512}', case when $6 then now() end)`,
			tc.project, tc.connection, tc.server, tc.problem, tc.state, tc.let)
		if err != nil {
			t.Fatal(err)
		}
	}
	got, err := store.Get(t.Context(), delegator, c.ID)
	if want := (domain.Need{Instances: 4, VCPUs: 8, RAMMB: 2048}); err != nil || got.Used != want {
		t.Errorf("got %+v %v", got.Used, err)
	}
	page, err := store.List(t.Context(), delegator, domain.ConnectionQuery{Limit: 10})
	if err != nil || len(page) != 2 || page[0].Used != got.Used || page[1].Used.Instances != 1 {
		t.Errorf("listed with %+v %v", page, err)
	}
}

// TestConnectionEndsAt: a connection ends at its expiry, or when it was idle for too long.
func TestConnectionEndsAt(t *testing.T) {
	t.Parallel()
	database := testkit.Database(t)
	db, conn := open(t, database), testkit.Connect(t, database)
	store := postgres.Connections{DB: db}
	c := storedConnection(t, store, newConnection())
	if _, err := conn.Exec(t.Context(),
		"update connections set last_used_at = created_at + interval '10 hours' where id = $1", c.ID); err != nil {
		t.Fatal(err)
	}
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
