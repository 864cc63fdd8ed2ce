package runconnections

import (
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/postgres"
	"github.com/cloudfn/cloudfn/shared/testkit"
)

// announced makes a trust as the function connections does when it dies before it has stored the connection.
func (w *world) announced(t *testing.T, c domain.Connection, until time.Time) (made domain.Trust, intent uuid.UUID) {
	t.Helper()
	session, who := w.member(t)
	intent = uuid.New()
	made, err := session.CreateTrust(t.Context(), who, testkit.Trustee(t), []string{"member"},
		until.Add(domain.TrustSpare), func(end time.Time) (bool, error) {
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
	wants(t, w.done(t, p, w.ask(t, c, uuid.New(), domain.ActionRequest{Action: domain.Stop}, nil)), "not_found")
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
		t.Error("the old trust is revoked at once: calls that began with it fail")
	}
	w.retryTrusts(t, p)
	if there(t, c) || !w.trustThere(t, made.ID) || w.text(t, "select count(*)::text from trusts_to_revoke") != "0" {
		t.Error("the old trust stays, or the new one does not")
	}
	wants(t, w.done(t, p, w.ask(t, c, uuid.New(), domain.ActionRequest{Action: domain.Stop}, nil)), "not_found")
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
	w.Disable(t) // then Keystone lets nobody delete it
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
	stop := w.ask(t, c, uuid.New(), domain.ActionRequest{Action: domain.Stop}, nil)
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
