package domain

import (
	"flag"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
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
		InstanceRebooting,
		InstanceUpdating, InstanceRescued, InstanceError, InstanceUnknown, InstanceDeleting, InstanceDeleted,
	}, InstanceTransitions)) +
		diagram("The actions that each state of an instance allows, and the state that follows at once:", asked()) +
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

// asked draws what may be asked for.
func asked() string {
	var lines strings.Builder
	for _, from := range append([]InstanceState{InstanceRequested}, living...) {
		for _, a := range ActionTransitions[from] {
			if a.Action == Delete {
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
			t.Errorf("nobody says what may be asked for of an instance that is %s", state)
		}
		if wantsDelete := slices.Contains(living, state) &&
			state != InstanceDeleting; slices.Contains(ActionTransitions[state], requestDelete) != wantsDelete {
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
