package domain

import (
	"slices"
	"time"
)

// Passed is a state that an instance was in for so short a time that nobody saw it.
type Passed struct {
	State  InstanceState
	Status string    // Nova's word for it
	At     time.Time // when it began, by Nova's action log
}

// outcomes are the statuses in which a server is once an action has succeeded. It is "" where the outcome depends on
// the state before, or the log does not say it: of a rebuild, an evacuation, the end of a resize.
//
// Statistics ask in which state a server was at a moment, and must leave open what the log does not date (see
// History). Here it is asked what came after what, which the log decides also for actions of the same second.
var outcomes = map[string]string{
	"start": "ACTIVE", "stop": "SHUTOFF", "reboot": "ACTIVE", "pause": "PAUSED", "unpause": "ACTIVE",
	"suspend": "SUSPENDED", "resume": "ACTIVE", "rescue": "RESCUE", "unrescue": "ACTIVE", "unshelve": "ACTIVE",
	"shelve": "SHELVED", "shelveOffload": "SHELVED_OFFLOADED", "resize": "VERIFY_RESIZE", "migrate": "VERIFY_RESIZE", "restore": "ACTIVE",
	"create": "ACTIVE", "delete": "DELETED", "confirmResize": "", "revertResize": "", "rebuild": "", "evacuate": "", "resetState": "",
}

// MayPass says whether the server's action log may hold states between what is known of the instance and what Nova
// shows now: it changed, and it is not just being made.
func (i Instance) MayPass(s Server) bool {
	switch i.State {
	case InstanceUnknown, InstanceDeleted, InstanceRequested, InstanceBuilding:
		return false
	}
	return i.ServerID == s.ID && !i.NovaAt.IsZero() && s.UpdatedAt.After(i.NovaAt) && s.Status != "UNKNOWN" && i.DisconnectedAt.IsZero()
}

// Between derives the states that the instance went through from what is known of it to what Nova shows now. The
// outcome of the last action is never among them: it is what Nova shows, or it is not reached yet. The log's newest action
// comes first, as Nova gives it: that alone says what came first within a second.
func (i Instance) Between(s Server, log []LoggedAction) []Passed {
	log = slices.DeleteFunc(slices.Clone(log), func(a LoggedAction) bool {
		_, listed := outcomes[a.Name]
		return !listed || a.Start.After(s.UpdatedAt.Add(time.Second)) // begun after Nova was asked
	})
	slices.Reverse(log)
	slices.SortStableFunc(log, func(a, b LoggedAction) int { return a.Start.Compare(b.Start) })
	var passed []Passed
	last := i.State
	pass := func(status string, at time.Time) {
		if state := StateOf(status, ""); state != last {
			passed, last = append(passed, Passed{State: state, Status: status, At: at}), state
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

// reached says whether the server was in the state to which the action leads before the next one began.
func (a LoggedAction) reached(next LoggedAction) bool {
	switch {
	case a.Failed || outcomes[a.Name] == "" || a.Finish.IsZero() || a.Finish.After(next.Start.Add(time.Second)):
		return false
	case next.Name == "delete": // which may break off any other
		return a.Finish.After(a.Start)
	}
	return true
}
