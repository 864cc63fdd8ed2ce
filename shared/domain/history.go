package domain

import (
	"slices"
	"time"
)

// Action is one entry of a server's action log in Nova (os-instance-actions).
type Action struct {
	Name   string // "create", "stop", ...
	Start  time.Time
	Finish time.Time // when Nova last wrote to the entry; Start when it never did
	Failed bool      // Nova's message is "Error"
}

// History is what Nova still knows of one server's past.
type History struct {
	ServerID  string
	ProjectID string
	Created   time.Time
	Updated   time.Time // Nova's updated_at: no state changed after it
	Deleted   time.Time // zero while the server exists
	State     VMState   // the state now
	Actions   []Action
}

// keep is the effect of an action that leaves the state as it was.
const keep VMState = "="

// back is the effect of an action that returns to the state before a resize.
const back VMState = "<"

// effects says in which state a server is once an action has succeeded. What is not listed (locking,
// attaching, live migration, snapshots) keeps the state.
var effects = map[string]VMState{
	"create": StateActive, "start": StateActive, "stop": StateStopped, "reboot": StateActive,
	"pause": "paused", "unpause": StateActive, "suspend": "suspended", "resume": StateActive,
	"rescue": "rescued", "unrescue": StateActive, "shelve": "shelved", "shelveOffload": "shelved_offloaded",
	"unshelve": StateActive, "resize": "resized", "migrate": "resized", "confirmResize": back,
	"revertResize": back, "delete": StateDeleted, "restore": StateActive, "resetState": stateUnknown,
	"rebuild": keep, "evacuate": keep,
}

// StateAt is the server's state at the moment t, replayed from its actions. known is false when Nova's
// log does not tell: the count of that hour then stays missing.
//
// A state changes when its action finishes, because Nova's vm_state does. An action that failed may have
// left any state behind it; what is read now holds from the server's last change on.
func (h History) StateAt(t time.Time) (state VMState, known bool) {
	if t.Before(h.Created) || !h.Deleted.IsZero() && !t.Before(h.Deleted) {
		return StateAbsent, true
	}
	if h.Deleted.IsZero() && !t.Before(h.Updated) {
		return h.State, true
	}
	state, last := h.replay(t)
	if last && h.Deleted.IsZero() && state != h.State {
		// Nothing in the log explains the state of now (a host that failed, say), so it changed at some
		// moment between the last action and the last update.
		return stateUnknown, false
	}
	return state, state != stateUnknown
}

// replay applies the actions finished by t. last says that no later action changed the state.
func (h History) replay(t time.Time) (state VMState, last bool) {
	actions := slices.SortedStableFunc(slices.Values(h.Actions), func(a, b Action) int { return a.Start.Compare(b.Start) })
	state, last = StateBuilding, true
	before := StateActive
	for _, a := range actions {
		effect, listed := effects[a.Name]
		if !listed || effect == keep {
			continue
		}
		if a.Finish.After(t) {
			last = false
			continue
		}
		if effect == "resized" && state != stateUnknown && !a.Failed {
			before = state
		}
		state = a.apply(effect, before)
	}
	return state, last
}

func (a Action) apply(effect, before VMState) VMState {
	switch {
	case a.Failed && a.Name == "create":
		return StateError
	case a.Failed:
		return stateUnknown
	case effect == back:
		return before
	}
	return effect
}
