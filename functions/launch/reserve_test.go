package launch

import (
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/postgres"
	"github.com/cloudfn/cloudfn/shared/testkit"
)

// reserveHost stores a pending lease with a host reservation, whose flavor is a copy of the sandbox's smallest.
func reserveHost(t *testing.T, database, projectID, copyID string) domain.Reservation {
	t.Helper()
	db, err := postgres.Open(postgres.Config{URL: domain.Secret(database), MaxConns: 2}, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(db.Close)
	f, now := testkit.Sandbox(t), time.Now()
	host := uuid.NewString()
	testkit.Scalar[int](t, testkit.Pool(t, database), `
with added as (
    insert into nodes (name, zone, pool, vcpus, ram_mb, disk_gb) values ($1, 'nova', 'reservable', 8, 8192, 100) returning 1
) select count(*)::int from added`, host)
	stored, err := (postgres.Leases{DB: db}).Create(t.Context(), domain.NewLease{Lease: domain.Lease{
		ID: uuid.Must(uuid.NewV7()), ProjectID: projectID, DomainID: "default", UserID: "u", Name: "workshop",
		StartsAt: now.Add(time.Hour), EndsAt: now.Add(2 * time.Hour), OnEnd: domain.OnEndShelve,
		Reservations: []domain.Reservation{{
			ID: uuid.New(), Type: domain.HostReservation, Want: &domain.HostWant{Min: 1, Max: 1},
			Flavors: []domain.LeasedFlavor{{
				ID: copyID, Name: "copy", BaseID: f.FlavorID, Base: f.Flavor, VCPUs: 1, RAMMB: 96, DiskGB: 1,
			}},
		}},
	}})
	if err != nil {
		t.Fatal(err)
	}
	return stored.Reservations[0]
}

// activate marks a reservation and its lease as active, as run-leases does.
func activate(t *testing.T, rows *pgxpool.Pool, r domain.Reservation, status domain.LeaseStatus) {
	t.Helper()
	for _, sql := range []string{
		"update reservations set status = 'active' where lease_id = $1",
		"update leases set status = '" + string(status) + "' where id = $1",
	} {
		if _, err := rows.Exec(t.Context(), sql, r.LeaseID); err != nil {
			t.Fatal(err)
		}
	}
}

// TestLongReservationID launches with the private copy of the flavor, however the request gives it.
func TestLongReservationID(t *testing.T) {
	t.Parallel()
	p, app, database := start(t)
	f, rows, private := testkit.Sandbox(t), testkit.Pool(t, database), p.PrivateFlavor(t)
	r := reserveHost(t, database, p.ID, private)
	activate(t, rows, r, domain.LeaseActive)
	request := body(t, object{
		"reservation_id": strings.ToUpper(r.ID.String()), "id": uuid.NewString(),
		"instances": []object{
			{"name": "name"},
			{"name": "id", "flavor": f.FlavorID},
			{"name": "copy", "flavor": private},
			{"name": "min", "flavor": nil, "min": object{"vcpus": 1}},
		},
	})
	dry := app.Post(t, "/v1/launch?dry_run=true", request)
	if !strings.Contains(string(dry.Body), `"ok":true`) || strings.Count(string(dry.Body), private) != 4 {
		t.Errorf("dry run: got %d %s", dry.Status, dry.Body)
	}
	a := app.Post(t, "/v1/launch", request)
	var order Order
	if a.JSON(t, &order); a.Status != 202 || value(order.ReservationID) != r.ID {
		t.Fatalf("got %d %s", a.Status, a.Body)
	}
	for _, s := range p.Servers(t) {
		if ram := s.Flavor["ram"].(float64); ram != 96 {
			t.Errorf("%s has %v MB, want the copy's 96", s.Name, ram)
		}
	}
	lower := strings.Replace(request, strings.ToUpper(r.ID.String()), r.ID.String(), 1)
	if a := app.Post(t, "/v1/launch", lower); a.Status != 200 {
		t.Errorf("in lower case: got %d %s", a.Status, a.Body)
	}
	if a := app.Post(t, "/v1/launch", strings.Replace(request, "reservation_id", "connection_id", 1)); a.Status == 200 {
		t.Errorf("without it: got %d %s", a.Status, a.Body)
	}
	other := body(t, object{"reservation_id": r.ID, "flavor": "m1.no-such"})
	if a := app.Post(t, "/v1/launch", other); a.Status != 400 || !testkit.Names(t, a, "flavor") ||
		!strings.Contains(string(a.Body), `"allowed":["`+f.Flavor+`"]`) {
		t.Errorf("another flavor: got %d %s", a.Status, a.Body)
	}
}

// TestReservationRefused rejects reservations that have no hosts now, and those of others.
func TestReservationRefused(t *testing.T) {
	t.Parallel()
	p, app, database := start(t)
	rows := testkit.Pool(t, database)
	pending, ending, active, foreign := reserveHost(t, database, p.ID, "c1"), reserveHost(t, database, p.ID, "c2"),
		reserveHost(t, database, p.ID, "c3"), reserveHost(t, database, "another", "c4")
	activate(t, rows, ending, domain.LeaseEnding)
	activate(t, rows, active, domain.LeaseActive)
	activate(t, rows, foreign, domain.LeaseActive)
	begins := testkit.Scalar[time.Time](t, rows, "select starts_at from leases where id = $1", pending.LeaseID)
	for name, tc := range map[string]struct {
		id     uuid.UUID
		status int
		says   string
	}{
		"pending":            {pending.ID, 409, "is active, from " + begins.UTC().Format(time.RFC3339) + " to "},
		"ending":             {ending.ID, 409, "lease ending"},
		"of another project": {foreign.ID, 400, `"allowed":["` + active.ID.String() + `"]`},
		"unknown":            {uuid.New(), 400, `"allowed":["` + active.ID.String() + `"]`},
		"the lease's id":     {pending.LeaseID, 400, "unknown reservation"},
	} {
		t.Run(name, func(t *testing.T) {
			request := body(t, object{"reservation_id": tc.id})
			a := app.Post(t, "/v1/launch", request)
			if a.Status != tc.status || !testkit.Names(t, a, reservedField) ||
				!strings.Contains(string(a.Body), tc.says) {
				t.Errorf("got %d %s, want %d with %s", a.Status, a.Body, tc.status, tc.says)
			}
			dry := app.Post(t, "/v1/launch?dry_run=true", request)
			if !strings.Contains(string(dry.Body), `"ok":false`) || !strings.Contains(string(dry.Body), tc.says) {
				t.Errorf("dry run: got %d %s", dry.Status, dry.Body)
			}
		})
	}
	if n := testkit.Scalar[int](t, rows, "select count(*)::int from orders"); n != 0 || len(p.Servers(t)) != 0 {
		t.Errorf("there are %d orders and the servers %+v", n, p.Servers(t))
	}
}
