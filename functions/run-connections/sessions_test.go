package runconnections

import (
	"context"
	"maps"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/testkit"
)

// counted stands before Keystone and counts the logins.
func counted(t *testing.T) (authURL string, logins *atomic.Int64) {
	t.Helper()
	logins = &atomic.Int64{}
	at, _ := testkit.Intercept(t, sandbox(t).IdentityURL(), func(r *http.Request) {
		if r.Method == http.MethodPost && strings.HasSuffix(r.URL.Path, "/auth/tokens") {
			logins.Add(1)
		}
	})
	return strings.TrimSuffix(at, "/v3") + "/v3", logins
}

// accountAt is the environment of a process that logs in at authURL.
func accountAt(t *testing.T, authURL string, more map[string]string) map[string]string {
	t.Helper()
	env := testkit.RedirectTo(t, nil).Env(t, "collector")
	env["OS_AUTH_URL"] = authURL
	maps.Copy(env, more)
	return env
}

// trustThere reports whether Keystone knows the trust, by its id and in its list.
func (w *world) trustThere(t *testing.T, id string) bool {
	t.Helper()
	session, _ := w.member(t)
	err := session.CheckTrust(t.Context(), id)
	listed := testkit.HasTrust(t, id)
	if (err == nil) != listed || err != nil && apperr.CodeOf(err) != apperr.NotFound {
		t.Errorf("the trust is listed: %t, and looked up: %v", listed, err)
	}
	return listed
}

func tick(t *testing.T, p *testkit.Client) {
	t.Helper()
	if a := p.Tick(t, "run-connections"); a.Status != 204 {
		t.Fatalf("got %d %s", a.Status, a.Body)
	}
}

// TestConnectionIsLost revokes one connection's credential and removes the role of another's user. Each loss is one
// event, no one logs in with them again, and waiting work fails. The logins are counted on their way to Keystone.
func TestConnectionIsLost(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	keystone, logins := counted(t)
	p := w.function(t, accountAt(t, keystone, nil))
	w.pauseForAnHour(t, "connections") // the trust is not tried again meanwhile
	good, revoked, roleless := w.credential(t, ""), w.credential(t, ""), w.trust(t)
	w.DropAppCredential(t, revoked.DelegationID)
	w.Grant(t, w.UserID, "reader") // without any role the user could not look at his trusts any more
	order, stop := w.place(t, revoked, 1, nil), w.act(t, revoked, uuid.New(), domain.ActionRequest{Action: domain.Stop},
		nil)
	w.RemoveRole(t, w.UserID, "member")
	start := w.act(t, roleless, uuid.New(), domain.ActionRequest{Action: domain.Start}, nil)
	got := w.finish(t, p, order.ID)
	if i := got.Instances[0]; got.Status != domain.OrderFailed || i.Problem == nil ||
		i.Problem.Code != "delegation_lost" {
		t.Errorf("the order is %s: %+v", got.Status, i.Problem)
	}
	wants(t, w.done(t, p, stop), "delegation_lost")
	wants(t, w.done(t, p, start), "delegation_lost")
	// The trust is still in Keystone: it would work again with the role.
	for want, c := range map[string]domain.Connection{"lost true true": revoked, "lost true false": roleless} {
		w.ends(t, c.ID, "active lost")
		row := w.text(t, `select status || ' ' || (secret is null)::text || ' ' || revoked::text from connections
  where id = $1`, c.ID)
		if row != want {
			t.Errorf("%s is %s, want %s", c.Kind, row, want)
		}
	}
	// Keystone has to reject a delegation twice, so each of these happens twice: one login with the credential, and the
	// account's own login and two with the trust, because the account may be at fault the first time. The attempts to
	// revoke the trust log in, too.
	if n := logins.Load(); n > 9+3 {
		t.Errorf("there were %d logins", n)
	}
	before := logins.Load()
	for range 3 {
		tick(t, p)
	}
	if n := logins.Load() - before; n != 0 {
		t.Errorf("%d logins with what is lost", n)
	}
	if got := w.status(t, good); got != "active" {
		t.Errorf("the good one is %s", got)
	}
}

