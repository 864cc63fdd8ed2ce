package runconnections

import (
	"context"
	"maps"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/postgres"
	"github.com/cloudfn/cloudfn/shared/testkit"
)

// counted stands before Keystone and counts the logins.
func counted(t *testing.T) (authURL string, logins *atomic.Int64) {
	t.Helper()
	logins = &atomic.Int64{}
	at, _ := testkit.Through(t, sandbox(t).IdentityURL(), func(r *http.Request) {
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

// trustThere says whether Keystone knows the trust, by its id and in its list.
func (w *world) trustThere(t *testing.T, id string) bool {
	t.Helper()
	session, _ := w.member(t)
	err := session.KnowsTrust(t.Context(), id)
	listed := testkit.HasTrust(t, id)
	if (err == nil) != listed || err != nil && apperr.CodeOf(err) != apperr.NotFound {
		t.Errorf("the trust is listed: %t, and looked up: %v", listed, err)
	}
	return listed
}

// TestTrustsAreTakenBack when a connection's time is over, when it was not used for long, and when its owner has ended it; what
// waits is given up then.
func TestTrustsAreTakenBack(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	p := w.function(t, nil)
	over, idle, deleted, kept := w.trust(t), w.trust(t), w.trust(t), w.trust(t)
	order := w.place(t, over, 2, nil)
	action := w.ask(t, deleted, uuid.New(), domain.ActionRequest{Action: domain.Stop}, nil)
	w.exec(t, "update connections set expires_at = clock_timestamp() where id = $1", over.ID)
	w.exec(t, "update connections set idle_timeout = '1 hour', created_at = created_at - interval '2 hours', expires_at = expires_at + interval '1 day' where id = $1", idle.ID)
	if _, err := (postgres.Connections{DB: w.db}).End(t.Context(), w.ID, deleted.ID, domain.ConnectionDeleted, "", false); err != nil {
		t.Fatal(err)
	}
	ticks(t, p, "the trusts are taken back", func() bool {
		return w.text(t, "select count(*)::text from connections where revoked") == "3"
	})
	for c, want := range map[*domain.Connection]string{&over: "expired its time is over", &idle: "expired it was not used for 1h0m0s", &deleted: "deleted ", &kept: "active "} {
		if got := w.text(t, "select status || ' ' || reason from connections where id = $1", c.ID); got != want {
			t.Errorf("got %s, want %s", got, want)
		}
		if there := w.trustThere(t, c.DelegationID); there != (c == &kept) {
			t.Errorf("%s: the trust is there: %t", want, there)
		}
	}
	w.ends(t, over.ID, "active expired")
	got := w.finish(t, p, order.ID)
	if i := got.Instances[1]; got.Status != domain.OrderFailed || i.Problem == nil || i.Problem.Code != "forbidden" || !strings.Contains(i.Problem.Detail, "its time is over") {
		t.Errorf("the order is %s: %+v", got.Status, i.Problem)
	}
	wants(t, w.done(t, p, action), "forbidden")
	if len(w.Servers(t)) != 0 {
		t.Error("servers were made all the same")
	}
}

// TestTrustThatIsGoneAlready in Keystone needs not be taken back.
func TestTrustThatIsGoneAlready(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	c := w.trust(t)
	session, _ := w.member(t)
	if err := session.DeleteTrust(t.Context(), c.DelegationID); err != nil {
		t.Fatal(err)
	}
	if _, err := (postgres.Connections{DB: w.db}).End(t.Context(), w.ID, c.ID, domain.ConnectionDeleted, "", false); err != nil {
		t.Fatal(err)
	}
	tick(t, w.function(t, nil))
	if revoked := w.text(t, "select revoked::text from connections"); revoked != "true" {
		t.Error("it is still to be taken back")
	}
}

func tick(t *testing.T, p *testkit.Client) {
	t.Helper()
	if a := p.Tick(t, "run-connections"); a.Status != 204 {
		t.Fatalf("got %d %s", a.Status, a.Body)
	}
}

// TestLost: a credential that was revoked and a trust whose user has lost the role. That is told once, nobody logs in with them again,
// and what waits fails. The logins are counted on their way to Keystone.
func TestLost(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	keystone, logins := counted(t)
	p := w.function(t, accountAt(t, keystone, nil))
	good, revoked, roleless := w.credential(t, ""), w.credential(t, ""), w.trust(t)
	w.DropAppCredential(t, revoked.DelegationID)
	w.Grant(t, w.UserID, "reader") // without any role the user could not look at his trusts any more
	order, stop := w.place(t, revoked, 1, nil), w.ask(t, revoked, uuid.New(), domain.ActionRequest{Action: domain.Stop}, nil)
	w.RemoveRole(t, w.UserID, "member")
	start := w.ask(t, roleless, uuid.New(), domain.ActionRequest{Action: domain.Start}, nil)
	got := w.finish(t, p, order.ID)
	if i := got.Instances[0]; got.Status != domain.OrderFailed || i.Problem == nil || i.Problem.Code != "delegation_lost" {
		t.Errorf("the order is %s: %+v", got.Status, i.Problem)
	}
	wants(t, w.done(t, p, stop), "delegation_lost")
	wants(t, w.done(t, p, start), "delegation_lost")
	// The trust is still in Keystone: it would work again with the role.
	for want, c := range map[string]domain.Connection{"lost true true": revoked, "lost true false": roleless} {
		w.ends(t, c.ID, "active lost")
		row := w.text(t, "select status || ' ' || (secret is null)::text || ' ' || revoked::text from connections where id = $1", c.ID)
		if row != want {
			t.Errorf("%s is %s, want %s", c.Kind, row, want)
		}
	}
	w.exec(t, "update connections set not_before = clock_timestamp() + interval '1 hour' where status = 'lost'") // the trust is not tried meanwhile
	// Each twice, because Keystone's refusal counts when it stays: one login with the credential; the account's own, and with the trust, twice,
	// because the first may be the account's fault. And those of the attempts to take the trust back.
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

// TestOurOwnFault loses nothing: a service account that cannot log in, one that is not the trustee, a key that is not the one, and a
// Keystone that is away. Once it is mended the work is done.
func TestOurOwnFault(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	trust, credential := w.trust(t), w.credential(t, "")
	one := w.ask(t, trust, uuid.New(), domain.ActionRequest{Action: domain.Stop}, nil)
	two := w.ask(t, credential, uuid.New(), domain.ActionRequest{Action: domain.Stop}, nil)
	w.exec(t, "update connections set failures = 5") // so that they are left alone for longer than a slow Keystone may take below
	keystone, _ := counted(t)
	away := testkit.Redirect(t)
	gone := away.Env(t, "collector")
	away.Close()
	for name, env := range map[string]map[string]string{
		"password": accountAt(t, keystone, map[string]string{"OS_PASSWORD": "wrong", "CONNECTION_PUBLIC_KEY": "", "CONNECTION_PRIVATE_KEY": otherKey}),
		"trustee":  {"OS_CLOUD": "alt", "CONNECTION_PUBLIC_KEY": "", "CONNECTION_PRIVATE_KEY": otherKey},
		"away":     gone,
	} {
		w.exec(t, "update connections set not_before = null")
		tick(t, w.function(t, env))
		for _, c := range []domain.Connection{trust, credential} {
			if got := w.text(t, "select status || ' ' || (not_before > clock_timestamp())::text from connections where id = $1", c.ID); got != "active true" {
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
	if n := w.text(t, "select string_agg(failures::text || coalesce(silent_since::text, ''), ' ') from connections"); n != "0 0" {
		t.Errorf("failures: %s", n)
	}
}

// otherKey is a private key that nothing was sealed to.
const otherKey = "sealkey_UJetRWiZuBNDBaI4ZPonx22-9LUuFDyXUHdtPy3TnnQ"

// TestAccessRules that do not allow a call: the piece of work fails with words of that, and the connection stays.
func TestAccessRules(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	c := w.credential(t, "",
		testkit.AccessRule{Service: "compute", Method: "GET", Path: "/v2.1/servers/*"}, testkit.AccessRule{Service: "compute", Method: "GET", Path: "/v2.1/servers/detail"})
	p := w.function(t, nil)
	server := w.Boot(t, "ruled", 1)[0]
	id := uuid.New()
	wants(t, w.done(t, p, w.ask(t, c, id, domain.ActionRequest{Action: domain.Connect}, func(a *domain.DelegatedAction) { a.ServerID = server.ID })), "")
	stop := w.done(t, p, w.ask(t, c, id, domain.ActionRequest{Action: domain.Stop}, nil))
	wants(t, stop, "forbidden")
	if !strings.Contains(stop.Problem.Detail, "access rules") {
		t.Errorf("it says %s", stop.Problem.Detail)
	}
	order := w.finish(t, p, w.place(t, c, 1, nil).ID)
	if i := order.Instances[0]; order.Status != domain.OrderFailed || i.Problem.Code != "forbidden" || !strings.Contains(i.Problem.Detail, "access rules") {
		t.Errorf("the order is %s: %+v", order.Status, i.Problem)
	}
	if got := w.status(t, c); got != "active" {
		t.Errorf("the connection is %s", got)
	}
}

// TestPermissions are asked for again before anything is done.
func TestPermissions(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	c := w.trust(t)
	p := w.function(t, nil)
	server := w.Boot(t, "permitted", 1)[0]
	id := uuid.New()
	connect := w.done(t, p, w.ask(t, c, id, domain.ActionRequest{Action: domain.Connect}, func(a *domain.DelegatedAction) { a.ServerID = server.ID }))
	wants(t, connect, "")
	w.ends(t, id, "active")
	got := w.text(t, "select origin || ' ' || server_id || ' ' || (spec->>'ram_mb') || ' ' || (spec->>'image_id') from instances")
	ram := w.text(t, "select f->>'ram_mb' from connections, jsonb_array_elements(flavors) f where f->>'id' = $1", testkit.Sandbox(t).FlavorID)
	if got != "connected "+server.ID+" "+ram+" "+testkit.Sandbox(t).ImageID {
		t.Errorf("the instance is %s", got)
	}
	for again, want := range map[uuid.UUID]string{id: "", uuid.New(): "conflict"} { // the instance keeps its id
		wants(t, w.done(t, p, w.ask(t, c, again, domain.ActionRequest{Action: domain.Connect}, func(a *domain.DelegatedAction) { a.ServerID = server.ID })), want)
	}
	stranger := testkit.NewProject(t).Boot(t, "strange", 1)[0]
	wants(t, w.done(t, p, w.ask(t, c, uuid.New(), domain.ActionRequest{Action: domain.Connect}, func(a *domain.DelegatedAction) { a.ServerID = stranger.ID })), "not_found")
	w.exec(t, `update connections set actions = '{connect,start}', quota = '{"instances":1}'`)
	wants(t, w.done(t, p, w.ask(t, c, id, domain.ActionRequest{Action: domain.Stop}, nil)), "forbidden")
	second := w.Boot(t, "second", 1)[0]
	wants(t, w.done(t, p, w.ask(t, c, uuid.New(), domain.ActionRequest{Action: domain.Connect}, func(a *domain.DelegatedAction) { a.ServerID = second.ID })), "quota_exceeded")
	wants(t, w.done(t, p, w.ask(t, c, id, domain.ActionRequest{Action: domain.Start}, nil)), "") // it runs already
}

// TestEndedSinceItWasListed: an action that waited while its connection was deleted is not done, though the session is still good.
// There is no cloud here that could be asked.
func TestEndedSinceItWasListed(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	c := w.connect(t, func(c *domain.Connection) { c.Kind, c.DelegationID = domain.TrustConnection, "none" })
	a := w.ask(t, c, uuid.New(), domain.ActionRequest{Action: domain.Delete}, nil)
	w.exec(t, "update connections set status = 'deleted', reason = 'it was deleted' where id = $1", c.ID)
	s := &service{clock: w.db, delegations: postgres.Delegations{DB: w.db}, cloud: newSessions(nil)}
	s.cloud.login = func(context.Context) (account, error) { return nil, apperr.New(apperr.Unavailable, "it was asked") }
	if done, err := s.step(t.Context(), c, a); done || apperr.CodeOf(err) != apperr.Forbidden {
		t.Errorf("done is %t, %v", done, err)
	}
}

// TestCredentialThatEnds while an order waits, and its connection does not: the order fails, and the connection is lost. First it is used
// while it is good.
func TestCredentialThatEnds(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	p := w.function(t, nil)
	end := time.Now().Add(20 * time.Second).UTC()
	c := w.credentialUntil(t, end)
	wants(t, w.done(t, p, w.ask(t, c, uuid.New(), domain.ActionRequest{Action: domain.Stop}, nil)), "not_found") // there is no such instance, which only a good connection can say
	if !time.Now().Before(end) {
		t.Fatal("the machine is too slow for this test: the credential has ended before it was used")
	}
	time.Sleep(time.Until(end.Add(time.Second)))
	order := w.finish(t, p, w.place(t, c, 1, nil).ID)
	if i := order.Instances[0]; order.Status != domain.OrderFailed || i.Problem == nil || i.Problem.Code != "delegation_lost" {
		t.Errorf("the order is %s: %+v", order.Status, i.Problem)
	}
	w.ends(t, c.ID, "active lost")
}
