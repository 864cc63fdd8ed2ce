package domain

import (
	"flag"
	"fmt"
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"pgregory.net/rapid"

	"github.com/cloudfn/cloudfn/shared/apperr"
)

var update = flag.Bool("update", false, "regenerate the diagrams in docs/states.md")

// page has the diagrams between these two lines.
const (
	page      = "../../docs/states.md"
	drawn     = "<!-- drawn by: go test ./shared/domain -run TestDiagrams -update -->\n"
	drawnEnds = "\n<!-- end of what is drawn -->\n"
)

// TestDiagrams compares the diagrams in docs/states.md with the tables.
func TestDiagrams(t *testing.T) {
	t.Parallel()
	data, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	before, rest, begins := strings.Cut(string(data), drawn)
	is, after, ends := strings.Cut(rest, drawnEnds)
	if !begins || !ends {
		t.Fatalf("docs/states.md lacks a line: %s or %s", drawn, drawnEnds)
	}
	want := diagrams()
	if is == want {
		return
	}
	if !*update {
		t.Fatal("the diagrams in docs/states.md are stale: run go test ./shared/domain -run TestDiagrams -update")
	}
	if err := os.WriteFile(page, []byte(before+drawn+want+drawnEnds+after), 0o644); err != nil {
		t.Fatal(err)
	}
}

func diagrams() string {
	return diagram("An instance:", machine([]InstanceState{
		InstanceRequested, InstanceBuilding, InstanceActive, InstanceStopped, InstanceShelved, InstancePaused,
		InstanceSuspended, InstanceRebooting, InstanceUpdating, InstanceResizing, InstanceRescued, InstanceError,
		InstanceUnknown, InstanceDeleting, InstanceDeleted,
	}, InstanceTransitions)) +
		diagram("The actions that each state of an instance allows, and the state that follows immediately:",
			actionTable()) +
		diagram("An order:", machine([]OrderStatus{
			OrderRunning, OrderDone, OrderPartial, OrderFailed, OrderRolledBack,
		}, OrderTransitions)) +
		diagram("A callback:", machine([]CallbackStatus{
			CallbackPending, CallbackVerified, CallbackSuspended, CallbackGone,
		}, CallbackTransitions)) +
		diagram("A delivery:", machine([]DeliveryStatus{DeliveryDue, DeliveryDelivered, DeliveryDead},
			DeliveryTransitions)) +
		diagram("A connection:", machine([]ConnectionStatus{
			ConnectionActive, ConnectionSuspended, ConnectionExpired, ConnectionLost, ConnectionDeleted,
		}, ConnectionTransitions)) +
		diagram("A request for a connection:", machine([]RequestStatus{
			RequestPending, RequestGranted, RequestDeclined, RequestWithdrawn, RequestExpired,
		}, RequestTransitions)) +
		diagram("An action through a connection:", machine([]ActionStatus{ActionRunning, ActionDone, ActionFailed},
			ActionStatusTransitions)) +
		diagram("A lease:", machine([]LeaseStatus{
			LeasePending, LeaseStarting, LeaseActive, LeaseEnding, LeaseEnded, LeaseCancelled, LeaseError,
		}, LeaseTransitions))
}

func diagram(title, lines string) string {
	return "\n" + title + "\n\n```mermaid\nstateDiagram-v2\n" + lines + "```\n"
}

