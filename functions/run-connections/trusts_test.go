package runconnections

import (
	"context"
	"fmt"
	"slices"
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

// TestTrustsAreRevoked when a connection expires, was idle for too long, or was ended by its owner. Its waiting work is
// abandoned then.
func TestTrustsAreRevoked(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	p := w.function(t, nil)
	over, idle, deleted, kept := w.trust(t), w.trust(t), w.trust(t), w.trust(t)
	order := w.place(t, over, 2, nil)
	action := w.act(t, deleted, uuid.New(), domain.ActionRequest{Action: domain.Stop}, nil)
	w.exec(t, "update connections set expires_at = clock_timestamp() where id = $1", over.ID)
	w.exec(t, `update connections set idle_timeout = '1 hour', created_at = created_at - interval '2 hours',
  expires_at = expires_at + interval '1 day' where id = $1`, idle.ID)
	if _, err := (postgres.Connections{DB: w.db}).End(t.Context(), w.ID, deleted.ID, domain.ConnectionDeleted, "",
		false); err != nil {
		t.Fatal(err)
	}
	ticks(t, p, "the trusts are revoked", func() bool {
		return w.text(t, "select count(*)::text from connections where revoked") == "3"
	})
	for c, want := range map[*domain.Connection]string{
		&over: "expired it has expired",
		&idle: "expired it was not used for 1h0m0s", &deleted: "deleted ", &kept: "active ",
	} {
		if got := w.text(t, "select status || ' ' || reason from connections where id = $1", c.ID); got != want {
			t.Errorf("got %s, want %s", got, want)
		}
		if there := w.trustThere(t, c.DelegationID); there != (c == &kept) {
			t.Errorf("%s: the trust is there: %t", want, there)
		}
	}
	w.ends(t, over.ID, "active expired")
	got := w.finish(t, p, order.ID)
	if i := got.Instances[1]; got.Status != domain.OrderFailed || i.Problem == nil || i.Problem.Code != "forbidden" ||
		!strings.Contains(i.Problem.Detail, "it has expired") {
		t.Errorf("the order is %s: %+v", got.Status, i.Problem)
	}
	wants(t, w.done(t, p, action), "forbidden")
	if len(w.Servers(t)) != 0 {
		t.Error("servers were made although the connection had ended")
	}
}

// TestRevokeDeletedTrust: a trust that was deleted in Keystone counts as revoked.
func TestRevokeDeletedTrust(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	c := w.trust(t)
	session, _ := w.member(t)
	if err := session.DeleteTrust(t.Context(), c.DelegationID); err != nil {
		t.Fatal(err)
	}
	if _, err := (postgres.Connections{DB: w.db}).End(t.Context(), w.ID, c.ID, domain.ConnectionDeleted, "",
		false); err != nil {
		t.Fatal(err)
	}
	tick(t, w.function(t, nil))
	if revoked := w.text(t, "select revoked::text from connections"); revoked != "true" {
		t.Error("it is still to be revoked")
	}
}

// countingAccount is a Keystone that takes a moment to delete a trust.
type countingAccount struct {
	session
	account
	deleted atomic.Int64
}

func (n *countingAccount) WithTrust(context.Context, string) (session, error) { return n, nil }
func (n *countingAccount) CheckTrust(context.Context, string) error           { return nil }

func (n *countingAccount) DeleteTrust(context.Context, string) error {
	time.Sleep(100 * time.Millisecond)
	n.deleted.Add(1)
	return nil
}

// TestLongManyConnectionsEndTogether: one event revokes all their trusts, although there are fewer workers than trusts.
// Ten minutes after their connection's end no one can delete them any more.
func TestLongManyConnectionsEndTogether(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	const many = 3 * poolSize
	for n := range many {
		w.connect(t, func(c *domain.Connection) {
			c.Kind, c.DelegationID = domain.TrustConnection, fmt.Sprint("trust", n)
		})
	}
	w.exec(t, "update connections set expires_at = clock_timestamp()")
	keystone := &countingAccount{}
	s := newService(w.db, func(...string) {})
	s.cloud.Login = func(context.Context) (account, error) { return keystone, nil }
	if err := s.run(t.Context(), newWorkers().batch()); err != nil {
		t.Fatal(err)
	}
	if left := w.text(t, "select count(*)::text from connections where not revoked"); left != "0" ||
		keystone.deleted.Load() != many {
		t.Errorf("%d of %d trusts were revoked, and %s connections wait", keystone.deleted.Load(), many, left)
	}
}

// TestEndOfActionWakesLeases: an action through a connection that a lease names ends. The lease continues immediately;
// no lease is woken for an instance without one.
func TestEndOfActionWakesLeases(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	c := w.connect(t, func(c *domain.Connection) { c.Kind, c.DelegationID = domain.TrustConnection, "none" })
	for _, lease := range []uuid.UUID{uuid.Nil, uuid.New()} {
		nova, s := w.withFailingNova()
		nova.server = domain.Server{ID: "s", Status: "SHUTOFF"}
		s.actions = postgres.Actions{DB: w.db}
		var woken []string
		s.wake = func(functions ...string) { woken = append(woken, functions...) }
		id := uuid.New()
		w.exec(t, `insert into instances (project_id, id, position, name, server_id, state, origin, connection_id, lease_id)
  values ($1, $2, 0, 'x', 's', 'stopped', 'launched', $3, nullif($4, '00000000-0000-0000-0000-000000000000'::uuid))`,
			w.ID, id, c.ID, lease)
		a := w.act(t, c, id, domain.ActionRequest{Action: domain.Stop}, nil)
		claim, taken, err := s.actions.Claim(t.Context(), w.ID, c.ID, time.Minute, 1)
		if err != nil || len(taken) != 1 {
			t.Fatal(taken, err)
		}
		s.workOnAction(t.Context(), c, claim, taken[0])
		a, err = s.actions.Get(t.Context(), domain.Filter{ProjectID: w.ID, ConnectionID: c.ID}, a.ID)
		if err != nil || a.Status != domain.ActionDone {
			t.Fatal(a, err)
		}
		if wakes := slices.Contains(woken, "run-leases"); wakes != (lease != uuid.Nil) {
			t.Errorf("the lease %s: woken are %q", lease, woken)
		}
		w.exec(t, "delete from instances where id = $1", id)
	}
}

// revocations are the statuses of the connection's revocation events, in their order.
func (w *world) revocations(t *testing.T, c domain.Connection) string {
	t.Helper()
	return w.text(t, `select coalesce(string_agg(data->>'status', ' ' order by seq), '') from events
where project_id = $1 and subject = $2 and type = 'cloudfn.connection.revocation.v1'`, w.ID, c.ID.String())
}

// there reports whether Keystone has the trust, as its trustee sees it.
func there(t *testing.T, c domain.Connection) bool {
	t.Helper()
	return testkit.HasTrust(t, c.DelegationID)
}

// retry ends the pauses of all revocations, and wakes the function.
func (w *world) retry(t *testing.T, p *testkit.Client) {
	t.Helper()
	w.exec(t, "update connections set not_before = null")
	tick(t, p)
}

// TestLongTrustOfDisabledUser: Keystone lets no one delete the trust of a disabled user. It stays on the list, whether
// its connection was deleted, expired or lost, and is deleted when the user is back. The owner gets one event for each
// of the two.
func TestLongTrustOfDisabledUser(t *testing.T) {
	t.Parallel()
	for name, unavailable := range map[string]struct{ leave, back func(*world) }{
		"disabled": {func(w *world) { w.Disable(t) }, func(w *world) { w.Enable(t) }},
		"no role":  {func(w *world) { w.Leave(t) }, func(w *world) { w.Grant(t, w.UserID, "member") }},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			p := w.function(t, nil)
			deleted, expired, lost := w.trust(t), w.trust(t), w.trust(t)
			unavailable.leave(w)
			if _, err := (postgres.Connections{DB: w.db}).End(t.Context(), w.ID, deleted.ID, domain.ConnectionDeleted,
				"it was deleted", false); err != nil {
				t.Fatal(err)
			}
			w.exec(t, "update connections set expires_at = clock_timestamp() where id = $1", expired.ID)
			start := w.act(t, lost, uuid.New(), domain.ActionRequest{Action: domain.Start}, nil)
			wants(t, w.done(t, p, start), "delegation_lost")
			w.retry(t, p)
			w.retry(t, p)
			for want, c := range map[string]domain.Connection{"deleted": deleted, "expired": expired, "lost": lost} {
				row := w.text(t, `select status || ' ' || revoked || ' ' || (not_before > clock_timestamp())
  from connections where id = $1`, c.ID)
				if events := w.revocations(t, c); row != want+" false true" || events != "pending" || !there(t, c) {
					t.Errorf("%s: while the user is absent: %s, events %q, in Keystone: %t", want, row, events,
						there(t, c))
				}
			}
			unavailable.back(w)
			w.retry(t, p)
			for _, c := range []domain.Connection{deleted, expired, lost} {
				if row := w.text(t, "select revoked::text from connections where id = $1", c.ID); row != "true" ||
					w.revocations(t, c) != "pending done" || there(t, c) {
					t.Errorf("when the user is back: revoked is %s, events %q, in Keystone: %t", row,
						w.revocations(t, c), there(t, c))
				}
			}
		})
	}
}

