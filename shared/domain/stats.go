package domain

import (
	"slices"
	"time"
)

// Source says where the numbers of an hour come from.
type Source string

// The sources of an hour's numbers.
const (
	Sampled Source = "sampled" // read at the hour, at most SampleGrace late
	Rebuilt Source = "rebuilt" // computed later from Nova's history
	Missing Source = "missing" // unknown: null, never zero
)

// A count is a sample until SampleGrace after the full hour. A tick may come EarlyGrace too early, if its sender's
// clock is ahead of the database's.
const (
	SampleGrace = 5 * time.Minute
	EarlyGrace  = 30 * time.Second
)

// VMState is Nova's vm_state of a server.
type VMState string

// The vm_states with rules of their own. Others are kept as they are.
const (
	StateAbsent   VMState = "" // not yet created, or deleted
	StateBuilding VMState = "building"
	StateActive   VMState = "active"
	StateStopped  VMState = "stopped"
	StateError    VMState = "error"
	StateDeleted  VMState = "deleted"
	StateSoftDel  VMState = "soft-delete"
	stateUnknown  VMState = "?"
)

var statusNames = map[VMState]string{
	"active": "ACTIVE", "building": "BUILD", "stopped": "SHUTOFF", "paused": "PAUSED",
	"suspended": "SUSPENDED", "rescued": "RESCUE", "resized": "VERIFY_RESIZE", "error": "ERROR",
	"shelved": "SHELVED", "shelved_offloaded": "SHELVED_OFFLOADED", "soft-delete": "SOFT_DELETED",
}

// Status returns Nova's server status of the state, regardless of tasks (ACTIVE instead of REBOOT). An unknown state
// stays as it is.
func (s VMState) Status() string {
	if name, ok := statusNames[s]; ok {
		return name
	}
	return string(s)
}

// exists reports whether a server in this state counts for its project.
func (s VMState) exists() bool {
	return s != StateAbsent && s != StateDeleted && s != StateSoftDel
}

// HourCount counts the servers of a project at one full hour.
type HourCount struct {
	ProjectID string
	DomainID  string
	Hour      time.Time      // the full hour, UTC
	Running   int            // vm_state active
	Total     int            // every server that was not deleted
	ByStatus  map[string]int // Nova's status names; sums up to Total
	Launched  int            // created within the hour that ends then; not read from stored counts
	Source    Source
	// Undecided are the ids of the servers whose state at the hour the log does not show, or not yet. The numbers above
	// do not include them.
	Undecided []string
	// Recheck is how long after this count the undecided servers are checked again.
	Recheck time.Duration
	// Settled reports whether the next minutes are not expected to decide more.
	Settled bool
}

// Add counts one server in the state.
func (h *HourCount) Add(s VMState) { h.AddMany(s, 1) }

// AddMany counts n servers in the state.
func (h *HourCount) AddMany(s VMState, n int) {
	if !s.exists() || n == 0 {
		return
	}
	if h.ByStatus == nil {
		h.ByStatus = map[string]int{}
	}
	h.ByStatus[s.Status()] += n
	h.Total += n
	if s == StateActive {
		h.Running += n
	}
}

// AddCreated counts a server as launched if it was created within the hour that ends at the full hour.
func (h *HourCount) AddCreated(at time.Time) {
	if at.Before(h.Hour) && !at.Before(h.Hour.Add(-time.Hour)) {
		h.Launched++
	}
}

// Recount is a count whose undecided servers were checked again.
type Recount struct {
	HourCount
	Before int // undecided servers in the count before
}

// HourStat is one hour of a project, a domain or the cloud.
type HourStat struct {
	Hour     time.Time      `json:"hour"` // the full hour, UTC
	Running  *int           `json:"running" nullable:"true" minimum:"0" doc:"Servers that were ACTIVE for certain."`
	Total    *int           `json:"total" nullable:"true" minimum:"0" doc:"Servers that existed, in any status."`
	Launched *int           `json:"launched" nullable:"true" minimum:"0"`
	ByStatus map[string]int `json:"by_status" doc:"Servers per Nova status, regardless of tasks."`
	// Uncertain is how many servers Nova's log does not decide: of the numbers above, only Launched includes them.
	Uncertain int    `json:"uncertain" minimum:"0" doc:"Servers of unknown state: in no other number but launched."`
	Source    Source `json:"source"` // rebuilt when at least one project's numbers are
}

// Undecided servers are checked again after recheckSoon, then every recheckTick, and after SettleAfter with growing
// pauses.
const (
	recheckSoon = 10 * time.Second
	recheckTick = 45 * time.Second
	SettleAfter = 10 * time.Minute
)

// Schedule sets when a count that was taken at now is checked again, if it has undecided servers.
func (h *HourCount) Schedule(now time.Time) {
	age := now.Sub(h.Hour)
	switch h.Recheck, h.Settled = 0, true; {
	case len(h.Undecided) == 0:
	case age < recheckSoon:
		h.Recheck, h.Settled = recheckSoon, false
	case age < SettleAfter:
		h.Recheck, h.Settled = recheckTick, false
	default:
		h.Recheck = age
	}
}

// NeedsLog reports whether the server's state at t needs its action log: it may have existed then, and has changed
// since.
func (h History) NeedsLog(t time.Time) bool {
	last := h.Updated
	if !h.Deleted.IsZero() {
		last = h.Deleted
	}
	return !t.Before(h.Created) && !t.After(last)
}

// Slot returns the hour that a tick at now counts: the last full hour, or the next one shortly before it.
func Slot(now time.Time) time.Time {
	return now.UTC().Add(EarlyGrace).Truncate(time.Hour)
}

// HourKey returns the name of a full hour in keys of jobs and in events.
func HourKey(hour time.Time) string { return hour.UTC().Format(time.RFC3339) }

// SourceAt returns the source of a count of the hour that is taken at now.
func SourceAt(hour, now time.Time) Source {
	if now.Sub(hour) <= SampleGrace {
		return Sampled
	}
	return Rebuilt
}

// Hours lists n full hours that end with last, oldest first.
func Hours(last time.Time, n int) []time.Time {
	hours := make([]time.Time, n)
	for i := range hours {
		hours[i] = last.Add(-time.Duration(n-1-i) * time.Hour)
	}
	return hours
}

// Project is a Keystone project.
type Project struct {
	ID       string
	Name     string
	DomainID string
}

// CurrentServer is one server and its state now.
type CurrentServer struct {
	ServerID  string
	ProjectID string
	State     VMState
	Created   time.Time // zero for a server that was launched once
}

// LoggedAction is one entry of a server's action log in Nova (os-instance-actions).
type LoggedAction struct {
	Name   string // "create", "stop", ...
	Start  time.Time
	Finish time.Time // Nova's updated_at of the entry; zero = unknown, or not finished
	Failed bool      // Nova's message is "Error"
}

// History is a server's past as Nova shows it.
type History struct {
	ServerID  string
	ProjectID string
	Created   time.Time
	Updated   time.Time // Nova's updated_at: no state changed after it
	Deleted   time.Time // zero while the server exists
	State     VMState   // the state now
	Actions   []LoggedAction
}

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
