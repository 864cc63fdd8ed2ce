package domain

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

func TestSlot(t *testing.T) {
	t.Parallel()
	one := time.Date(2026, 1, 2, 13, 0, 0, 0, time.UTC)
	for name, tc := range map[string]struct {
		now    time.Time
		slot   time.Time
		source Source
	}{
		"on time":             {one, one, Sampled},
		"a fast clock":        {one.Add(-200 * time.Millisecond), one, Sampled},
		"four minutes late":   {one.Add(4 * time.Minute), one, Sampled},
		"after an outage":     {one.Add(20 * time.Minute), one, Rebuilt},
		"just before the end": {one.Add(59 * time.Minute), one, Rebuilt},
		"a zone of :45":       {one.In(time.FixedZone("", 5*3600+45*60)), one, Sampled},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if got := Slot(tc.now); !got.Equal(tc.slot) {
				t.Errorf("slot is %s, want %s", got, tc.slot)
			}
			if got := HourKey(tc.slot.Local()); got != "2026-01-02T13:00:00Z" {
				t.Errorf("its key is %s", got)
			}
			if got := SourceAt(tc.slot, tc.now); got != tc.source {
				t.Errorf("source is %s, want %s", got, tc.source)
			}
		})
	}
}

func TestHours(t *testing.T) {
	t.Parallel()
	leap := time.Date(2028, 3, 1, 0, 0, 0, 0, time.UTC)
	got := Hours(leap, 3)
	want := []time.Time{leap.Add(-2 * time.Hour), leap.Add(-time.Hour), leap}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	if got[0].Day() != 29 {
		t.Errorf("the day before is %s", got[0])
	}
}

// TestAddCreated: each moment is in one hour, the one that ends after it.
func TestAddCreated(t *testing.T) {
	t.Parallel()
	hour := time.Date(2026, 1, 2, 13, 0, 0, 0, time.UTC)
	for created, want := range map[time.Duration][2]int{ // by the hours that end at 13:00 and at 14:00
		-time.Hour - time.Second: {0, 0}, -time.Hour: {1, 0}, -time.Second: {1, 0}, 0: {0, 1},
		time.Hour - time.Second: {0, 1}, time.Hour: {0, 0},
	} {
		first, second := HourCount{Hour: hour}, HourCount{Hour: hour.Add(time.Hour)}
		for _, c := range []*HourCount{&first, &second} {
			c.AddCreated(hour.Add(created).In(time.FixedZone("", 3600)))
		}
		if got := [2]int{first.Launched, second.Launched}; got != want {
			t.Errorf("created at the hour and %s: launched are %v, want %v", created, got, want)
		}
	}
}

func TestHourCountLeavesOutWhatIsGone(t *testing.T) {
	t.Parallel()
	var c HourCount
	for _, s := range []VMState{
		StateActive, StateActive, StateStopped, StateAbsent, StateDeleted, StateSoftDel, StateError, "brand_new",
	} {
		c.Add(s)
	}
	want := HourCount{
		Running: 2, Total: 5, ByStatus: map[string]int{"ACTIVE": 2, "SHUTOFF": 1, "ERROR": 1, "brand_new": 1},
	}
	if diff := cmp.Diff(want, c); diff != "" {
		t.Error(diff)
	}
}

var noon = time.Date(2026, 1, 2, 12, 0, 0, 0, time.UTC)

func at(minute int) time.Time { return noon.Add(time.Duration(minute) * time.Minute) }

// act is an action that begins at a minute and takes one.
func act(name string, minute int) LoggedAction {
	return LoggedAction{Name: name, Start: at(minute), Finish: at(minute + 1)}
}

// begun is an action without a finish time in Nova's log.
func begun(name string, minute int) LoggedAction { return LoggedAction{Name: name, Start: at(minute)} }

// now is a server that was made at 0, last changed at 9, and is in a state.
func now(state VMState, actions ...LoggedAction) History {
	if actions[0].Name != "create" {
		actions = append([]LoggedAction{act("create", 0)}, actions...)
	}
	return History{Created: at(0), Updated: at(9), State: state, Actions: actions}
}

func failed(a LoggedAction) LoggedAction { a.Failed = true; return a }

