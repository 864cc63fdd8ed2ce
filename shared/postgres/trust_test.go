package postgres_test

import (
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/postgres"
	"github.com/cloudfn/cloudfn/shared/testkit"
)

// TestAnnounceTrustIsUnique: no two trusts of a user end in the same second, announced, replaced, or a connection's,
// until they are deleted. Another user's may. One that is taken gets no other end.
func TestAnnounceTrustIsUnique(t *testing.T) {
	t.Parallel()
	l := newTestDB(t)
	store, d := postgres.Connections{DB: l.DB}, postgres.Delegations{DB: l.DB}
	c := l.storeConnection(t, domain.ConnectionQuota{}, nil)
	kept, gone := l.announce(t, c), l.announce(t, c)
	must(store.Change(t.Context(), c, renewed(c, kept, "t2")))(t)
	taken := l.announce(t, c)
	must(d.AdoptTrust(t.Context(), taken))(t)
	noError(t, store.ForgetTrust(t.Context(), "p1", gone.ID))
	for what, tc := range map[string]struct {
		id   uuid.UUID
		user string
		end  time.Time
		want bool
	}{
		"a connection's":   {uuid.New(), "u1", kept.ExpiresAt, false},
		"announced":        {uuid.New(), "u1", taken.ExpiresAt, false},
		"replaced":         {uuid.New(), "u1", c.TrustExpiresAt, false},
		"another user's":   {uuid.New(), "u2", kept.ExpiresAt, true},
		"of no row":        {uuid.New(), "u1", gone.ExpiresAt, true},
		"of another trust": {uuid.New(), "u1", gone.ExpiresAt.Add(time.Hour), true},
	} {
		intent := domain.OldTrust{
			ID: tc.id, ProjectID: "p1", ConnectionID: c.ID, UserID: tc.user,
			ExpiresAt: tc.end.Truncate(time.Second),
		}
		if isFree, err := store.AnnounceTrust(t.Context(), intent); err != nil || isFree != tc.want {
			t.Errorf("the second of one %s: free %t, %v", what, isFree, err)
		}
	}
	taken.ExpiresAt = taken.ExpiresAt.Add(2 * time.Hour)
	if isFree, err := store.AnnounceTrust(t.Context(), taken); isFree || apperr.CodeOf(err) != apperr.Timeout {
		t.Errorf("what is taken gets another end: %t %v", isFree, err)
	}
}

// TestOldTrustPending: revocation is retried after growing pauses. The owner is notified once of the failure and once
// of the success.
func TestOldTrustPending(t *testing.T) {
	t.Parallel()
	l := newTestDB(t)
	store, d := postgres.Connections{DB: l.DB}, postgres.Delegations{DB: l.DB}
	c := l.storeConnection(t, domain.ConnectionQuota{}, nil)
	must(store.Change(t.Context(), c, renewed(c, l.announce(t, c), "t2")))(t)
	l.exec(t, "update trusts_to_revoke set not_before = now()")
	old, err := d.OldTrusts(t.Context(), 10)
	if err != nil || len(old) != 1 {
		t.Fatalf("got %v %v", old, err)
	}
	for n, want := range []bool{true, false, false} {
		l.exec(t, "update trusts_to_revoke set not_before = now()")
		if notified, err := d.MarkTrustPending(t.Context(), old[0], "because", 10*time.Second,
			time.Minute); err != nil || notified != want {
			t.Errorf("failure %d: %t %v", n, notified, err)
		}
		if l.due(t) != "" {
			t.Error("it is not left alone")
		}
	}
	if n, err := d.PendingRevocations(t.Context()); err != nil || n != 1 {
		t.Errorf("%d are pending: %v", n, err)
	}
	for _, want := range []bool{true, false} {
		if notified, err := d.MarkTrustGone(t.Context(), old[0]); err != nil || notified != want {
			t.Errorf("gone: %t %v", notified, err)
		}
	}
	l.holds(t, `select string_agg(seq || (data->>'status'), ' ' order by seq) = '3pending 4done' from events
  where type = 'cloudfn.connection.revocation.v1'`)
}

// endedTrust is a connection by trust that its owner has ended.
func endedTrust(t *testing.T, store postgres.Connections) domain.Connection {
	t.Helper()
	c := newConnection()
	c.Kind, c.Secret, c.AuthURL, c.Region, c.TrustExpiresAt = domain.TrustConnection, nil, "", "",
		c.ExpiresAt.Add(17*time.Minute)
	c = storedConnection(t, store, c)
	must(store.End(t.Context(), "p1", c.ID, domain.ConnectionDeleted, "it was deleted", false))(t)
	return c
}

