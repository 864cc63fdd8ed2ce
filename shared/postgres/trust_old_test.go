package postgres_test

import (
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/postgres"
)

// TestAnnounceTrustIsUnique: no two trusts of a user end in the same second, announced, replaced, or a connection's,
// until they are gone. Another user's may. One that is taken gets no other end.
func TestAnnounceTrustIsUnique(t *testing.T) {
	t.Parallel()
	l := newTestDB(t)
	store, d := postgres.Connections{DB: l.DB}, postgres.Delegations{DB: l.DB}
	c := l.storeConnection(t, domain.ConnectionQuota{}, nil)
	kept, gone := l.announce(t, c), l.announce(t, c)
	if _, err := store.Change(t.Context(), c, renewed(c, kept, "t2")); err != nil {
		t.Fatal(err)
	}
	taken := l.announce(t, c)
	if _, err := d.AdoptTrust(t.Context(), taken); err != nil {
		t.Fatal(err)
	}
	if err := store.ForgetTrust(t.Context(), "p1", gone.ID); err != nil {
		t.Fatal(err)
	}
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
		"that is gone":     {uuid.New(), "u1", gone.ExpiresAt, true},
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
	if _, err := store.Change(t.Context(), c, renewed(c, l.announce(t, c), "t2")); err != nil {
		t.Fatal(err)
	}
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
