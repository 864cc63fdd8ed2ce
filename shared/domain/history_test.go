package domain

import (
	"testing"
	"time"

	"pgregory.net/rapid"
)

var noon = time.Date(2026, 1, 2, 12, 0, 0, 0, time.UTC)

func at(minute int) time.Time { return noon.Add(time.Duration(minute) * time.Minute) }

// act is an action that begins at a minute and takes one.
func act(name string, minute int) Action {
	return Action{Name: name, Start: at(minute), Finish: at(minute + 1)}
}

func failed(a Action) Action { a.Failed = true; return a }

func TestStateAt(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		h      History
		minute int
		want   VMState
		known  bool
	}{
		"before it was made":      {History{Created: at(0), Updated: at(1), State: "active", Actions: []Action{act("create", 0)}}, -1, StateAbsent, true},
		"while it was built":      {History{Created: at(0), Updated: at(9), State: "stopped", Actions: []Action{act("create", 0), act("stop", 8)}}, 0, "building", true},
		"once built":              {History{Created: at(0), Updated: at(9), State: "stopped", Actions: []Action{act("create", 0), act("stop", 8)}}, 5, "active", true},
		"during a stop":           {History{Created: at(0), Updated: at(9), State: "stopped", Actions: []Action{act("create", 0), {Name: "stop", Start: at(4), Finish: at(8)}}}, 6, "active", true},
		"stopped and started":     {History{Created: at(0), Updated: at(9), State: "active", Actions: []Action{act("start", 8), act("create", 0), act("stop", 3)}}, 5, "stopped", true},
		"unchanged since":         {History{Created: at(0), Updated: at(3), State: "paused"}, 5, "paused", true},
		"deleted before":          {History{Created: at(0), Updated: at(6), Deleted: at(5), State: "deleted", Actions: []Action{act("create", 0), act("delete", 5)}}, 5, StateAbsent, true},
		"deleted after":           {History{Created: at(0), Updated: at(6), Deleted: at(5), State: "deleted", Actions: []Action{act("create", 0), act("delete", 5)}}, 4, "active", true},
		"born and gone meanwhile": {History{Created: at(1), Updated: at(6), Deleted: at(5), State: "deleted", Actions: []Action{act("create", 1), act("delete", 5)}}, 0, StateAbsent, true},
		"never built":             {History{Created: at(0), Updated: at(9), State: "error", Actions: []Action{failed(act("create", 0)), act("lock", 8)}}, 5, "error", true},
		"resized and confirmed":   {History{Created: at(0), Updated: at(9), State: "stopped", Actions: []Action{act("create", 0), act("stop", 1), act("resize", 3), act("confirmResize", 8)}}, 9, "stopped", true},
		"resized":                 {History{Created: at(0), Updated: at(9), State: "active", Actions: []Action{act("create", 0), act("resize", 3), act("confirmResize", 8)}}, 5, "resized", true},
		"rebuilt while stopped":   {History{Created: at(0), Updated: at(9), State: "active", Actions: []Action{act("create", 0), act("stop", 1), act("rebuild", 3), act("start", 8)}}, 5, "stopped", true},
		"attached something":      {History{Created: at(0), Updated: at(9), State: "stopped", Actions: []Action{act("create", 0), failed(act("attach_volume", 3)), act("stop", 8)}}, 5, "active", true},
		"after a failed stop":     {History{Created: at(0), Updated: at(9), State: "active", Actions: []Action{act("create", 0), failed(act("stop", 3)), act("start", 8)}}, 5, stateUnknown, false},
		"after an admin's reset":  {History{Created: at(0), Updated: at(9), State: "active", Actions: []Action{act("create", 0), act("resetState", 3), act("reboot", 8)}}, 5, stateUnknown, false},
		"its host failed":         {History{Created: at(0), Updated: at(9), State: "stopped", Actions: []Action{act("create", 0)}}, 5, stateUnknown, false},
		"its host failed, since":  {History{Created: at(0), Updated: at(9), State: "stopped", Actions: []Action{act("create", 0)}}, 9, "stopped", true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got, known := tc.h.StateAt(at(tc.minute))
			if got != tc.want || known != tc.known {
				t.Errorf("got %q %v, want %q %v", got, known, tc.want, tc.known)
			}
		})
	}
}

// TestStateAtFollowsAnyHistory makes servers do random things at random minutes, writes down what state they
// were in at every one, and asks for it again from the log alone.
func TestStateAtFollowsAnyHistory(t *testing.T) {
	t.Parallel()
	moves := map[VMState][]string{
		"active":            {"stop", "pause", "suspend", "shelve", "rescue", "resize", "reboot", "rebuild", "delete", "lock"},
		"stopped":           {"start", "reboot", "rebuild", "resize", "delete"},
		"paused":            {"unpause", "delete"},
		"suspended":         {"resume", "delete"},
		"shelved":           {"shelveOffload", "unshelve", "delete"},
		"shelved_offloaded": {"unshelve", "delete"},
		"rescued":           {"unrescue", "delete"},
		"resized":           {"confirmResize", "revertResize", "delete"},
	}
	result := map[string]VMState{
		"start": "active", "stop": "stopped", "pause": "paused", "unpause": "active", "suspend": "suspended", "resume": "active",
		"shelve": "shelved", "shelveOffload": "shelved_offloaded", "unshelve": "active", "rescue": "rescued", "unrescue": "active",
		"resize": "resized", "reboot": "active", "delete": StateAbsent,
	}
	rapid.Check(t, func(t *rapid.T) {
		h := History{Created: at(0), State: "active", Actions: []Action{act("create", 0)}}
		truth := []VMState{"building"} // by minute
		before, minute := VMState("active"), 1
		for range rapid.IntRange(0, 8).Draw(t, "moves") {
			if h.State == StateAbsent {
				break
			}
			idle := rapid.IntRange(0, 3).Draw(t, "idle")
			for range idle + 1 {
				truth = append(truth, h.State)
			}
			minute += idle + 1
			name := rapid.SampledFrom(moves[h.State]).Draw(t, "action")
			h.Actions = append(h.Actions, Action{Name: name, Start: at(minute - 1), Finish: at(minute)})
			if name == "resize" {
				before = h.State
			}
			switch next, ok := result[name]; {
			case ok:
				h.State = next
			case name == "confirmResize" || name == "revertResize":
				h.State = before
			}
			h.Updated = at(minute)
		}
		truth = append(truth, h.State)
		if h.Updated.IsZero() {
			h.Updated = at(1)
		}
		if h.State == StateAbsent {
			h.Deleted, h.State = h.Updated, StateDeleted
		}
		for m, want := range truth {
			if got, known := h.StateAt(at(m)); got != want || !known {
				t.Fatalf("minute %d: got %q %v, want %q; log %+v", m, got, known, want, h.Actions)
			}
		}
	})
}
