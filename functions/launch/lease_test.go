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

// TestLaunchWithLease launches with a lease, by two requests at once and then by a third: there is one lease and one
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
	past := time.Now().Add(-time.Hour).Format(time.RFC3339)
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

// TestLongDefaultLease gives every launch a lease that asks for none.
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
	// Nothing starts a server that is launched stopped: its lease is active at once.
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