// TestLongTrustExpires while its user is absent: Keystone reports that it is deleted. The test moves the trust's end in
// both databases.
func TestLongTrustExpires(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	p := w.function(t, nil)
	end := time.Now().Add(time.Hour)
	id := w.Trust(t, testkit.Trustee(t), true, end)
	c := w.connect(t, func(c *domain.Connection) {
		c.Kind, c.DelegationID, c.TrustExpiresAt = domain.TrustConnection, id, end
	})
	w.Disable(t)
	if _, err := (postgres.Connections{DB: w.db}).End(t.Context(), w.ID, c.ID, domain.ConnectionDeleted,
		"it was deleted", false); err != nil {
		t.Fatal(err)
	}
	tick(t, p)
	if got := w.revocations(t, c); got != "pending" {
		t.Fatalf("before its end: %q", got)
	}
	testkit.Expire(t, id)
	w.exec(t, "update connections set trust_expires_at = clock_timestamp() - interval '1 min' where id = $1", c.ID)
	w.retry(t, p)
	if got := w.text(t, "select revoked::text from connections"); got != "true" || w.revocations(t, c) != "pending done" {
		t.Errorf("revoked is %s, events %q", got, w.revocations(t, c))
	}
}

// announced makes a trust as the function connections does when it dies before it has stored the connection.
func (w *world) announced(t *testing.T, c domain.Connection, until time.Time) (made domain.Trust, intent uuid.UUID) {
	t.Helper()
	session, who := w.member(t)
	intent = uuid.New()
	made, err := session.CreateTrust(t.Context(), who, testkit.Trustee(t), []string{"member"},
		until.Add(domain.TrustMargin), func(end time.Time) (bool, error) {
			return postgres.Connections{DB: w.db}.AnnounceTrust(t.Context(),
				domain.OldTrust{ID: intent, ProjectID: w.ID, ConnectionID: c.ID, UserID: w.UserID, ExpiresAt: end})
		})
	if err != nil {
		t.Fatal(err)
	}
	return made, intent
}

