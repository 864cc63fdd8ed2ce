package postgres_test

import (
	"testing"
	"time"

	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/postgres"
)

// TestListStaleDuringARead leaves out what a read has just seen, although the connection counts as unreachable until
// the read has ended.
func TestListStaleDuringARead(t *testing.T) {
	t.Parallel()
	l := newTestDB(t)
	d, instances := postgres.Delegations{DB: l.DB}, postgres.Instances{DB: l.DB}
	c := remote(t, l, elsewhere)
	l.exec(t, `update connections set silent_since = now() - interval '10 minutes', failures = 3, not_before = null
where id = $1`, c.ID)
	l.exec(t, "update instances set state = 'active', seen_at = now() - interval '7 minutes' where connection_id = $1",
		c.ID)
	before, err := d.ListStale(t.Context(), 3*time.Minute, 100)
	if err != nil || len(before) == 0 {
		t.Fatal(before, err)
	}
	read, found, err := d.ClaimRead(t.Context(), elsewhere, usual, time.Minute)
	if err != nil || !found {
		t.Fatal(found, err)
	}
	seen := before[0]
	seen.State, seen.SeenAt = domain.InstanceStopped, read.At
	if n, err := instances.Change(t.Context(), []domain.Instance{seen}); n != 1 || err != nil {
		t.Fatal(n, err)
	}
	after, err := d.ListStale(t.Context(), 3*time.Minute, 100)
	if err != nil || len(after) != len(before)-1 {
		t.Errorf("%d are stale, and were %d before one was seen: %v", len(after), len(before), err)
	}
}
