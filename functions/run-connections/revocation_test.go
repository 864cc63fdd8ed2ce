package runconnections

import (
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/postgres"
	"github.com/cloudfn/cloudfn/shared/testkit"
)

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

// TestLongTrustOfDisabledUser: Keystone lets nobody delete the trust of a disabled user. It stays on the list, whether
// its connection was deleted, expired or lost, and is deleted when the user is back. The owner gets one event for each
// of the two.
func TestLongTrustOfDisabledUser(t *testing.T) {
	t.Parallel()
	for name, away := range map[string]struct{ leave, back func(*world) }{
		"disabled": {func(w *world) { w.Disable(t) }, func(w *world) { w.Enable(t) }},
		"no role":  {func(w *world) { w.Leave(t) }, func(w *world) { w.Grant(t, w.UserID, "member") }},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			p := w.function(t, nil)
			deleted, expired, lost := w.trust(t), w.trust(t), w.trust(t)
			away.leave(w)
			if _, err := (postgres.Connections{DB: w.db}).End(t.Context(), w.ID, deleted.ID, domain.ConnectionDeleted,
				"it was deleted", false); err != nil {
				t.Fatal(err)
			}
			w.exec(t, "update connections set expires_at = clock_timestamp() where id = $1", expired.ID)
			start := w.ask(t, lost, uuid.New(), domain.ActionRequest{Action: domain.Start}, nil)
			wants(t, w.done(t, p, start), "delegation_lost")
			w.retry(t, p)
			w.retry(t, p)
			for want, c := range map[string]domain.Connection{"deleted": deleted, "expired": expired, "lost": lost} {
				row := w.text(t, `select status || ' ' || revoked || ' ' || (not_before > clock_timestamp())
  from connections where id = $1`, c.ID)
				if events := w.revocations(t, c); row != want+" false true" || events != "pending" || !there(t, c) {
					t.Errorf("%s: while the user is away: %s, events %q, in Keystone: %t", want, row, events,
						there(t, c))
				}
			}
			away.back(w)
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

// TestLongTrustExpires while its user is away: Keystone says that it is gone. The test moves the trust's end in both
// databases.
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