// retryTrusts makes all trusts without a connection due, and wakes the function.
func (w *world) retryTrusts(t *testing.T, p *testkit.Client) {
	t.Helper()
	w.exec(t, "update trusts_to_revoke set not_before = clock_timestamp()")
	tick(t, p)
}

// TestLongWorkContinuesWithNewTrust replaces a connection's trust while a session of the old one is cached. The old
// trust is revoked, the action is done with the new one, and the connection is not lost.
func TestLongWorkContinuesWithNewTrust(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	p := w.function(t, nil)
	c := w.trust(t)
	// opens and caches a session
	wants(t, w.done(t, p, w.act(t, c, uuid.New(), domain.ActionRequest{Action: domain.Stop}, nil)), "not_found")
	made, intent := w.announced(t, c, time.Now().Add(2*time.Hour))
	after := c
	after.DelegationID, after.TrustExpiresAt, after.TrustIntent = made.ID, made.ExpiresAt, intent
	after.ExpiresAt = time.Now().Add(2 * time.Hour)
	before, err := postgres.Delegations{DB: w.db}.Current(t.Context(), w.ID, c.ID)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := (postgres.Connections{DB: w.db}).Change(t.Context(), before, after); err != nil {
		t.Fatal(err)
	}
	tick(t, p)
	if !there(t, c) {
		t.Error("the old trust is revoked immediately: calls that began with it fail")
	}
	w.retryTrusts(t, p)
	if there(t, c) || !w.trustThere(t, made.ID) || w.text(t, "select count(*)::text from trusts_to_revoke") != "0" {
		t.Error("the old trust stays, or the new one does not")
	}
	wants(t, w.done(t, p, w.act(t, c, uuid.New(), domain.ActionRequest{Action: domain.Stop}, nil)), "not_found")
	if got := w.status(t, c); got != "active" {
		t.Errorf("the connection is %s", got)
	}
	if _, err := (postgres.Connections{DB: w.db}).End(t.Context(), w.ID, c.ID, domain.ConnectionDeleted, "",
		false); err != nil {
		t.Fatal(err)
	}
	tick(t, p)
	if w.trustThere(t, made.ID) {
		t.Error("the new trust stays")
	}
}