// TestRevocations: of many replicas that fail concurrently one counts, and one event is written; the pauses grow up to
// a bound. One event follows when the trust is deleted, however many record that.
func TestRevocations(t *testing.T) {
	t.Parallel()
	database := testkit.Database(t)
	db, conn := open(t, database), testkit.Connect(t, database)
	d, c := postgres.Delegations{DB: db}, endedTrust(t, postgres.Connections{DB: db})
	concurrent := func(do func() (bool, error)) (notified int64) {
		var n atomic.Int64
		concurrently(8, func(int) {
			ok, err := do()
			if err != nil {
				t.Error(err)
			}
			if ok {
				n.Add(1)
			}
		})
		return n.Load()
	}
	for n, want := range []float64{10, 20, 40, 80, 160, 320, 640, 900, 900} {
		must(conn.Exec(t.Context(), "update connections set not_before = null"))(t)
		notified := concurrent(func() (bool, error) {
			return d.MarkRevocationPending(t.Context(), c, "because", 10*time.Second, 15*time.Minute)
		})
		if notified != map[bool]int64{true: 1, false: 0}[n == 0] {
			t.Errorf("failure %d: %d were notified of", n, notified)
		}
		pause := testkit.Scalar[float64](t, conn,
			"select extract(epoch from not_before - clock_timestamp())::float8 from connections")
		if pause > want || pause < want-5 {
			t.Errorf("pause %d is %fs, want %fs", n, pause, want)
		}
	}
	if n, err := d.PendingRevocations(t.Context()); err != nil || n != 1 {
		t.Errorf("%d are pending: %v", n, err)
	}
	if ending, err := d.Ending(t.Context(), 10); err != nil || len(ending) != 0 {
		t.Errorf("tried during a pause: %v %v", ending, err)
	}
	if notified := concurrent(func() (bool, error) { return d.MarkRevoked(t.Context(), c) }); notified != 1 {
		t.Errorf("the end: %d were notified of", notified)
	}
	if n, err := d.PendingRevocations(t.Context()); err != nil || n != 0 {
		t.Errorf("%d are pending: %v", n, err)
	}
	events := testkit.Scalar[string](t, conn,
		`select string_agg(seq || (data->>'status') || coalesce(data->>'reason', ''), ' ' order by seq)
from events where type = 'cloudfn.connection.revocation.v1' and connection_id = $1
  and (data->>'connection_id')::uuid = $1`, c.ID)
	end := testkit.Scalar[time.Time](t, conn,
		"select (data->>'trust_expires_at')::timestamptz from events where data->>'status' = 'pending'")
	if events != "3pendingbecause 4done" || !end.Equal(c.TrustExpiresAt) {
		t.Errorf("events %s, and the trust ends at %s, want %s", events, end, c.TrustExpiresAt)
	}
	if late, err := d.MarkRevocationPending(t.Context(), c, "", time.Second, time.Minute); err != nil || late {
		t.Errorf("a failure that comes late: %t %v", late, err)
	}
}

// TestTrustRevokedAtFirstTry: a trust that is revoked at the first try causes no event.
func TestTrustRevokedAtFirstTry(t *testing.T) {
	t.Parallel()
	database := testkit.Database(t)
	db := open(t, database)
	c := endedTrust(t, postgres.Connections{DB: db})
	if notified, err := (postgres.Delegations{DB: db}).MarkRevoked(t.Context(), c); err != nil || notified {
		t.Errorf("notified: %t %v", notified, err)
	}
	if n := testkit.Scalar[int](t, testkit.Connect(t, database), "select count(*)::int from events"); n != 2 {
		t.Errorf("there are %d events", n)
	}
}

// TestRetireConnections: connections are deleted 90 days after they ended, except while Keystone may still have their
// trust.
func TestRetireConnections(t *testing.T) {
	t.Parallel()
	database := testkit.Database(t)
	db, conn := open(t, database), testkit.Connect(t, database)
	d, store := postgres.Delegations{DB: db}, postgres.Connections{DB: db}
	old, young, pending, active := endedTrust(t, store), endedTrust(t, store), endedTrust(t, store), storedConnection(t,
		store, newConnection())
	for _, c := range []domain.Connection{old, young} {
		must(d.MarkRevoked(t.Context(), c))(t)
	}
	for id, days := range map[uuid.UUID]int{old.ID: 91, young.ID: 89, pending.ID: 400, active.ID: 400} {
		must(conn.Exec(t.Context(),
			"update connections set updated_at = now() - make_interval(days => $2) where id = $1", id,
			days))(t)
	}
	noError(t, d.Retire(t.Context(), 7*24*time.Hour, 90*24*time.Hour))
	wantValue(t, conn, 3, "%d are left", "select count(*)::int from connections where id <> $1", old.ID)
	if n := testkit.Scalar[int](t, conn, "select count(*)::int from connections"); n != 3 {
		t.Errorf("the old one is kept")
	}
}
