package runconnections

import (
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/cloudfn/cloudfn/shared/domain"
)

// TestRequestsExpire with an event that is delivered at once, and are forgotten in time.
func TestRequestsExpire(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	woken := 0
	s := newService(w.db, func(...string) { woken++ })
	stored, err := s.requests.Create(t.Context(), domain.ConnectionRequest{
		ID: uuid.Must(uuid.NewV7()), ProjectID: w.ID, Requester: domain.Identity{UserID: "u2", ProjectID: "p2"},
		Grantee: domain.GranteeUser, Why: "x",
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