func TestStateAt(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		h      History
		minute int
		want   VMState
		known  bool
	}{
		"before it was made": {
			History{Created: at(0), Updated: at(1), State: "active", Actions: []LoggedAction{act("create", 0)}},
			-1,
			StateAbsent, true,
		},
		"while it was built": {
			History{
				Created: at(0), Updated: at(9), State: "stopped", Actions: []LoggedAction{
					{Name: "create", Start: at(0), Finish: at(2)}, act("stop", 8),
				},
			}, 1, "building", true,
		},
		"once built": {
			History{
				Created: at(0), Updated: at(9), State: "stopped", Actions: []LoggedAction{
					act("create", 0), act("stop", 8),
				},
			}, 5, "active", true,
		},
		"during a stop": {
			History{
				Created: at(0), Updated: at(9), State: "stopped", Actions: []LoggedAction{
					act("create", 0), {Name: "stop", Start: at(4), Finish: at(8)},
				},
			}, 6, "active", true,
		},
		"stopped and started": {
			History{
				Created: at(0), Updated: at(9), State: "active", Actions: []LoggedAction{
					act("start", 8), act("create", 0), act("stop", 3),
				},
			}, 5, "stopped", true,
		},
		"unchanged since": {History{Created: at(0), Updated: at(3), State: "paused"}, 5, "paused", true},
		"deleted before": {
			History{
				Created: at(0), Updated: at(6), Deleted: at(5), State: "deleted", Actions: []LoggedAction{
					act("create", 0), act("delete", 5),
				},
			}, 6, StateAbsent, true,
		},
		"deleted in that second": {
			History{
				Created: at(0), Updated: at(6), Deleted: at(5), State: "deleted", Actions: []LoggedAction{
					act("create", 0), act("delete", 4),
				},
			}, 5, stateUnknown, false,
		},
		"made in that second": {
			History{Created: at(5), Updated: at(6), State: "active", Actions: []LoggedAction{act("create", 5)}},
			5,
			stateUnknown, false,
		},
		"active in that second": {
			History{Created: at(0), Updated: at(1), State: "active", Actions: []LoggedAction{act("create", 0)}},
			1,
			stateUnknown, false,
		},
		"locked in that second": {
			History{
				Created: at(0), Updated: at(5), State: "active", Actions: []LoggedAction{
					act("create", 0), act("lock", 5),
				},
			}, 5, "active", true,
		},
		"deleted after": {
			History{
				Created: at(0), Updated: at(6), Deleted: at(5), State: "deleted", Actions: []LoggedAction{
					act("create", 0), act("delete", 5),
				},
			}, 4, "active", true,
		},
		"born and deleted meanwhile": {
			History{
				Created: at(1), Updated: at(6), Deleted: at(5), State: "deleted", Actions: []LoggedAction{
					act("create", 1), act("delete", 5),
				},
			}, 0, StateAbsent, true,
		},
		"never built": {
			History{
				Created: at(0), Updated: at(9), State: "error", Actions: []LoggedAction{
					failed(act("create", 0)), act("lock", 8),
				},
			}, 5, "error", true,
		},
		"resized and confirmed": {
			History{
				Created: at(0), Updated: at(9), State: "stopped", Actions: []LoggedAction{
					act("create", 0), act("stop", 1), act("resize", 3), act("confirmResize", 8), act("lock", 10),
				},
			}, 10, "stopped", true,
		},
		"resized": {
			History{
				Created: at(0), Updated: at(9), State: "active", Actions: []LoggedAction{
					act("create", 0), act("resize", 3), act("confirmResize", 8),
				},
			}, 5, "resized", true,
		},
		"rebuilt while stopped": {
			History{
				Created: at(0), Updated: at(9), State: "active", Actions: []LoggedAction{
					act("create", 0), act("stop", 1), act("rebuild", 3), act("start", 8),
				},
			}, 5, "stopped", true,
		},
		"attached something": {
			History{
				Created: at(0), Updated: at(9), State: "stopped", Actions: []LoggedAction{
					act("create", 0), failed(act("attach_volume", 3)), act("stop", 8),
				},
			}, 5, "active", true,
		},
		"after a failed stop": {
			History{
				Created: at(0), Updated: at(9), State: "active", Actions: []LoggedAction{
					act("create", 0), failed(act("stop", 3)), act("start", 8),
				},
			}, 5, stateUnknown, false,
		},
		"after an admin's reset": {
			History{
				Created: at(0), Updated: at(9), State: "active", Actions: []LoggedAction{
					act("create", 0), act("resetState", 3), act("reboot", 8),
				},
			}, 5, stateUnknown, false,
		},
		"its host failed": {
			History{Created: at(0), Updated: at(9), State: "stopped", Actions: []LoggedAction{act("create", 0)}},
			5,
			stateUnknown, false,
		},
		// What Nova really writes (finding 12): the action that ends in one of several states.
		"shelved and offloaded, then locked": {
			now("shelved_offloaded", act("shelve", 2), act("lock", 8)), 5, "shelved_offloaded", true,
		},
		"shelved and kept, then renamed": {now("shelved", act("shelve", 2)), 5, "shelved", true},
		"offloaded later": {
			now("active", act("shelve", 2), act("shelveOffload", 6), act("unshelve", 8)), 4, "shelved", true,
		},
		"shelved and unshelved": {
			now("active", act("shelve", 2), act("unshelve", 8)), 5, "shelved_offloaded", true,
		},
		"a failed create that was rebuilt": {
			History{
				Created: at(0), Updated: at(9), State: "active", Actions: []LoggedAction{
					failed(act("create", 0)), act("rebuild", 2), act("lock", 8),
				},
			}, 5, "active", true,
		},
		"before that rebuild": {
			History{
				Created: at(0), Updated: at(9), State: "active", Actions: []LoggedAction{
					failed(act("create", 0)), act("rebuild", 6),
				},
			}, 5, "error", true,
		},
		"evacuated while stopped": {
			now("stopped", act("stop", 1), act("evacuate", 3), act("lock", 8)), 5, "stopped", true,
		},
		"rebuilt while paused": {
			now("active", act("pause", 1), act("rebuild", 3), act("lock", 8)), 5, "active", true,
		},
		"reset to error": {now("error", act("resetState", 2), act("lock", 8)), 5, "error", true},
		"reset, and something else since": {
			now("stopped", act("resetState", 2), act("lock", 8)), 5, stateUnknown, false,
		},
		"a failed stop, still active": {
			now("active", failed(act("stop", 2)), act("lock", 8)), 5, "active", true,
		},
		"a failed resize that went to error": {
			now("error", failed(act("resize", 2)), act("lock", 8)), 5, "error", true,
		},
		"a failed confirmation": {
			now("error", act("resize", 1), failed(act("confirmResize", 3)), act("lock", 8)), 5, "error", true,
		},
		"resized when stopped, confirmed": {
			now("stopped", act("stop", 1), act("migrate", 2), act("confirmResize", 4), act("lock", 8)), 6, "stopped",
			true,
		},
		"soft deleted and restored, in between": {
			now("active", act("delete", 2), act("restore", 8)), 5, StateDeleted, true,
		},
		"rescued from an error": {
			now("active", failed(act("rebuild", 1)), act("rescue", 3), act("unrescue", 8)), 5, "rescued", true,
		},
		"a log without its beginning": {
			History{Created: at(0), Updated: at(9), State: "active", Actions: []LoggedAction{act("start", 8)}},
			5,
			stateUnknown, false,
		},
		// An older Nova does not say when an action finished (finding 19).
		"unknown when it was active": {
			History{
				Created: at(0), Updated: at(9), State: "active", Actions: []LoggedAction{
					begun("create", 0), act("lock", 8),
				},
			}, 5, stateUnknown, false,
		},
		"unknown, but stopped later": {
			now("stopped", begun("create", 0), begun("stop", 3), act("start", 4), begun("stop", 7)), 6, "active", true,
		},
		"unknown when it stopped": {now("stopped", begun("stop", 3)), 5, stateUnknown, false},
		"unknown, and begun after it": {
			now("stopped", act("stop", 1), begun("start", 6), begun("stop", 8)), 5, "stopped", true,
		},
		"a rebuild in progress": {now("active", begun("rebuild", 3), act("lock", 8)), 5, "active", true},
		"its host failed, since": {
			History{Created: at(0), Updated: at(9), State: "stopped", Actions: []LoggedAction{act("create", 0)}},
			10,
			"stopped", true,
		},
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

// TestStateAtFollowsAnyHistory, in a Nova that offloads what it shelves, makes servers do random things at random
// minutes, writes down what state they were in at every one, and reads it again from the log alone.
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