// machine draws a table, whose first state is where it begins. More than two states that may all follow each other are
// drawn as one.
func machine[S ~string](states []S, moves map[S][]S) string {
	both := func(a, b S) bool { return a == b || slices.Contains(moves[a], b) && slices.Contains(moves[b], a) }
	group := slices.DeleteFunc(slices.Clone(states), func(s S) bool {
		near := slices.DeleteFunc(slices.Clone(states), func(o S) bool { return !both(s, o) })
		apart := func(a S) bool { return slices.ContainsFunc(near, func(b S) bool { return !both(a, b) }) }
		return len(near) < 3 || slices.ContainsFunc(near, apart)
	})
	name := func(s S) string {
		if slices.Contains(group, s) {
			return "in_any_order"
		}
		return string(s)
	}
	lines := []string{fmt.Sprintf("    [*] --> %s\n", name(states[0]))}
	if len(group) > 0 {
		lines = append(lines, fmt.Sprintf("    state in_any_order {\n%s    }\n", inside(group)))
	}
	for _, from := range states {
		for _, to := range states {
			if slices.Contains(moves[from], to) && name(from) != name(to) {
				lines = append(lines, fmt.Sprintf("    %s --> %s\n", name(from), name(to)))
			}
		}
		if len(moves[from]) == 0 {
			lines = append(lines, fmt.Sprintf("    %s --> [*]\n", from))
		}
	}
	// the same arrow comes from each state of the group, one after the other
	return strings.Join(slices.Compact(lines), "")
}

func inside[S ~string](group []S) string {
	var lines strings.Builder
	for _, s := range group {
		fmt.Fprintf(&lines, "        %s\n", s)
	}
	return lines.String()
}

// actionTable draws the actions that states allow.
func actionTable() string {
	var lines strings.Builder
	for _, from := range append([]InstanceState{InstanceRequested}, living...) {
		for _, a := range ActionTransitions[from] {
			if slices.Contains([]Action{Delete, Lock, Unlock, Rename}, a.Action) { // almost everywhere
				continue
			}
			verb := string(a.Action)
			if a.Hard {
				verb = "hard " + verb
			}
			fmt.Fprintf(&lines, "    %s --> %s: %s\n", from, a.After(from), verb)
		}
	}
	return lines.String()
}

// TestTables: each machine knows every state that it leads to, and the tables of instances know the same states.
func TestTables(t *testing.T) {
	t.Parallel()
	closed(t, InstanceTransitions)
	closed(t, OrderTransitions)
	closed(t, CallbackTransitions)
	closed(t, DeliveryTransitions)
	closed(t, ConnectionTransitions)
	closed(t, ActionStatusTransitions)
	closed(t, LeaseTransitions)
	for state := range InstanceTransitions {
		if _, known := ActionTransitions[state]; !known {
			t.Errorf("no one says which actions an instance that is %s allows", state)
		}
		wantsDelete := slices.Contains(living, state) && state != InstanceDeleting
		if slices.Contains(ActionTransitions[state], ActionRequest{Action: Delete}) != wantsDelete {
			t.Errorf("delete of an instance that is %s", state)
		}
	}
	for _, state := range stateOfStatus {
		if _, known := InstanceTransitions[state]; !known {
			t.Errorf("%s is in no table", state)
		}
	}
	for _, state := range stateOfTask {
		if !slices.Contains(living, state) {
			t.Errorf("%s is no state of a server", state)
		}
	}
}

func closed[S ~string](t *testing.T, moves map[S][]S) {
	t.Helper()
	for from, list := range moves {
		for _, to := range list {
			if _, known := moves[to]; !known || to == from {
				t.Errorf("%s leads to %s", from, to)
			}
		}
	}
}

