package runconnections

import (
	"context"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/postgres"
	"github.com/cloudfn/cloudfn/shared/testkit"
)

// TestTrustWhoseMakerDied before its connection was stored is found in Keystone by its end, and deleted. The user's others stay, and what was
// never made is forgotten.
func TestTrustWhoseMakerDied(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	s := w.withKeystone(t)
	session, who := w.member(t)
	intents := postgres.TrustIntents{DB: w.db}
	begin := func(id uuid.UUID) func(context.Context, time.Time) (bool, error) {
		return func(ctx context.Context, end time.Time) (bool, error) {
			return intents.Begin(ctx, domain.TrustIntent{ID: id, ProjectID: w.ID, UserID: w.UserID, EndsAt: end})
		}
	}
	orphan, err := session.CreateTrust(t.Context(), who, testkit.Trustee(t), []string{"member"}, time.Now().Add(time.Hour), begin(uuid.New()))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := begin(uuid.New())(t.Context(), time.Now().Add(2*time.Hour)); err != nil { // its maker died before it asked Keystone
		t.Fatal(err)
	}
	kept := w.trust(t)
	s.abandonAll(t)
	if left := w.Trusts(t); len(left) != 2 {
		t.Errorf("while they are made Keystone has %v", left)
	}
	w.exec(t, "update trust_intents set not_before = clock_timestamp()")
	s.abandonAll(t)
	if left := w.Trusts(t); len(left) != 1 || left[0] != kept.DelegationID {
		t.Errorf("Keystone has %v, of which %s is nobody's", left, orphan.ID)
	}
	if n := w.text(t, "select count(*)::text from trust_intents where done_at is null"); n != "0" {
		t.Errorf("%s are still looked for", n)
	}

	orphan, err = session.CreateTrust(t.Context(), who, testkit.Trustee(t), []string{"member"}, time.Now().Add(time.Hour), begin(uuid.New()))
	if err != nil {
		t.Fatal(err)
	}
	w.Disable(t) // then Keystone lets nobody delete it
	w.exec(t, "update trust_intents set not_before = clock_timestamp()")
	s.abandonAll(t)
	w.Enable(t)
	if n := w.text(t, "select count(*)::text from trust_intents where done_at is null and not_before > clock_timestamp()"); n != "1" {
		t.Errorf("%s are tried again", n)
	}
	w.exec(t, "update trust_intents set not_before = clock_timestamp()")
	s.abandonAll(t)
	if left := w.Trusts(t); len(left) != 1 {
		t.Errorf("Keystone has %v with %s", left, orphan.ID)
	}
}

// withKeystone is a service that deletes trusts in the real Keystone.
func (w *world) withKeystone(t *testing.T) *service {
	t.Helper()
	s := &service{clock: w.db, trusts: postgres.TrustIntents{DB: w.db}, requests: postgres.ConnectionRequests{DB: w.db}, wake: func(...string) {}}
	s.cloud = newSessions(nil)
	s.cloud.login = func(context.Context) (account, error) { return trustee{testkit.Session(t, "collector")}, nil }
	return s
}

func (s *service) abandonAll(t *testing.T) {
	t.Helper()
	b := newWorkers().batch()
	if err := s.abandonTrusts(t.Context(), b); err != nil {
		t.Fatal(err)
	}
	b.all.Wait()
}

// TestRequestsExpire with an event that is delivered at once, and are forgotten in time.
func TestRequestsExpire(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	s := w.withKeystone(t)
	woken := 0
	s.wake = func(...string) { woken++ }
	stored, err := s.requests.(postgres.ConnectionRequests).Create(t.Context(), domain.ConnectionRequest{
		ID: uuid.Must(uuid.NewV7()), ProjectID: w.ID, Requester: domain.Identity{UserID: "u2", ProjectID: "p2"}, Grantee: domain.GranteeUser, Why: "x",
		Terms: domain.Terms{Actions: []domain.Permission{domain.MayStart}, Duration: time.Hour},
	})
	if err != nil {
		t.Fatal(err)
	}
	for n, sql := range []string{"select", "update connection_requests set expires_at = clock_timestamp()", "select"} {
		w.exec(t, sql)
		if err := s.expireRequests(t.Context()); err != nil || woken != min(n, 1) {
			t.Errorf("woken %d times after %d: %v", woken, n, err)
		}
	}
	if status := w.text(t, "select status from connection_requests where id = $1", stored.ID); status != "expired" {
		t.Errorf("it is %s", status)
	}
}
