package domain

import (
	"testing"
	"time"

	"pgregory.net/rapid"
)

// TestStateAtFollowsAnyHistory, in a Nova that offloads what it shelves, makes servers do random things at random
// minutes, writes down what state they were in at every one, and asks for it again from the log alone.
func TestStateAtFollowsAnyHistory(t *testing.T) {
	t.Parallel()
	moves := map[VMState][]string{
		"active": {
			"stop", "pause", "suspend", "shelve", "rescue", "resize", "reboot", "rebuild", "delete", "lock",
		},
		"stopped":           {"start", "reboot", "rebuild", "resize", "delete"},
		"paused":            {"unpause", "delete"},
		"suspended":         {"resume", "delete"},
		"shelved_offloaded": {"unshelve", "delete"},
		"rescued":           {"unrescue", "delete"},
		"resized":           {"confirmResize", "revertResize", "delete"},
	}
	result := map[string]VMState{
		"start": "active", "stop": "stopped", "pause": "paused", "unpause": "active", "suspend": "suspended",
		"resume": "active",
		"shelve": "shelved_offloaded", "unshelve": "active", "rescue": "rescued", "unrescue": "active",
		"resize": "resized", "reboot": "active", "delete": StateAbsent,
	}
	rapid.Check(t, func(t *rapid.T) {
		h := History{Created: at(0), State: "active", Actions: []LoggedAction{act("create", 0)}}
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
			h.Actions = append(h.Actions, LoggedAction{Name: name, Start: at(minute - 1), Finish: at(minute)})
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
			if got, known := h.StateAt(at(m).Add(30 * time.Second)); got != want || !known {
				t.Fatalf("minute %d: got %q %v, want %q; log %+v", m, got, known, want, h.Actions)
			}
		}
	})
}
