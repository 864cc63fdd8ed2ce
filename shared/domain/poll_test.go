package domain

import (
	"testing"
	"time"
)

// TestMissed: a server is gone at the second look, if that is another look, and if it was not found in between.
func TestMissed(t *testing.T) {
	t.Parallel()
	i := Instance{ServerID: "s", Name: "n", State: InstanceActive, RawStatus: "ACTIVE", Addresses: []Address{{IP: "10.0.0.1"}}}
	now, patience := time.Now(), 30*time.Second
	look := func(after time.Duration, changed bool, want InstanceState) {
		t.Helper()
		if got := i.Missed(now.Add(after), patience); got != changed || i.State != want {
			t.Errorf("after %s: changed %t, %s", after, got, i.State)
		}
	}
	look(0, true, InstanceActive)
	look(patience-1, false, InstanceActive)
	found := Server{ID: "s", Name: "n", Status: "ACTIVE", Addresses: i.Addresses}
	if !i.Found(found) || !i.MissedAt.IsZero() || i.Found(found) {
		t.Errorf("found again: %+v", i)
	}
	look(time.Hour, true, InstanceActive)
	look(time.Hour+patience, true, InstanceDeleted)
	if i.Name != "n" || len(i.Addresses) != 1 || i.RawStatus != "DELETED" || !i.MissedAt.IsZero() {
		t.Errorf("got %+v", i)
	}
}
