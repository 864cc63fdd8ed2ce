package domain

import "time"

// Source says where the numbers of an hour come from.
type Source string

// The sources of an hour's numbers.
const (
	Sampled Source = "sampled" // read at the hour, at most SampleGrace late
	Rebuilt Source = "rebuilt" // worked out later from Nova's own history
	Missing Source = "missing" // not known: null, never zero
)

// SampleGrace is how long after the full hour a count still is that hour's sample; EarlyGrace is how
// much too early a tick may come when its sender's clock runs ahead of the database's.
const (
	SampleGrace = 5 * time.Minute
	EarlyGrace  = 30 * time.Second
)

// VMState is Nova's vm_state of a server: what it is when no task is running on it.
type VMState string

// The vm_states that the counting rules name; Nova has others, and they are kept as they come.
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

// Status is the state's name in Nova's server status, without the tasks ("REBOOT" is "ACTIVE" here);
// a state that is not known is given as it came.
func (s VMState) Status() string {
	if name, ok := statusNames[s]; ok {
		return name
	}
	return string(s)
}

// exists says whether a server in this state is one that its project still has.
func (s VMState) exists() bool {
	return s != StateAbsent && s != StateDeleted && s != StateSoftDel
}

// HourCount is how many servers a project had at one full hour.
type HourCount struct {
	ProjectID string
	DomainID  string
	Hour      time.Time      // the full hour, UTC
	Running   int            // vm_state active
	Total     int            // every server that was not deleted
	ByStatus  map[string]int // Nova's status names; sums up to Total
	Source    Source
	// Undecided are the ids of the servers whose state at the hour the log does not decide, at least not yet. They are
	// in none of the numbers above.
	Undecided []string
	// Recheck is how long after this count the undecided servers are checked again.
	Recheck time.Duration
	// Settled says that no check within the next minutes is expected to decide more.
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

// RefinedCount is a count whose undecided servers were checked again.
type RefinedCount struct {
	HourCount
	Before int // how many servers were undecided in the count that it was worked out from
}

// HourStat is one hour of a project, a domain or the cloud, as it is shown.
type HourStat struct {
	Hour     time.Time      `json:"hour"` // the full hour, UTC
	Running  *int           `json:"running" nullable:"true" minimum:"0" doc:"Servers that were ACTIVE for certain."`
	Total    *int           `json:"total" nullable:"true" minimum:"0" doc:"Servers that were not deleted, in whatever status."`
	ByStatus map[string]int `json:"by_status" doc:"Servers in each Nova status. REBOOT and such count as the state beneath."`
	// Uncertain is how many servers Nova's log does not decide: they are in none of the numbers above.
	Uncertain int    `json:"uncertain" minimum:"0" doc:"Servers whose state Nova's log does not decide. They are in no other number."`
	Source    Source `json:"source"` // rebuilt when at least one project's numbers are
}

// Undecided servers are checked again after recheckSoon at first, then by every minute's tick, whose own time is less
// than a minute after the last one's. After SettleAfter a log that is not whole hardly becomes so: the pauses grow.
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

// NeedsLog says whether only the action log can tell the server's state at t: it existed then, or may have, and has
// changed since. When it does not, StateAt knows the state without actions.
func (h History) NeedsLog(t time.Time) bool {
	last := h.Updated
	if !h.Deleted.IsZero() {
		last = h.Deleted
	}
	return !t.Before(h.Created) && !t.After(last)
}

// Slot is the hour that a tick at now works for: the last full hour, or the next when it is about to begin.
func Slot(now time.Time) time.Time {
	return now.UTC().Add(EarlyGrace).Truncate(time.Hour)
}

// HourKey names a full hour, in the keys of jobs and in events.
func HourKey(hour time.Time) string { return hour.UTC().Format(time.RFC3339) }

// SourceAt says what a count of the hour, taken at now, may call itself.
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

// Standing is one server as it stands now.
type Standing struct {
	ServerID  string
	ProjectID string
	State     VMState
	Created   time.Time // zero for a server that was launched once
}