// TestLongOwnFaultLosesNoConnection: no connection is lost when the service account cannot log in or is not the
// trustee, when the private key is another, or when Keystone is unavailable. The work is done once that is repaired.
func TestLongOwnFaultLosesNoConnection(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	trust, credential := w.trust(t), w.credential(t, "")
	one := w.act(t, trust, uuid.New(), domain.ActionRequest{Action: domain.Stop}, nil)
	two := w.act(t, credential, uuid.New(), domain.ActionRequest{Action: domain.Stop}, nil)
	// so that they are left alone for longer than a slow Keystone may take below
	w.exec(t, "update connections set failures = 5")
	keystone, _ := counted(t)
	unavailable := testkit.Redirect(t)
	gone := unavailable.Env(t, "collector")
	unavailable.Close()
	for name, env := range map[string]map[string]string{
		"password": accountAt(t, keystone, map[string]string{
			"OS_PASSWORD": "wrong", "CONNECTION_PUBLIC_KEY": "",
			"CONNECTION_PRIVATE_KEY": otherKey,
		}),
		"trustee":     {"OS_CLOUD": "alt", "CONNECTION_PUBLIC_KEY": "", "CONNECTION_PRIVATE_KEY": otherKey},
		"unavailable": gone,
	} {
		w.exec(t, "update connections set not_before = null")
		tick(t, w.function(t, env))
		for _, c := range []domain.Connection{trust, credential} {
			if got := w.text(t, "select status || ' ' || (not_before > clock_timestamp())::text from connections where id = $1",
				c.ID); got != "active true" {
				t.Errorf("%s: %s is %s", name, c.Kind, got)
			}
		}
	}
	if n := w.text(t, "select string_agg(failures::text, ' ') from connections"); n != "8 8" {
		t.Errorf("failures: %s", n)
	}
	if a := w.action(t, one); a.Status != domain.ActionRunning {
		t.Errorf("the action is %s", a.Status)
	}
	w.exec(t, "update connections set not_before = null")
	p := w.function(t, nil)
	wants(t, w.done(t, p, one), "not_found") // there is no such instance, which only a good connection can say
	wants(t, w.done(t, p, two), "not_found")
	if n := w.text(t, `select string_agg(failures::text || coalesce(silent_since::text, ''), ' ') from connections`); n != "0 0" {
		t.Errorf("failures: %s", n)
	}
}

// otherKey is a private key that nothing was sealed to.
const otherKey = "sealkey_UJetRWiZuBNDBaI4ZPonx22-9LUuFDyXUHdtPy3TnnQ"

// TestLongAccessRules that do not allow a call fail the order or action with that reason. The connection stays active.
func TestLongAccessRules(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	c := w.credential(t, "",
		testkit.AccessRule{Service: "compute", Method: "GET", Path: "/v2.1/servers/*"}, testkit.AccessRule{
			Service: "compute",
			Method:  "GET", Path: "/v2.1/servers/detail",
		})
	p := w.function(t, nil)
	server := w.Boot(t, "ruled", 1)[0]
	id := uuid.New()
	wants(t, w.done(t, p, w.act(t, c, id, domain.ActionRequest{Action: domain.Connect},
		func(a *domain.DelegatedAction) { a.ServerID = server.ID })), "")
	stop := w.done(t, p, w.act(t, c, id, domain.ActionRequest{Action: domain.Stop}, nil))
	wants(t, stop, "forbidden")
	if !strings.Contains(stop.Problem.Detail, "access rules") {
		t.Errorf("it says %s", stop.Problem.Detail)
	}
	order := w.finish(t, p, w.place(t, c, 1, nil).ID)
	if i := order.Instances[0]; order.Status != domain.OrderFailed || i.Problem.Code != "forbidden" ||
		!strings.Contains(i.Problem.Detail, "access rules") {
		t.Errorf("the order is %s: %+v", order.Status, i.Problem)
	}
	if got := w.status(t, c); got != "active" {
		t.Errorf("the connection is %s", got)
	}
}

// TestLongPermissions are checked again before anything is done.
func TestLongPermissions(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	c := w.trust(t)
	p := w.function(t, nil)
	server := w.Boot(t, "permitted", 1)[0]
	id := uuid.New()
	connect := w.done(t, p, w.act(t, c, id, domain.ActionRequest{Action: domain.Connect},
		func(a *domain.DelegatedAction) { a.ServerID = server.ID }))
	wants(t, connect, "")
	w.ends(t, id, "active")
	got := w.text(t, `select origin || ' ' || server_id || ' ' || (spec->>'ram_mb') || ' ' || (spec->>'image_id')
  from instances`)
	ram := w.text(t, "select f->>'ram_mb' from connections, jsonb_array_elements(flavors) f where f->>'id' = $1",
		testkit.Sandbox(t).FlavorID)
	if got != "connected "+server.ID+" "+ram+" "+testkit.Sandbox(t).ImageID {
		t.Errorf("the instance is %s", got)
	}
	for again, want := range map[uuid.UUID]string{id: "", uuid.New(): "conflict"} { // the instance keeps its id
		wants(t, w.done(t, p, w.act(t, c, again, domain.ActionRequest{Action: domain.Connect},
			func(a *domain.DelegatedAction) { a.ServerID = server.ID })), want)
	}
	stranger := testkit.NewProject(t).Boot(t, "strange", 1)[0]
	wants(t, w.done(t, p, w.act(t, c, uuid.New(), domain.ActionRequest{Action: domain.Connect},
		func(a *domain.DelegatedAction) { a.ServerID = stranger.ID })), "not_found")
	w.exec(t, `update connections set actions = '{connect,start}', quota = '{"instances":1}'`)
	wants(t, w.done(t, p, w.act(t, c, id, domain.ActionRequest{Action: domain.Stop}, nil)), "forbidden")
	second := w.Boot(t, "second", 1)[0]
	wants(t, w.done(t, p, w.act(t, c, uuid.New(), domain.ActionRequest{Action: domain.Connect},
		func(a *domain.DelegatedAction) { a.ServerID = second.ID })), "quota_exceeded")
	wants(t, w.done(t, p, w.act(t, c, id, domain.ActionRequest{Action: domain.Start}, nil)), "") // it runs already
}

