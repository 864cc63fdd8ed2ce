package launch

import (
	"maps"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/postgres"
	"github.com/cloudfn/cloudfn/shared/testkit"
)

// startLeasing starts launch with the trustee of the sandbox, and with more settings.
func startLeasing(t *testing.T, more map[string]string) (*testkit.Project, *testkit.Client, *pgxpool.Pool) {
	t.Helper()
	p, database := testkit.BorrowProject(t), testkit.Database(t)
	env := map[string]string{"TRUSTEE_USER_ID": testkit.Trustee(t)}
	maps.Copy(env, more)
	app := testkit.Start(t, testkit.Env(t, database, env), Function).As(p.Token(t))
	return p, app, testkit.Pool(t, database)
}

// checkTrust compares the only trust of the project's member with the lease.
func checkTrust(t *testing.T, p *testkit.Project, end time.Time) {
	t.Helper()
	ids := p.Trusts(t)
	if len(ids) != 1 {
		t.Fatalf("Keystone has the trusts %v, want one", ids)
	}
	found := p.ShowTrust(t, ids[0])
	after := found.ExpiresAt.Sub(end)
	if len(found.Roles) != 1 || found.Roles[0].Name != "member" || found.ProjectID != p.ID || !found.Impersonation ||
		found.TrusteeUserID != testkit.Trustee(t) || after < 24*time.Hour || after > 25*time.Hour {
		t.Errorf("the trust is %+v, %s after the lease's end", found, after)
	}
}

// TestLaunchWithLease launches with a lease, by two concurrent requests and then by a third: there is one lease and one
// trust.
func TestLaunchWithLease(t *testing.T) {
	t.Parallel()
	p, app, rows := startLeasing(t, nil)
	id := uuid.NewString()
	request := body(t, object{
		"id": id, "name": "course", "count": 2,
		"lease": object{"duration": "PT2H", "before_end": "PT10M", "on_end": "stop"},
	})
	if a := app.Post(t, "/v1/launch?dry_run=true", request); a.Status != 200 ||
		!strings.Contains(string(a.Body), `"ok":true`) || len(p.Trusts(t)) != 0 {
		t.Errorf("dry run: got %d %s, trusts %v", a.Status, a.Body, p.Trusts(t))
	}
	var all sync.WaitGroup
	answers := make([]testkit.Answer, 2)
	for n := range answers {
		all.Go(func() { answers[n] = app.Post(t, "/v1/launch", request) })
	}
	all.Wait()
	if answers[0].Status+answers[1].Status != 200+202 {
		t.Fatalf("got %d %s and %d %s", answers[0].Status, answers[0].Body, answers[1].Status, answers[1].Body)
	}
	canonical := strings.Replace(request, `"duration":"PT2H"`, `"duration":"PT2H","start":"now"`, 1)
	var order Order
	if a := app.Post(t, "/v1/launch", canonical); a.Status != 200 {
		t.Fatalf("a third time: got %d %s", a.Status, a.Body)
	} else if a.JSON(t, &order); order.Lease == nil || order.Lease.Status != domain.LeasePending ||
		order.Lease.End.Sub(order.Lease.Start) != 2*time.Hour {
		t.Fatalf("the answer is %s", a.Body)
	}
	checkTrust(t, p, order.Lease.End)
	app.Get(t, "/v1/launch/"+id).JSON(t, &order)
	for _, i := range order.Instances {
		if i.LeaseID == nil || *i.LeaseID != order.Lease.ID {
			t.Errorf("an instance is %+v", i)
		}
	}
	for sql, want := range map[string]int{
		`select count(*)::int from leases where order_id is not null and name = 'course' and on_end = 'stop'
		 and before_end = '10 min' and due_at <= clock_timestamp()`: 1,
		`select count(*)::int from reservations r join instances i on i.id = r.instance_id and i.lease_id = r.lease_id`: 2,
		`select count(*)::int from connections where lease_id is not null and kind = 'trust' and usable_by = '{}'`:      1,
		`select count(*)::int from connections`:      1,
		`select count(*)::int from trusts_to_revoke`: 0,
		`select count(distinct subject)::int from events where type = '` + domain.InstanceEvent + `'
		 and data->>'lease_id' = (select id::text from leases)`: 2,
		`select count(*)::int from events where type = '` + domain.LeaseEvent + `'`: 1,
	} {
		if got := testkit.Scalar[int](t, rows, sql); got != want {
			t.Errorf("%s: got %d, want %d", sql, got, want)
		}
	}
	// An order that is refused when it is stored leaves no trust.
	taken := body(t, object{"instances": []object{{"id": order.Instances[0].ID}}, "lease": object{"duration": "PT1H"}})
	if a := app.Post(t, "/v1/launch", taken); a.Status != 409 || !testkit.Names(t, a, "instances[0].id") {
		t.Errorf("an id that is taken: got %d %s", a.Status, a.Body)
	}
	checkTrust(t, p, order.Lease.End)
	if n := testkit.Scalar[int](t, rows, "select count(*)::int from trusts_to_revoke"); n != 0 {
		t.Errorf("%d trusts are announced still", n)
	}
}