// What Nova may say: each status and task that we know, and some that no one knows yet.
var (
	randomStatus = rapid.SampledFrom([]string{
		"BUILD", "ACTIVE", "SHUTOFF", "SHELVED", "SHELVED_OFFLOADED", "PAUSED", "SUSPENDED", "REBOOT", "HARD_REBOOT",
		"RESCUE", "ERROR", "UNKNOWN",
		"DELETED", "SOFT_DELETED", "RESIZE", "VERIFY_RESIZE", "REVERT_RESIZE", "MIGRATING", "PASSWORD", "REBUILD",
		"", "active", "FROZEN",
	})
	randomTask = rapid.SampledFrom([]string{
		"", "", "", "deleting", "soft-deleting", "powering-off", "powering-on", "shelving", "unshelving", "spawning",
		"pausing", "resuming", "resize_prep", "image_snapshot", "thawing",
	})
	randomAction = rapid.Custom(func(t *rapid.T) ActionRequest {
		return rapid.SampledFrom(actionRules).Draw(t, "rule").ActionRequest
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
	switch rapid.SampledFrom([]string{"observed", "found", "missed", "act"}).Draw(h.t, "step") {
	case "observed":
		was := h.i.State
		changed = h.i.Observe(server)
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
	action := randomAction.Draw(h.t, "action")
	if action.Idle(h.i.State, server.Task) || action.Check(h.i.State) != nil {
		return false
	}
	was := h.i.State
	return h.i.Accepted(action) && was != h.i.State
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
		server, action := randomServer(t, "s"), randomAction.Draw(t, "action")
		state := StateOf(server.Status, server.Task)
		allows := slices.Contains(ActionTransitions[state], action)
		if err := action.Check(state); (err == nil) != allows {
			t.Fatalf("%+v in %s: %v", action, state, err)
		}
		if allows && !slices.Contains(AllowedActions(state), string(action.Action)) {
			t.Fatalf("%s allows %v, and says %v", state, ActionTransitions[state], AllowedActions(state))
		}
		if idle := action.Idle(state, server.Task); idle && allows && action.Action != Delete {
			t.Fatalf("%+v in %s has nothing to do, and may do it", action, state)
		}
		after := action.After(state)
		if allows && after != state && !slices.Contains(InstanceTransitions[state], after) {
			t.Fatalf("%+v leads from %s to %s", action, state, after)
		}
		if action.Action == Delete && !allows && !action.Idle(state, server.Task) {
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
				i.Observe(randomServer(t, "s"))
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

// TestCallbackHistories: whatever its owner requests, and whatever its receiver does in between, a callback only takes
// the moves of the table, and is verified only by its receiver.
func TestCallbackHistories(t *testing.T) {
	t.Parallel()
	statuses := []CallbackStatus{CallbackPending, CallbackVerified, CallbackSuspended, CallbackGone}
	for _, s := range statuses {
		if len(CallbackTransitions[s]) == 0 || slices.Contains(CallbackTransitions[s], s) {
			t.Errorf("from %s it can become %v", s, CallbackTransitions[s])
		}
	}
	rapid.Check(t, func(t *rapid.T) {
		c := Callback{Status: CallbackPending, URL: "a"}
		consented := "" // to which URL
		for range rapid.IntRange(1, 40).Draw(t, "steps") {
			before := c
			if rapid.Bool().Draw(t, "the receiver's turn") {
				if c.Status = rapid.SampledFrom(CallbackTransitions[c.Status]).Draw(t,
					"status"); c.Status == CallbackVerified {
					consented = c.URL
				}
				continue
			}
			var change CallbackChange
			if rapid.Bool().Draw(t, "with a URL") {
				url := rapid.SampledFrom([]string{"a", "b"}).Draw(t, "URL")
				change.URL = &url
			}
			if rapid.Bool().Draw(t, "with a status") {
				status := rapid.SampledFrom([]CallbackStatus{CallbackSuspended, CallbackVerified}).Draw(t, "wanted")
				change.Status = &status
			}
			consents, err := c.Apply(change)
			switch {
			case err != nil && (apperr.CodeOf(err) != apperr.Conflict || before.Status != CallbackGone):
				t.Fatalf("%+v to %+v: %v", before, change, err)
			case err != nil:
				c = before
			case c.Status != before.Status && !slices.Contains(CallbackTransitions[before.Status], c.Status):
				t.Fatalf("%s became %s", before.Status, c.Status)
			case c.Status == CallbackVerified && (consented != c.URL || consents):
				t.Fatalf("it is verified at %s, and the receiver consented at %s", c.URL, consented)
			case consents && c.Status != CallbackPending,
				c.Status == CallbackPending && before.Status != CallbackPending && !consents:
				t.Fatalf("%s to %s needs consent: %t", before.Status, c.Status, consents)
			case (c.Reason != "") != (c.Status == CallbackSuspended) && c.Status != before.Status:
				t.Fatalf("%s, because %q", c.Status, c.Reason)
			}
		}
	})
}
