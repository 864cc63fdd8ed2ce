package postgres_test

import (
	"errors"
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

// announce writes down that a trust is about to be made, and gives what says so.
func (l testDB) announce(t *testing.T, c domain.Connection) domain.OldTrust {
	t.Helper()
	intent := domain.OldTrust{
		ID: uuid.New(), ProjectID: c.ProjectID, ConnectionID: c.ID, UserID: c.UserID,
		ExpiresAt: time.Now().Add(24 * time.Hour),
	}
	for {
		isFree := must(postgres.Connections{DB: l.DB}.AnnounceTrust(t.Context(), intent))(t)
		if isFree {
			return intent
		}
		intent.ExpiresAt = intent.ExpiresAt.Add(time.Second)
	}
}

// madeOf is what was announced when Keystone has made it.
func madeOf(intent domain.OldTrust, trust string) domain.OldTrust {
	intent.TrustID = trust
	return intent
}

// renewed is the connection with another trust, which was announced.
func renewed(c domain.Connection, intent domain.OldTrust, trust string) domain.Connection {
	c.DelegationID, c.TrustIntent, c.TrustExpiresAt, c.ExpiresAt = trust, intent.ID, intent.ExpiresAt,
		intent.ExpiresAt.Add(-15*time.Minute)
	return c
}

// due are the trusts that are to be taken back now, by Keystone's ids.
func (l testDB) due(t *testing.T) string {
	t.Helper()
	found := must(postgres.Delegations{DB: l.DB}.OldTrusts(t.Context(), 10))(t)
	var ids []string
	for _, old := range found {
		ids = append(ids, old.TrustID+"!")
	}
	slices.Sort(ids)
	return strings.Join(ids, " ")
}

// TestChangeConnection: fields that are not in the change stay. The event names the changed fields, and never contains
// the secret.
func TestChangeConnection(t *testing.T) {
	t.Parallel()
	l := newTestDB(t)
	store := postgres.Connections{DB: l.DB}
	before := storedConnection(t, store, newConnection())
	after := before
	one := 1
	after.Name, after.Quota, after.Secret = "other", domain.ConnectionQuota{Instances: &one}, []byte("sealed again")
	after.IdleTimeout, after.UsableBy = 0, []string{}
	stored := must(store.Change(domain.WithActor(t.Context(), domain.ActorOf(delegator, uuid.Nil)), before, after))(t)
	if stored.Name != "other" || *stored.Quota.Instances != 1 || stored.IdleTimeout != 0 || len(stored.UsableBy) != 0 ||
		stored.Generation != 2 || stored.Seq != 2 ||
		!stored.ExpiresAt.Equal(before.ExpiresAt) || !slices.Equal(stored.Actions, before.Actions) ||
		stored.AuthURL != before.AuthURL {
		t.Errorf("got %+v", stored)
	}
	l.holds(t, `select data->'fields' = '["idle_timeout", "name", "quota", "secret", "usable_by"]'
  and data->'actor'->>'user_id' = 'u1' and seq = 2
		from events where type = 'cloudfn.connection.changed.v1'`)
	l.holds(t, "select not exists (select from events where data::text like '%sealed%')")
	l.holds(t, "select secret = 'sealed again' and next_check_at <= clock_timestamp() from connections")
	if _, err := store.Change(t.Context(), before, after); !errors.Is(err, domain.ErrChanged) {
		t.Errorf("a change of what is not there any more: %v", err)
	}
	must(store.End(t.Context(), "p1", before.ID, domain.ConnectionExpired, "", true))(t)
	wantCode(t, "after the end", errOf(store.Change(t.Context(), stored, after)), apperr.Conflict)
	other := after
	other.ProjectID = "p2"
	wantCode(t, "of another project", errOf(store.Change(t.Context(), stored, other)), apperr.NotFound)
}

// TestChangeConnectionConcurrently: of many changes to the same version one is stored, and each trust is the
// connection's own or on the list of trusts to revoke.
func TestChangeConnectionConcurrently(t *testing.T) {
	t.Parallel()
	l := newTestDB(t)
	store, c := postgres.Connections{DB: l.DB}, l.storeConnection(t, domain.ConnectionQuota{}, nil)
	var stored atomic.Int64
	concurrently(8, func(n int) {
		intent, trust := l.announce(t, c), "t"+string(rune('a'+n))
		_, err := store.Change(t.Context(), c, renewed(c, intent, trust))
		switch {
		case err == nil:
			stored.Add(1)
		case !errors.Is(err, domain.ErrChanged):
			t.Error(err)
		default:
			if err := store.DropTrust(t.Context(), madeOf(intent, trust)); err != nil {
				t.Error(err)
			}
		}
	})
	if stored.Load() != 1 {
		t.Errorf("%d were stored", stored.Load())
	}
	l.holds(t, "select count(*) = 8 and count(distinct trust_id) = 8 from trusts_to_revoke")
	l.holds(t, "select not exists (select from trusts_to_revoke join connections on trust_id = delegation_id)")
	l.holds(t, "select generation = 2 from connections")
	if due := strings.Count(l.due(t), "!"); due != 7 {
		t.Errorf("%d are due; the one that was replaced is to be left for a while", due)
	}
}

// TestTrustWithoutConnectionIsRevoked: an announced trust is due after a while, and once it is claimed no connection
// can be stored with it. A replaced trust is due when its connection ends; the connection's own trust is never on the
// list.
func TestTrustWithoutConnectionIsRevoked(t *testing.T) {
	t.Parallel()
	l := newTestDB(t)
	store, d := postgres.Connections{DB: l.DB}, postgres.Delegations{DB: l.DB}
	c := l.storeConnection(t, domain.ConnectionQuota{}, nil)
	late, kept := l.announce(t, c), l.announce(t, c)
	if l.due(t) != "" {
		t.Errorf("due while they are being made: %s", l.due(t))
	}
	stored := must(store.Change(t.Context(), c, renewed(c, kept, "t2")))(t)
	l.exec(t, "update trusts_to_revoke set not_before = now() where trust_id is null")
	if l.due(t) != "!" {
		t.Errorf("due is %q", l.due(t))
	}
	if isOurs, err := d.AdoptTrust(t.Context(), late); err != nil || !isOurs {
		t.Errorf("take: %t %v", isOurs, err)
	}
	if _, err := store.Change(t.Context(), stored, renewed(stored, late, "t3")); apperr.CodeOf(err) != apperr.Timeout {
		t.Errorf("stored too late: %v", err)
	}
	if err := store.ForgetTrust(t.Context(), "p1", late.ID); err != nil { // run-connections has found no trust
		t.Fatal(err)
	}
	if err := store.DropTrust(t.Context(), madeOf(late, "t3")); err != nil || l.due(t) != "t3!" { // and now it is made
		t.Errorf("a trust that was made too late is not taken back: %q %v", l.due(t), err)
	}
	if late.TrustID = "t2"; !testkit.Scalar[bool](t, l.conn, "select delegation_id = 't2' from connections") {
		t.Error("it was stored all the same")
	}
	if isOurs, err := d.AdoptTrust(t.Context(), late); err != nil || isOurs {
		t.Errorf("the connection's own trust is to be taken back: %t %v", isOurs, err)
	}
	must(d.MarkTrustGone(t.Context(), late))(t)
	if l.due(t) != "" {
		t.Errorf("what was replaced is due immediately: %s", l.due(t))
	}
	must(store.End(t.Context(), "p1", c.ID, domain.ConnectionDeleted, "", false))(t)
	if l.due(t) != "t!" {
		t.Errorf("after the end %q is due", l.due(t))
	}
	// who has read it before the change has deleted the old trust
	must(d.MarkRevoked(t.Context(), c))(t)
	l.holds(t, "select not revoked from connections")
	must(d.MarkRevoked(t.Context(), stored))(t)
	got, err := store.Get(t.Context(), delegator, c.ID)
	if err != nil || got.Revocation() != domain.RevocationPending {
		t.Errorf("while one is left: %q %v", got.Revocation(), err)
	}
}

// TestChangeLimits: changed limits hold for the next order, even if its caller has read the connection before the
// change.
func TestChangeLimits(t *testing.T) {
	t.Parallel()
	l := newTestDB(t)
	store := postgres.Connections{DB: l.DB}
	c := l.storeConnection(t, domain.ConnectionQuota{}, nil)
	before, late := connectedOrder(c, 1), connectedOrder(c, 1)
	must(l.Place(t.Context(), before, 0))(t)
	after := c
	after.Limits.Flavors = []string{"another"}
	stored, err := store.Change(t.Context(), c, after)
	if err != nil || len(stored.Limits.Flavors) != 1 {
		t.Fatalf("got %+v %v", stored.Limits, err)
	}
	if _, err := l.Place(t.Context(), late, 0); apperr.CodeOf(err) != apperr.Forbidden ||
		!strings.Contains(err.Error(), "another") {
		t.Errorf("an order of another flavor: %v", err)
	}
	l.holds(t, `select data->'fields' = '["limits"]' from events where type = 'cloudfn.connection.changed.v1'`)
}

// TestSuspend: nothing begins through it and what waits is left alone; it ends as an active one does, and goes on
// when it is resumed.
func TestSuspend(t *testing.T) {
	t.Parallel()
	l := newTestDB(t)
	store, d := postgres.Connections{DB: l.DB}, postgres.Delegations{DB: l.DB}
	c := l.storeConnection(t, domain.ConnectionQuota{}, nil)
	waiting := connectedOrder(c, 1)
	must(l.Place(t.Context(), waiting, 0))(t)
	claim, err := l.Claim(t.Context(), waiting, time.Minute)
	if err != nil || !claim.Acquired {
		t.Fatal(err)
	}
	suspend := func(yes, want bool) {
		t.Helper()
		if changed, err := store.Suspend(t.Context(), "p1", c.ID, yes); err != nil || changed != want {
			t.Errorf("suspend %t: %t %v", yes, changed, err)
		}
	}
	suspend(false, false)
	suspend(true, true)
	suspend(true, false)
	found, now, err := store.Usable(t.Context(), delegator, c.ID)
	if err != nil || found.Status != domain.ConnectionSuspended ||
		apperr.CodeOf(found.Permits(now, domain.MayAllocate)) != apperr.Suspended {
		t.Errorf("it is %s: %v", found.Status, err)
	}
	wantCode(t, "an order", errOf(l.Place(t.Context(), connectedOrder(c, 1), 0)), apperr.Suspended)
	stop := domain.DelegatedAction{
		ID: uuid.New(), ProjectID: "p1", ConnectionID: c.ID, InstanceID: uuid.New(),
		UserID: "v", Request: domain.ActionRequest{Action: domain.Stop},
	}
	wantCode(t, "an action", errOf(postgres.Actions{DB: l.DB}.Create(t.Context(), stop)), apperr.Conflict)
	if err := l.Renew(t.Context(), waiting, claim, time.Minute); !errors.Is(err, domain.ErrFenced) {
		t.Errorf("the order that was being worked on: %v", err)
	}
	l.exec(t, "update orders set claimed_until = now() - interval '1 second'")
	for _, q := range []struct {
		usable bool
		status string
		want   int
	}{{true, "", 0}, {false, "suspended", 1}, {false, "active", 0}, {false, "", 1}} {
		query := domain.ConnectionQuery{Usable: q.usable, Limit: 10}
		if q.status != "" {
			query.Statuses = []string{q.status}
		}
		if list, err := store.List(t.Context(), delegator, query); err != nil || len(list) != q.want {
			t.Errorf("%+v: %d %v", q, len(list), err)
		}
	}
	wait := func(want int) {
		t.Helper()
		if work, err := d.Work(t.Context(), 10); err != nil || len(work) != want {
			t.Errorf("%d have work, want %d: %v", len(work), want, err)
		}
		if busy, err := d.Busy(t.Context(), time.Minute, 0); err != nil || busy != (want > 0) {
			t.Errorf("busy is %t: %v", busy, err)
		}
	}
	wait(0)
	suspend(false, true)
	wait(1)
	suspend(true, true)
	l.exec(t, "update connections set expires_at = now()")
	if over, err := d.Ending(t.Context(), 10); err != nil || len(over) != 1 {
		t.Fatalf("it does not end: %v %v", over, err)
	}
	if ended, err := store.Expire(t.Context(), c, "it has expired", false); err != nil || !ended {
		t.Errorf("it does not end: %t %v", ended, err)
	}
	l.holds(t, `select string_agg(coalesce(data->>'previous_status', '') || '>' || (data->>'status'), ' ' order by seq) =
		'>active active>suspended suspended>active active>suspended suspended>expired' from events
		  where type = 'cloudfn.connection.state.v1'`)
	wantCode(t, "resumed after its end", errOf(store.Suspend(t.Context(), "p1", c.ID, false)), apperr.Conflict)
}

// TestEndIgnoresNewerGeneration: a connection that was given another trust is not lost with the old one, and one that
// was given more time does not expire.
func TestEndIgnoresNewerGeneration(t *testing.T) {
	t.Parallel()
	l := newTestDB(t)
	store, c := postgres.Connections{DB: l.DB}, l.storeConnection(t, domain.ConnectionQuota{}, nil)
	stored := must(store.Change(t.Context(), c, renewed(c, l.announce(t, c), "t2")))(t)
	if ended, err := store.Lose(t.Context(), c, "", false); err != nil || ended {
		t.Errorf("lost with the old trust: %t %v", ended, err)
	}
	if ended, err := store.Expire(t.Context(), c, "", false); err != nil || ended {
		t.Errorf("expired with the old time: %t %v", ended, err)
	}
	if current, err := (postgres.Delegations{DB: l.DB}).Current(t.Context(), "p1", c.ID); err != nil ||
		current.DelegationID != "t2" || current.Generation != 2 {
		t.Errorf("it is %+v: %v", current, err)
	}
	if ended, err := store.Lose(t.Context(), stored, "", false); err != nil || !ended {
		t.Errorf("lost with the new trust: %t %v", ended, err)
	}
}