// TestLeaseRejected names the field of what is wrong with a lease, in a dry run and a launch alike.
func TestLeaseRejected(t *testing.T) {
	t.Parallel()
	p, app, rows := startLeasing(t, map[string]string{"LEASES_LONGEST": "48h"})
	past, soon := time.Now().Add(-time.Hour).Format(time.RFC3339), time.Now().Add(time.Hour).Format(time.RFC3339)
	hints := func(hints object) object { return object{"scheduler_hints": hints} }
	for name, tc := range map[string]struct {
		changes object
		field   string
	}{
		"no end":          {object{"lease": object{}}, "lease.end"},
		"two ends":        {object{"lease": object{"end": "2099-01-01T00:00:00Z", "duration": "P1D"}}, "lease.duration"},
		"a past end":      {object{"lease": object{"end": past}}, "lease.end"},
		"no offset":       {object{"lease": object{"end": "2099-01-01T00:00:00"}}, "lease.end"},
		"no duration":     {object{"lease": object{"duration": "2 days"}}, "lease.duration"},
		"too long":        {object{"lease": object{"duration": "P3D"}}, "lease.duration"},
		"a long warning":  {object{"lease": object{"duration": "PT1H", "before_end": "PT2H"}}, "lease.before_end"},
		"an unknown end":  {object{"lease": object{"duration": "PT1H", "on_end": "burn"}}, "lease.on_end"},
		"a blank name":    {object{"lease": object{"duration": "PT1H", "name": " "}}, "lease.name"},
		"stopped":         {object{"lease": object{"duration": "PT1H"}, "start": false}, "start"},
		"an unknown term": {object{"lease": object{"duration": "PT1H", "until": "x"}}, "lease.until"},
		"a connection": {
			object{"lease": object{"duration": "PT1H"}, "connection_id": uuid.NewString()}, "lease",
		},
		"no end, as hints":      {hints(object{"lease_name": "x"}), "scheduler_hints.lease_end"},
		"a past end, as hints":  {hints(object{"lease_end": past}), "scheduler_hints.lease_end"},
		"no offset, as hints":   {hints(object{"lease_end": "2099-01-01T00:00:00"}), "scheduler_hints.lease_end"},
		"too long, as hints":    {hints(object{"lease_end": "2099-01-01T00:00:00Z"}), "scheduler_hints.lease_end"},
		"no start, as hints":    {hints(object{"lease_start": "soon", "lease_end": soon}), "scheduler_hints.lease_start"},
		"a list, as hints":      {hints(object{"lease_end": []string{soon}}), "scheduler_hints.lease_end"},
		"a blank name, as hint": {hints(object{"lease_name": " ", "lease_end": soon}), "scheduler_hints.lease_name"},
		"hints and a block": {
			object{"lease": object{"duration": "PT1H"}, "scheduler_hints": object{"lease_end": soon}}, "scheduler_hints",
		},
		"of one server": {
			object{"instances": []object{hints(object{"lease_end": soon})}}, "instances[0].scheduler_hints.lease_end",
		},
	} {
		t.Run(name, func(t *testing.T) {
			if a := app.Post(t, "/v1/launch", body(t, tc.changes)); a.Status != 400 || !testkit.Names(t, a, tc.field) {
				t.Errorf("got %d %s, want 400 that names %s", a.Status, a.Body, tc.field)
			}
			a := app.Post(t, "/v1/launch?dry_run=true", body(t, tc.changes))
			if !strings.Contains(string(a.Body), `"field":"`+tc.field+`"`) {
				t.Errorf("dry run: got %d %s, want %s", a.Status, a.Body, tc.field)
			}
		})
	}
	if n := testkit.Scalar[int](t, rows, "select count(*)::int from leases"); n != 0 || len(p.Trusts(t)) != 0 {
		t.Errorf("there are %d leases and the trusts %v", n, p.Trusts(t))
	}
}

