package runconnections

import (
	"context"
	"fmt"
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

// fakeKeystone answers logins with trusts as the trusts' ids say, and counts them.
type fakeKeystone struct {
	session

	mu            sync.Mutex
	logins        map[string]int
	running, most int
}

func (f *fakeKeystone) WithTrust(_ context.Context, trust string) (session, error) {
	f.mu.Lock()
	f.logins[trust]++
	f.running++
	f.most = max(f.most, f.running)
	f.mu.Unlock()
	time.Sleep(20 * time.Millisecond)
	f.mu.Lock()
	defer f.mu.Unlock()
	f.running--
	switch trust {
	case "gone":
		return nil, apperr.New(apperr.Unauthenticated, "gone")
	case "away":
		return nil, apperr.New(apperr.Unavailable, "keystone cannot be reached")
	}
	return f, nil
}

func (f *fakeKeystone) CheckTrust(context.Context, string) error {
	return apperr.New(apperr.NotFound, "absent")
}

func (f *fakeKeystone) FindTrusts(context.Context, string, string, time.Time) ([]string, error) {
	return nil, nil
}

func (f *fakeKeystone) ActsAs() domain.ActsAs {
	return domain.ActsAs{Roles: []string{"member", "reader"}}
}

// TestChecksOfIdleConnections: each due connection is checked once with Keystone, a few at a time. A rejected one is
// lost, the roles of an accepted one are stored, and nothing changes while Keystone is away.
func TestChecksOfIdleConnections(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	made := map[string]domain.Connection{}
	for n := range 20 {
		id := fmt.Sprint("good", n)
		made[id] = w.connect(t, func(c *domain.Connection) { c.Kind, c.DelegationID = domain.TrustConnection, id })
	}
	for _, id := range []string{"gone", "away"} {
		made[id] = w.connect(t, func(c *domain.Connection) { c.Kind, c.DelegationID = domain.TrustConnection, id })
	}
	keystone := &fakeKeystone{logins: map[string]int{}}
	s := newService(w.db, func(...string) {})
	s.cloud.pause = time.Millisecond
	s.cloud.now, s.cloud.accepted = w.db.Now, s.accepted
	s.cloud.login = func(context.Context) (account, error) { return keystone, nil }
	run := func() {
		t.Helper()
		if err := s.run(t.Context(), newWorkers().batch()); err != nil {
			t.Fatal(err)
		}
	}
	run()
	if len(keystone.logins) != 0 {
		t.Errorf("new connections were checked: %v", keystone.logins)
	}
	w.exec(t, `update connections set next_check_at = next_check_at - interval '8 minutes',
  checked_at = checked_at - interval '8 minutes'`)
	run()
	run()
	for id, n := range keystone.logins {
		// a rejection may be the account's own fault, or last only a moment
		if want := map[bool]int{true: 4, false: 1}[id == "gone"]; n != want {
			t.Errorf("%s: %d logins, want %d", id, n, want)
		}
	}
	if len(keystone.logins) != len(made) || keystone.most > poolSize {
		t.Errorf("%d were checked, %d at once", len(keystone.logins), keystone.most)
	}
	for id, want := range map[string]string{
		"good7": `active true ["member", "reader"] `, "gone": `lost false ["member"] `,
		"away": `active false ["member"] keystone cannot be reached`,
	} {
		got := w.text(t, `select status || ' ' || (checked_at > clock_timestamp() - interval '2 minutes') || ' ' || (acts_as->>'roles') || ' ' ||
			case status when 'lost' then '' else check_error end from connections where id = $1`, made[id].ID)
		if got != want {
			t.Errorf("%s is %s, want %s", id, got, want)
		}
	}
	w.ends(t, made["gone"].ID, "active lost")
}

// requestedDuring is a Keystone during whose login a check is requested.
type requestedDuring struct {
	*fakeKeystone
	request func()
}

func (k requestedDuring) WithTrust(ctx context.Context, trust string) (session, error) {
	k.request()
	return k.fakeKeystone.WithTrust(ctx, trust)
}

// TestRequestDuringLateCheck: a check is requested while Keystone is asked, and the statement that records the answer
// is late. The answer is older than the request, so the check stays due.
func TestRequestDuringLateCheck(t *testing.T) {
	t.Parallel()
	w := fakes(t)
	store := postgres.Connections{DB: w.db}
	for _, trust := range []string{"good", "away"} {
		c := w.remote(t, newFakeCloud(t))
		w.exec(t, `update connections set kind = 'trust', delegation_id = $2, auth_url = '', secret = null,
  next_check_at = now() where id = $1`, c.ID, trust)
		c, isFound, err := postgres.Delegations{DB: w.db}.ClaimCheck(t.Context(), domain.RemoteCloud{}, checkClaim)
		if err != nil || !isFound {
			t.Fatal(isFound, err)
		}
		s := newService(w.db, func(...string) {})
		began, since, committed := time.Now(), time.Time{}, make(chan error, 1)
		keystone := requestedDuring{&fakeKeystone{logins: map[string]int{}}, func() {
			if since, err = store.RequestCheck(t.Context(), c.ProjectID, c.ID); err != nil {
				t.Error(err)
			}
			change, err := testkit.Pool(t, w.database).Begin(t.Context())
			if err == nil {
				_, err = change.Exec(t.Context(), "update connections set updated_at = updated_at where id = $1", c.ID)
			}
			if err != nil {
				t.Error(err)
				return
			}
			wait := 2*time.Since(began) + 50*time.Millisecond // for longer than the check takes
			time.AfterFunc(wait, func() { committed <- change.Commit(context.Background()) })
		}}
		s.cloud.login = func(context.Context) (account, error) { return keystone, nil }
		s.cloud.now, s.cloud.accepted = w.db.Now, s.accepted
		s.check(t.Context(), c)
		if err := <-committed; err != nil {
			t.Fatal(err)
		}
		if got := w.text(t, `select concat(next_check_at <= now(), greatest(checked_at, check_failed_at) < $2)
  from connections where id = $1`, c.ID, since); got != "tt" {
			t.Errorf("%s: it is due, and answered before the request: %s", trust, got)
		}
	}
}

// TestLongUnavailableService: Keystone accepts the delegation, and Nova answers 503. The order and the action are
// retried after pauses, and the connection stays active.
func TestLongUnavailableService(t *testing.T) {
	t.Parallel()
	w, f := fakes(t), newFakeCloud(t)
	c := w.remote(t, f)
	f.away = []string{c.ActsAs.ProjectID}
	instance := uuid.New()
	w.exec(t, `insert into instances (project_id, id, position, name, server_id, state, raw_status, origin, connection_id)
values ($1, $2, 0, 'tracked', $3, 'active', 'ACTIVE', 'connected', $4)`, w.ID, instance, uuid.NewString(), c.ID) // nothing else reads it
	stop := w.ask(t, c, instance, domain.ActionRequest{Action: domain.Stop}, nil)
	order := w.place(t, c, 1, nil)
	w.exec(t, "update orders set claim_id = null, claimed_until = null, updated_at = updated_at - interval '1 minute'")
	p := w.function(t, nil)
	tick(t, p)
	lists, logins := f.count("/compute/servers/detail"), f.count("/auth/tokens")
	gets := f.count("/compute/servers/") - lists
	t.Logf("one event sent %d lists, %d gets and %d logins", lists, gets, logins)
	if lists > 20 || gets > 20 || logins > 20 { // in 45 s; the transport sends some of them twice or three times
		t.Errorf("one event sent %d lists, %d gets and %d logins", lists, gets, logins)
	}
	if got := w.status(t, c); got != "active" || w.action(t, stop).Status != domain.ActionRunning ||
		w.order(t, order.ID).Status != domain.OrderRunning {
		t.Errorf("the connection is %s", got)
	}
	f.mu.Lock()
	f.away = nil
	f.mu.Unlock()
	wants(t, w.done(t, p, stop), "not_found")
	if log := strings.Count(w.eventsOf(t, c.ID), "lost"); log != 0 {
		t.Error("it was lost")
	}
}
