package runconnections

import (
	"strings"
	"testing"

	"github.com/google/uuid"

	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/postgres"
)

// TestTrustsAreRevoked when a connection expires, was idle for too long, or was ended by its owner. Its waiting work is
// abandoned then.
func TestTrustsAreRevoked(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	p := w.function(t, nil)
	over, idle, deleted, kept := w.trust(t), w.trust(t), w.trust(t), w.trust(t)
	order := w.place(t, over, 2, nil)
	action := w.ask(t, deleted, uuid.New(), domain.ActionRequest{Action: domain.Stop}, nil)
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
		&over: "expired its time is over",
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
		!strings.Contains(i.Problem.Detail, "its time is over") {
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
