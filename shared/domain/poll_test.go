package domain

import (
	"testing"
	"time"

	"github.com/google/uuid"
)

// TestMissed: a server that Nova does not find twice, with MissedFor in between, is deleted.
func TestMissed(t *testing.T) {
	t.Parallel()
	i := Instance{
		ServerID: "s", Name: "n", State: InstanceActive, RawStatus: "ACTIVE", Addresses: []Address{{IP: "10.0.0.1"}},
	}
	now := time.Now()
	look := func(after time.Duration, changed bool, want InstanceState) {
		t.Helper()
		if got := i.Missed(now.Add(after)); got != changed || i.State != want {
			t.Errorf("after %s: changed %t, %s", after, got, i.State)
		}
	}
	look(0, true, InstanceActive)
	look(MissedFor-1, false, InstanceActive)
	found := Server{ID: "s", Name: "n", Status: "ACTIVE", Addresses: i.Addresses}
	if !i.Found(found) || !i.MissedAt.IsZero() || i.Found(found) {
		t.Errorf("found again: %+v", i)
	}
	look(time.Hour, true, InstanceActive)
	look(time.Hour+MissedFor, true, InstanceDeleted)
	if i.Name != "n" || len(i.Addresses) != 1 || i.RawStatus != "DELETED" || !i.MissedAt.IsZero() {
		t.Errorf("got %+v", i)
	}
}

// TestMade: the tags say for what a server was made, or nothing.
func TestMade(t *testing.T) {
	t.Parallel()
	order, instance := uuid.New(), uuid.New()
	for _, c := range []struct {
		tags []string
		ok   bool
	}{
		{[]string{instance.String(), OrderTag(order)}, true},
		{[]string{"web", OrderTag(order), "cloudfn-order:web", instance.String()}, true},
		{[]string{instance.String()}, false},
		{[]string{OrderTag(order)}, false},
		{[]string{OrderTag(order), instance.String(), uuid.NewString()}, false},
		{[]string{OrderTag(order), OrderTag(uuid.New()), instance.String()}, false},
		{[]string{OrderTag(order), "{" + instance.String() + "}"}, false},
		{nil, false},
	} {
		gotOrder, gotInstance, ok := Server{Tags: c.tags}.Made()
		if ok != c.ok || ok && (gotOrder != order || gotInstance != instance) {
			t.Errorf("%v: got %s %s %t", c.tags, gotOrder, gotInstance, ok)
		}
	}
}
