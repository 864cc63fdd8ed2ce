package domain

import (
	"reflect"
	"slices"
	"testing"
	"time"

	"github.com/google/uuid"
	"pgregory.net/rapid"
)

// What Nova may say: each status and task that we know, and some that nobody knows yet.
var (
	randomStatus = rapid.SampledFrom([]string{
		"BUILD", "ACTIVE", "SHUTOFF", "SHELVED", "SHELVED_OFFLOADED", "PAUSED", "SUSPENDED", "REBOOT", "HARD_REBOOT",
		"RESCUE", "ERROR", "UNKNOWN",
		"DELETED", "SOFT_DELETED", "RESIZE", "VERIFY_RESIZE", "MIGRATING", "PASSWORD", "REBUILD", "", "active",
		"FROZEN",
	})
	randomTask = rapid.SampledFrom([]string{
		"", "", "", "deleting", "soft-deleting", "powering-off", "powering-on", "shelving", "unshelving", "spawning",
		"image_snapshot", "thawing",
	})
	randomAsk = rapid.SampledFrom([]ActionRequest{
		requestStart, requestStop, requestReboot, requestHard, requestShelve, requestUnshelve, requestSnapshot,
		requestDelete,
	})
)

func randomServer(t *rapid.T, id string) Server {
	s := Server{
		ID: id, Status: randomStatus.Draw(t, "status"), Task: randomTask.Draw(t, "task"),
		Name: rapid.SampledFrom([]string{"a", "b"}).Draw(t, "name"),
	}
	s.Partial = s.Status == "UNKNOWN" || s.Status == "DELETED"
	if s.Status == "ERROR" && rapid.Bool().Draw(t, "fault") {
		s.Fault = &Fault{Message: "No valid host"}
	}
	return s
}

// history is what happens to one instance.
type history struct {
	t   *rapid.T
	i   Instance
	now time.Time
}

// step does one thing, and reports whether it is said to change anything.
func (h *history) step() (changed bool) {
	h.now = h.now.Add(time.Duration(rapid.IntRange(0, 90).Draw(h.t, "seconds")) * time.Second)
	server := randomServer(h.t, "s")
	switch rapid.SampledFrom([]string{"seen", "found", "missed", "act"}).Draw(h.t, "step") {
	case "seen":
		was := h.i.State
		changed = h.i.Seen(server)
		if was != InstanceDeleted && (h.i.RawStatus != server.Status ||
			h.i.State != StateOf(server.Status, server.Task)) {
			h.t.Fatalf("of %s %s it knows %s %s", server.Status, server.Task, h.i.State, h.i.RawStatus)
		}
		return changed
	case "found":
		return h.i.Found(server)
	case "missed":
		missed, was := h.i.MissedAt, h.i.State
		changed = h.i.Missed(h.now)
		if h.i.State != was && (missed.IsZero() || h.now.Sub(missed) < MissedFor || h.i.State != InstanceDeleted) {
			h.t.Fatalf("missed at %s and at %s, it is %s", missed, h.now, h.i.State)
		}
		return changed
	}
	ask := randomAsk.Draw(h.t, "ask")
	if ask.Idle(h.i.State, server.Task) || ask.Check(h.i.State) != nil {
		return false
	}
	was := h.i.State
	h.i.State, h.i.Problem = ask.After(h.i.State), nil
	return was != h.i.State
}

// TestInstancesOverRandomHistories of what Nova says, looks that find nothing, and actions.
func TestInstancesOverRandomHistories(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		h := history{t: t, now: time.Unix(1e9, 0), i: Instance{ID: uuid.New(), State: InstanceRequested}}
		for range rapid.IntRange(1, 30).Draw(t, "steps") {
			before := h.i
			changed := h.step()
			if h.i.State != before.State && !slices.Contains(InstanceTransitions[before.State], h.i.State) {
				t.Fatalf("%s became %s", before.State, h.i.State)
			}
			if before.State == InstanceDeleted && (h.i.State != InstanceDeleted || h.i.RawStatus != before.RawStatus) {
				t.Fatalf("a deleted instance became %s %s", h.i.State, h.i.RawStatus)
			}
			if before.State != InstanceRequested && h.i.State == InstanceRequested {
				t.Fatalf("%s is requested again", before.State)
			}
			if !changed && h.i.State != before.State {
				t.Fatalf("%s became %s, and that is no change", before.State, h.i.State)
			}
			if changed && reflect.DeepEqual(h.i, before) && h.i.Problem == nil {
				t.Fatalf("nothing changed, and it is said to: %+v", h.i)
			}
			if (h.i.State == InstanceError) != (h.i.Problem != nil) {
				t.Fatalf("%s with the problem %v", h.i.State, h.i.Problem)
			}
		}
	})
}

// TestActionsOverAllStates: what is allowed, what is said to be allowed, and what there is nothing to do for.
func TestActionsOverAllStates(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		server, ask := randomServer(t, "s"), randomAsk.Draw(t, "ask")
		state := StateOf(server.Status, server.Task)
		allows := slices.Contains(ActionTransitions[state], ask)
		if err := ask.Check(state); (err == nil) != allows {
			t.Fatalf("%+v in %s: %v", ask, state, err)
		}
		if allows && !slices.Contains(AllowedActions(state), string(ask.Action)) {
			t.Fatalf("%s allows %v, and says %v", state, ActionTransitions[state], AllowedActions(state))
		}
		if idle := ask.Idle(state, server.Task); idle && allows && ask.Action != Delete {
			t.Fatalf("%+v in %s has nothing to do, and may do it", ask, state)
		}
		if after := ask.After(state); allows && after != state && !slices.Contains(InstanceTransitions[state], after) {
			t.Fatalf("%+v leads from %s to %s", ask, state, after)
		}
		if ask.Action == Delete && !allows && !ask.Idle(state, server.Task) {
			t.Fatalf("%s cannot be deleted", state)
		}
	})
}

// TestOrdersOverRandomHistories holds an order's status against a naive count of its instances. A final one stays.
func TestOrdersOverRandomHistories(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		o := Order{Status: OrderRunning, Instances: make([]Instance, rapid.IntRange(1, 4).Draw(t, "instances"))}
		for n := range o.Instances {
			o.Instances[n] = Instance{ID: uuid.New(), State: InstanceRequested}
		}
		for range rapid.IntRange(1, 30).Draw(t, "steps") {
			i := &o.Instances[rapid.IntRange(0, len(o.Instances)-1).Draw(t, "instance")]
			if i.ServerID == "" && i.Problem == nil && rapid.Bool().Draw(t, "refused") {
				i.State, i.Problem = InstanceError, &Problem{Code: "quota_exceeded"}
			} else if i.ServerID != "" || i.Problem == nil {
				i.Seen(randomServer(t, "s"))
			}
			got := o.Evaluate()
			if want := naive(o); got != want {
				t.Fatalf("%s, and a naive count says %s: %+v", got, want, o)
			}
			if got != o.Status && !slices.Contains(OrderTransitions[o.Status], got) {
				t.Fatalf("%s became %s", o.Status, got)
			}
			o.Status = got
		}
	})
}

// naive counts the instances of an order that keeps what it got.
func naive(o Order) OrderStatus {
	if o.Status != OrderRunning {
		return o.Status
	}
	waits, fails := 0, 0
	for _, i := range o.Instances {
		switch i.State {
		case InstanceRequested, InstanceBuilding:
			waits++
		case InstanceError:
			fails++
		}
	}
	switch {
	case waits > 0:
		return OrderRunning
	case fails == 0:
		return OrderDone
	case fails == len(o.Instances):
		return OrderFailed
	}
	return OrderPartial
}
