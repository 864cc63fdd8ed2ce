package leases

import (
	"testing"
	"time"

	"github.com/cloudfn/cloudfn/cmd/cloudfn/internal/api"
	"github.com/cloudfn/cloudfn/shared/domain"
)

// TestEndedLease: a lease that has ended shows when it did. Nothing is to be confirmed once it is ending.
func TestEndedLease(t *testing.T) {
	t.Parallel()
	at := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	l := api.Lease{
		Status: api.LeaseStatusActive, End: at.Add(time.Hour), OnEnd: api.LeaseOnEnd(domain.OnEndDelete),
		Events: []api.LeaseEvent{
			{Type: api.LeaseEventTypeStart, At: new(at.Add(-time.Hour))}, {Type: api.LeaseEventTypeEnd},
		},
	}
	if got := leases.Table.Text("END", l); got != "2026-01-02 04:04:05" || !deletes(l) {
		t.Errorf("an active lease ends at %s, and deletes is %t", got, deletes(l))
	}
	if l.Status = api.LeaseStatusEnding; deletes(l) {
		t.Error("it is ending already")
	}
	l.Status, l.Events[1].At = api.LeaseStatusEnded, &at
	if got := leases.Table.Text("END", l); got != "2026-01-02 03:04:05" {
		t.Errorf("an ended lease shows %s", got)
	}
}
