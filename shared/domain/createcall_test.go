package domain

import (
	"testing"
	"time"

	"github.com/google/uuid"
)

// TestWhoseServer: an instance takes only what one of its create calls can have made, and only what provably comes from
// another one of them is a duplicate.
func TestWhoseServer(t *testing.T) {
	t.Parallel()
	now := time.Now()
	o := Order{ID: uuid.New(), Status: OrderRunning, CallsRecorded: true}
	i := Instance{ID: uuid.New(), Name: "web", State: InstanceRequested}
	first := CreateCall{
		ID: uuid.New(), InstanceID: i.ID, Name: "web", UserID: "u", BeganAt: now, Until: now.Add(time.Minute),
	}
	second := first
	second.ID = uuid.New()
	o.Calls, o.Instances = []CreateCall{first, second}, []Instance{i}
	server := func(id string, after time.Duration, more ...string) Server {
		return Server{
			ID: id, Name: "web", UserID: "u", Status: "ACTIVE", CreatedAt: now.Add(after), Tags: append([]string{
				i.ID.String(), OrderTag(o.ID),
			}, more...),
		}
	}
	ours := server("ours", time.Second, CallTag(first.ID))
	copied, script := server("copied", 2*time.Second, CallTag(first.ID)), server("script", 0)
	months := server("months", 90*24*time.Hour, CallTag(first.ID))
	gone := ours
	gone.Status = "DELETED"
	legacy := o
	legacy.CallsRecorded, legacy.Calls = false, nil
	final := legacy
	final.Status = OrderFailed
	for name, tc := range map[string]struct {
		order Order
		found []Server
		want  string
	}{
		"ours":                           {o, []Server{ours}, "ours"},
		"ours, before a copy":            {o, []Server{copied, ours}, "ours"},
		"ours, after somebody's":         {o, []Server{script, ours}, "ours"},
		"somebody's":                     {o, []Server{script}, ""},
		"somebody's, months later":       {o, []Server{months}, ""},
		"ours is gone":                   {o, []Server{gone}, ""},
		"an older version's":             {legacy, []Server{script, server("later", time.Hour)}, "script"},
		"an older version's, at its end": {final, []Server{script}, ""},
	} {
		own, _, ok := tc.order.OwnServer(i, tc.found)
		if own.ID != tc.want || ok != (tc.want != "") {
			t.Errorf("%s: got %q %t, want %q", name, own.ID, ok, tc.want)
		}
	}

	kept := i
	kept.ServerID = "kept"
	o.Calls[1].ServerID = "kept"
	change := func(f func(*Server)) Server {
		s := ours
		f(&s)
		return s
	}
	tagged := kept
	tagged.Spec.Tags = []string{"web"}
	if _, isOurs := o.Duplicate(tagged, change(func(s *Server) { s.Tags = append(s.Tags, "web") })); !isOurs {
		t.Error("a duplicate with the caller's own tag is somebody's")
	}
	if _, isOurs := o.Duplicate(tagged, ours); isOurs {
		t.Error("a server without the caller's own tag is a duplicate")
	}
	done, rolledBack := o, o
	done.Status, rolledBack.Status = OrderDone, OrderRolledBack
	for name, tc := range map[string]struct {
		order Order
		s     Server
		want  bool
	}{
		"made by the other call":   {o, ours, true},
		"its own":                  {o, change(func(s *Server) { s.ID = "kept" }), false},
		"a copy of its own":        {o, server("x", time.Second, CallTag(second.ID)), false},
		"without a call":           {o, script, false},
		"of a call of nobody's":    {o, server("x", time.Second, CallTag(uuid.New())), false},
		"with a tag of somebody's": {o, change(func(s *Server) { s.Tags = append(s.Tags, "web") }), false},
		"with another name":        {o, change(func(s *Server) { s.Name = "web2" }), false},
		"of another user":          {o, change(func(s *Server) { s.UserID = "v" }), false},
		"too early":                {o, server("x", -time.Hour, CallTag(first.ID)), false},
		"too late":                 {o, server("x", time.Hour, CallTag(first.ID)), false},
		"the order is done":        {done, ours, false},
		"the order is rolled back": {rolledBack, ours, false},
		"of an older version":      {legacy, ours, false},
	} {
		if _, got := tc.order.Duplicate(kept, tc.s); got != tc.want {
			t.Errorf("%s: got %t", name, got)
		}
	}
	if _, got := o.Duplicate(i, ours); got {
		t.Error("an instance without a server has a duplicate")
	}
	if !ours.IsOldest([]Server{copied, ours}) || copied.IsOldest([]Server{copied, ours}) {
		t.Error("a copy passes for the oldest")
	}
}

// TestRollbackWaits for a create call without an answer: once the order is rolled back, a server that comes late stays.
func TestRollbackWaits(t *testing.T) {
	t.Parallel()
	now := time.Now()
	asked, failed := Instance{ID: uuid.New(), State: InstanceRequested}, Instance{ServerID: "x", State: InstanceError}
	call := CreateCall{ID: uuid.New(), InstanceID: asked.ID, Until: now}
	o := Order{
		Status: OrderRunning, Spec: OrderSpec{OnFailure: Rollback}, Instances: []Instance{asked, failed},
		Calls: []CreateCall{call},
	}
	for after, want := range map[time.Duration]Step{
		-time.Second: StepNone, time.Second: StepNone, time.Minute: StepForgo,
	} {
		o.ReadAt = now.Add(after)
		if got := o.Next(); got[0] != want || got[1] != StepDelete || o.WaitsForCalls() != (want == StepNone) {
			t.Errorf("after %s: got %q", after, got)
		}
	}
	o.ReadAt, o.Calls[0].EndedAt = now, now
	if got := o.Next(); got[0] != StepForgo {
		t.Errorf("with an answer: got %q", got)
	}
}
