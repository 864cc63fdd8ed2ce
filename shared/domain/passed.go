package domain

import (
	"slices"
	"time"
)

// PassedState is a state that an instance had between two polls.
type PassedState struct {
	State  InstanceState
	Status string    // in Nova
	At     time.Time // by Nova's action log
}

// outcomes are the statuses of a server after successful actions; "" if the status depends on the state before, or the
// log does not show it. Unlike History, which needs the state at a moment, only the order of states matters here, and
// the log has it even for actions of the same second.
var outcomes = map[string]string{
	"start": "ACTIVE", "stop": "SHUTOFF", "reboot": "ACTIVE", "pause": "PAUSED", "unpause": "ACTIVE",
	"suspend": "SUSPENDED", "resume": "ACTIVE", "rescue": "RESCUE", "unrescue": "ACTIVE", "unshelve": "ACTIVE",
	"shelve": "SHELVED", "shelveOffload": "SHELVED_OFFLOADED", "resize": "VERIFY_RESIZE", "migrate": "VERIFY_RESIZE",
	"restore": "ACTIVE", "create": "ACTIVE", "delete": "DELETED", "confirmResize": "", "revertResize": "",
	"rebuild": "", "evacuate": "",
	"resetState": "",
}

// MayHavePassed reports whether the server may have had states that no poll has seen: it changed, and is not being
// built.
func (i Instance) MayHavePassed(s Server) bool {
	switch i.State {
	case InstanceUnknown, InstanceDeleted, InstanceRequested, InstanceBuilding:
		return false
	}
	return i.ServerID == s.ID && !i.NovaAt.IsZero() && s.UpdatedAt.After(i.NovaAt) && s.Status != "UNKNOWN" &&
		i.DisconnectedAt.IsZero()
}

// PassedStates returns the states between the instance's known state and the server's current one, which is not among
// them. The log is the newest first, as Nova returns it: only that order tells actions of the same second apart.
func (i Instance) PassedStates(s Server, log []LoggedAction) []PassedState {
	log = slices.DeleteFunc(slices.Clone(log), func(a LoggedAction) bool {
		_, listed := outcomes[a.Name]
		return !listed || a.Start.After(s.UpdatedAt.Add(time.Second)) // begun after Nova was asked
	})
	slices.Reverse(log)
	slices.SortStableFunc(log, func(a, b LoggedAction) int { return a.Start.Compare(b.Start) })
	if i.State == InstanceDeleting { // what came before the deletion is over
		log = log[max(slices.IndexFunc(log, func(a LoggedAction) bool {
			return a.Name == "delete" && (a.Finish.IsZero() || a.Finish.After(i.NovaAt))
		}), 0):]
	}
	var passed []PassedState
	last := i.State
	pass := func(status string, at time.Time) {
		if state := StateOf(status, ""); state != last {
			passed, last = append(passed, PassedState{State: state, Status: status, At: at}), state
		}
	}
	for n, a := range log {
		if a.Name == "reboot" && a.Start.After(i.NovaAt) {
			pass("REBOOT", a.Start)
		}
		if n+1 < len(log) && a.Finish.After(i.NovaAt) && a.reached(log[n+1]) {
			pass(outcomes[a.Name], a.Finish)
		}
	}
	if seen := StateOf(s.Status, s.Task); last == seen && len(passed) > 0 {
		passed = passed[:len(passed)-1]
	}
	return passed
}

// reached reports whether the action completed before the next one began.
func (a LoggedAction) reached(next LoggedAction) bool {
	switch {
	case a.Failed || outcomes[a.Name] == "" || a.Finish.IsZero() || a.Finish.After(next.Start.Add(time.Second)):
		return false
	case next.Name == "delete": // which may break off any other
		return a.Finish.After(a.Start)
	}
	return true
}