// TestTrustOfDeadProcessIsRevoked: the trust is found by its end and revoked. The user's other trusts stay, and a trust
// that was announced but never made is forgotten.
func TestTrustOfDeadProcessIsRevoked(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	p := w.function(t, nil)
	c := w.trust(t)
	made, _ := w.announced(t, c, time.Now().Add(time.Hour))
	never := domain.OldTrust{
		ID: uuid.New(), ProjectID: w.ID, ConnectionID: c.ID, UserID: w.UserID,
		ExpiresAt: time.Now().Add(time.Hour),
	}
	if isFree, err := (postgres.Connections{DB: w.db}).AnnounceTrust(t.Context(), never); err != nil || !isFree {
		t.Fatal(isFree, err)
	}
	w.exec(t, `insert into trusts_to_revoke (id, project_id, connection_id, user_id, trust_expires_at, not_before)
select gen_random_uuid(), project_id, id, user_id, trust_expires_at, clock_timestamp() + interval '1 hour'
  from connections`) // its second is its own trust's
	tick(t, p)
	if !w.trustThere(t, made.ID) {
		t.Error("the trust is revoked while its connection may still be stored")
	}
	w.retryTrusts(t, p)
	if w.trustThere(t, made.ID) || !w.trustThere(t, c.DelegationID) {
		t.Error("the trust without a connection stays, or the connection's own is revoked")
	}
	if left := w.text(t, "select count(*)::text from trusts_to_revoke"); left != "0" {
		t.Errorf("%s are still on the list", left)
	}

	made, _ = w.announced(t, c, time.Now().Add(time.Hour))
	w.pauseForAnHour(t, "trusts_to_revoke")
	w.Disable(t) // then Keystone lets no one delete it
	w.retryTrusts(t, p)
	if left := w.text(t, "select count(*)::text from trusts_to_revoke where not_before > clock_timestamp()"); left != "1" {
		t.Errorf("%s are tried later", left)
	}
	w.Enable(t)
	w.retryTrusts(t, p)
	if left := w.text(t, "select count(*)::text from trusts_to_revoke"); left != "0" || w.trustThere(t, made.ID) {
		t.Errorf("%s are still on the list, in Keystone: %t", left, w.trustThere(t, made.ID))
	}
}

// TestSuspendedConnectionWaits: a waiting action is not done while its connection is suspended, and is done when the
// connection is resumed.
func TestSuspendedConnectionWaits(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	p := w.function(t, nil)
	c, store := w.credential(t, ""), postgres.Connections{DB: w.db}
	stop := w.act(t, c, uuid.New(), domain.ActionRequest{Action: domain.Stop}, nil)
	if _, err := store.Suspend(t.Context(), w.ID, c.ID, true); err != nil {
		t.Fatal(err)
	}
	w.exec(t, "update actions set created_at = created_at - interval '3 hours'") // longer than an action is tried for
	tick(t, p)
	if got := w.action(t, stop); got.Status != domain.ActionRunning {
		t.Errorf("while it is suspended the action is %s: %+v", got.Status, got.Problem)
	}
	if _, err := store.Suspend(t.Context(), w.ID, c.ID, false); err != nil {
		t.Fatal(err)
	}
	wants(t, w.done(t, p, stop), string(apperr.NotFound))
}