// TestLongDefaultLease gives every launch a lease that requests none.
func TestLongDefaultLease(t *testing.T) {
	t.Parallel()
	p, app, rows := startLeasing(t, map[string]string{"DEFAULT_LEASE": "P1M", "LEASES_PER_PROJECT": "1"})
	var order Order
	if a := app.Post(t, "/v1/launch?dry_run=true", body(t, nil)); !strings.Contains(string(a.Body), `"ok":true`) {
		t.Errorf("dry run: got %d %s", a.Status, a.Body)
	}
	a := app.Post(t, "/v1/launch", body(t, object{"name": "plain"}))
	if a.JSON(t, &order); a.Status != 202 || order.Lease == nil {
		t.Fatalf("got %d %s", a.Status, a.Body)
	}
	if l := order.Lease; l.End.Sub(l.Start) < 28*24*time.Hour || !l.End.Equal(monthAfter(l.Start)) {
		t.Errorf("the lease is %+v", l)
	}
	checkTrust(t, p, order.Lease.End)
	// An application credential can make no trust: the service account handles the lease.
	id, secret := p.AppCredential(t)
	a = app.As(p.AppCredentialToken(t, id, secret)).Post(t, "/v1/launch", body(t, object{"name": "delegated"}))
	if a.JSON(t, &order); a.Status != 202 || order.Lease == nil {
		t.Fatalf("an application credential: got %d %s", a.Status, a.Body)
	}
	// Nothing starts a server that is launched stopped: its lease is active immediately.
	a = app.Post(t, "/v1/launch", body(t, object{"name": "stopped", "start": false}))
	if a.JSON(t, &order); a.Status != 202 || order.Lease == nil || order.Lease.Status != domain.LeaseActive {
		t.Errorf("stopped: got %d %s", a.Status, a.Body)
	}
	if got := testkit.Scalar[string](t, rows, `select concat_ws(' ', r.status, start_result, started_at is not null)
		from leases l join reservations r on r.lease_id = l.id where l.name = 'stopped'`); got != "active done t" {
		t.Errorf("the lease of a stopped server is %s", got)
	}
	const found = `
select string_agg(name || ' ' || on_end || ' ' || (connection_id is null)::text, ', ' order by id) from leases`
	got := testkit.Scalar[string](t, rows, found)
	if got != "plain shelve false, delegated shelve true, stopped shelve false" {
		t.Errorf("the leases are %s", got)
	}
	t.Log(got)
}

func monthAfter(start time.Time) time.Time {
	month, _ := domain.ParsePeriod("P1M")
	return month.AddTo(start)
}

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
			ID: uuid.New(), Type: domain.HostReservation, Request: &domain.HostRequest{Min: 1, Max: 1},
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
	if a.JSON(t, &order); a.Status != 202 || domain.Deref(order.ReservationID) != r.ID {
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