// TestConnectionEndsAfterListing: an action is not done if its connection was deleted while it waited, even if the
// session is still valid. The test has no cloud, so a call to one fails.
func TestConnectionEndsAfterListing(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	c := w.connect(t, func(c *domain.Connection) { c.Kind, c.DelegationID = domain.TrustConnection, "none" })
	a := w.act(t, c, uuid.New(), domain.ActionRequest{Action: domain.Delete}, nil)
	w.exec(t, "update connections set status = 'deleted', reason = 'it was deleted' where id = $1", c.ID)
	s := newService(w.db, func(...string) {})
	s.cloud.Login = func(context.Context) (account, error) {
		return nil, apperr.New(apperr.Unavailable, "Keystone was called")
	}
	if done, err := s.step(t.Context(), c, &a); done || apperr.CodeOf(err) != apperr.Forbidden {
		t.Errorf("done is %t, %v", done, err)
	}
}

// TestLongCredentialExpires while an order waits, and its connection does not: the order fails, and the connection is
// lost. First it is used while it is good. The second process has no token from before.
func TestLongCredentialExpires(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	c := w.credentialUntil(t, time.Now().Add(time.Hour).UTC())
	// only a valid credential gets as far as finding that the instance does not exist
	wants(t, w.done(t, w.function(t, nil), w.act(t, c, uuid.New(), domain.ActionRequest{Action: domain.Stop}, nil)),
		"not_found")
	testkit.Expire(t, c.DelegationID)
	p := w.function(t, nil)
	order := w.finish(t, p, w.place(t, c, 1, nil).ID)
	if i := order.Instances[0]; order.Status != domain.OrderFailed || i.Problem == nil ||
		i.Problem.Code != "delegation_lost" {
		t.Errorf("the order is %s: %+v", order.Status, i.Problem)
	}
	w.ends(t, c.ID, "active lost")
}

// TestLongConnectionLostWithCachedSession removes the role of trusts that were used already. Nova answers their tokens
// with 503, because Keystone answers Nova with 403. One event detects that, and ends the connections with their waiting
// orders and actions. It does not delay an action of another project's connection.
func TestLongConnectionLostWithCachedSession(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	other := &world{Project: testkit.NewProject(t), database: w.database, db: w.db}
	w.Grant(t, w.UserID, "reader")
	keystone, logins := counted(t)
	p := w.function(t, accountAt(t, keystone, nil))
	w.pauseForAnHour(t, "connections") // no trust is revoked a second time meanwhile
	healthy := other.trust(t)
	nothing := other.track(t, healthy)
	stop := func(w *world, c domain.Connection, instance uuid.UUID) domain.DelegatedAction {
		t.Helper()
		return w.act(t, c, instance, domain.ActionRequest{Action: domain.Stop}, nil)
	}
	wants(t, other.done(t, p, stop(other, healthy, nothing)), "not_found") // which only Nova says
	var lost []domain.Connection
	for range 3 {
		c := w.trust(t)
		wants(t, w.done(t, p, stop(w, c, w.track(t, c))), "not_found")
		lost = append(lost, c)
	}
	w.RemoveRole(t, w.UserID, "member")
	before := logins.Load()
	var orders []domain.Order
	for _, c := range lost {
		orders = append(orders, w.place(t, c, 1, nil))
	}
	var event sync.WaitGroup
	event.Go(func() { _, _ = p.TryTick(t, "run-connections") })
	testkit.Eventually(t, time.Minute, "the event has begun", func() bool { return logins.Load() > before })
	action := stop(other, healthy, nothing)
	testkit.Eventually(t, time.Minute, "the healthy one's action has ended", func() bool {
		return other.action(t, action).Status != domain.ActionRunning
	})
	event.Wait()
	for n, c := range lost {
		if got := w.status(t, c); got != "lost" {
			t.Errorf("the connection is %s", got)
		}
		w.ends(t, c.ID, "active lost")
		got := w.order(t, orders[n].ID)
		if i := got.Instances[0]; got.Status != domain.OrderFailed || i.Problem == nil ||
			i.Problem.Code != "delegation_lost" {
			t.Errorf("the order is %s: %+v", got.Status, i.Problem)
		}
	}
	// with each trust, twice before and twice after the pause, and the account's own
	if n := logins.Load() - before; n > 24 {
		t.Errorf("there were %d logins", n)
	}
	wants(t, other.action(t, action), "not_found")
}

// track stores an instance of the connection whose server Nova does not know.
func (w *world) track(t *testing.T, c domain.Connection) (instance uuid.UUID) {
	t.Helper()
	instance = uuid.New()
	w.exec(t, `insert into instances (project_id, id, position, name, server_id, state, raw_status, origin, connection_id)
values ($1, $2, 0, 'tracked', $3, 'active', 'ACTIVE', 'connected', $4)`, w.ID, instance, uuid.NewString(), c.ID)
	return instance
}
