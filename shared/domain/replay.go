package domain

import (
	"slices"
	"time"
)

// results are the states that a server can be in after an action has succeeded (nova/compute/manager.py). An action
// that is not listed (locking, attaching, live migration, snapshots) keeps the state.
var results = map[string][]VMState{
	"create": {StateActive}, "start": {StateActive}, "stop": {StateStopped}, "reboot": {StateActive},
	"pause": {"paused"}, "unpause": {StateActive}, "suspend": {"suspended"}, "resume": {StateActive},
	"rescue": {"rescued"}, "unrescue": {StateActive},
	// With shelved_offload_time=0, Nova's default, and for servers that boot from a volume the same action offloads.
	"shelve": {stateShelved, stateOffloaded}, "shelveOffload": {stateOffloaded}, "unshelve": {StateActive},
	"resize": {stateResized}, "migrate": {stateResized}, "delete": {StateDeleted}, "restore": {StateActive},
	"resetState": {StateActive, StateError}, // the log does not say which
	// These depend on the state before: see LoggedAction.after.
	"confirmResize": nil, "revertResize": nil, "rebuild": nil, "evacuate": nil,
}

const (
	stateShelved   VMState = "shelved"
	stateOffloaded VMState = "shelved_offloaded"
	stateResized   VMState = "resized"
)

// ChangesState reports whether an action can change a server's vm_state.
func ChangesState(action string) bool {
	_, ok := results[action]
	return ok
}

// StateAt is the server's state at the moment t, replayed from its actions. known is false when Nova's log does not
// say. Nova's times are whole seconds, so a state that changed within the second that begins at t is not known.
//
// A state changes when its action finishes, because Nova's vm_state does. An action that failed may have left the state
// before it, its result, or an error. What is read now holds from the server's last change on.
func (h History) StateAt(t time.Time) (state VMState, known bool) {
	state, known = h.stateBefore(t)
	after, afterKnown := h.stateBefore(t.Add(time.Nanosecond))
	if !known || !afterKnown || state != after {
		return stateUnknown, false
	}
	return state, true
}

// stateBefore is the state that follows from all that happened before t.
func (h History) stateBefore(t time.Time) (state VMState, known bool) {
	if !h.Created.Before(t) || !h.Deleted.IsZero() && h.Deleted.Before(t) {
		return StateAbsent, true
	}
	if h.Deleted.IsZero() && h.Updated.Before(t) {
		return h.State, true
	}
	r := h.replay(t)
	switch {
	case r.next == "" && h.Deleted.IsZero():
		// Something else than the log explains the state of now (a host that failed, say) when it is not among the
		// possible.
		state, known = h.State, slices.Contains(r.states, h.State) && (!r.open || len(r.states) == 1)
	case len(r.states) == 1:
		state, known = r.states[0], r.states[0] != stateUnknown
	case slices.Equal(r.states, results["shelve"]) && !r.open:
		// Neither of them runs. Only a shelved server is offloaded later.
		if state, known = stateOffloaded, true; r.next == "shelveOffload" {
			state = stateShelved
		}
	}
	if !known {
		return stateUnknown, false
	}
	return state, true
}

// replayed is what a log says of a moment.
type replayed struct {
	states []VMState // that are possible
	open   bool      // an action had begun, and it is not known whether it was finished
	next   string    // the first action after the moment that can change the state
}

// replay applies the actions that finished before t.
func (h History) replay(t time.Time) replayed {
	actions := slices.SortedStableFunc(slices.Values(h.Actions), func(a, b LoggedAction) int {
		return a.Start.Compare(b.Start)
	})
	r := replayed{states: []VMState{stateUnknown}}
	if slices.ContainsFunc(actions, func(a LoggedAction) bool { return a.Name == "create" }) {
		r.states = []VMState{StateBuilding}
	}
	resizedFrom, finished := []VMState{StateActive, StateStopped}, r.states
	for _, a := range actions {
		if !ChangesState(a.Name) {
			continue
		}
		if a.begins(t) {
			r.states, r.open = finished, false // Nova begins an action when the one before has finished
		}
		if !a.Finish.Before(t) || a.Finish.IsZero() && !a.Start.Before(t) {
			if r.next == "" {
				r.next = a.Name
			}
			continue
		}
		finished = a.after(r.states, resizedFrom)
		if a.Name == "resize" || a.Name == "migrate" {
			resizedFrom = r.states
		}
		if r.open = a.Finish.IsZero(); r.open {
			r.states = union(r.states, finished)
		} else {
			r.states = finished
		}
	}
	return r
}

// begins reports whether the action had begun before t.
func (a LoggedAction) begins(t time.Time) bool { return a.Start.Before(t) }

// after is the states that are possible after the action.
func (a LoggedAction) after(before, resizedFrom []VMState) []VMState {
	after := results[a.Name]
	switch a.Name {
	case "create":
		if a.Failed {
			return []VMState{StateError}
		}
	case "confirmResize", "revertResize":
		after = resizedFrom
	case "rebuild", "evacuate":
		after = nil
		for _, s := range before {
			if s != StateStopped && s != stateUnknown {
				s = StateActive
			}
			after = union(after, []VMState{s})
		}
	}
	if a.Failed {
		return union(union(before, after), []VMState{StateError})
	}
	return after
}

// union keeps the order of a.
func union(a, b []VMState) []VMState {
	all := slices.Clone(a)
	for _, s := range b {
		if !slices.Contains(all, s) {
			all = append(all, s)
		}
	}
	return all
}
