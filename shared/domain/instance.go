package domain

import (
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"

	"github.com/cloudfn/cloudfn/shared/apperr"
)

// InstanceState is the state of a tracked server, independent of Nova's version.
type InstanceState string

// The states of an instance.
const (
	InstanceRequested InstanceState = "requested" // Nova has not accepted it yet
	InstanceBuilding  InstanceState = "building"
	InstanceActive    InstanceState = "active"
	InstanceStopped   InstanceState = "stopped"
	InstanceShelved   InstanceState = "shelved"
	InstancePaused    InstanceState = "paused"
	InstanceSuspended InstanceState = "suspended"
	InstanceRebooting InstanceState = "rebooting"
	InstanceUpdating  InstanceState = "updating" // rebuild, live migration, and unknown statuses
	// InstanceResizing lasts until a resize or a cold migration is confirmed or reverted. The status VERIFY_RESIZE says
	// that it waits for that.
	InstanceResizing InstanceState = "resizing"
	InstanceRescued  InstanceState = "rescued"
	InstanceError    InstanceState = "error"
	InstanceUnknown  InstanceState = "unknown" // its cell or the API is down; never counted as deleted
	InstanceDeleting InstanceState = "deleting"
	InstanceDeleted  InstanceState = "deleted"
)

// Where an instance came from.
const (
	OriginLaunched  = "launched"  // from an order
	OriginConnected = "connected" // existed before
)

var stateOfStatus = map[string]InstanceState{
	"BUILD": InstanceBuilding, "ACTIVE": InstanceActive, "SHUTOFF": InstanceStopped,
	"SHELVED": InstanceShelved, "SHELVED_OFFLOADED": InstanceShelved,
	"PAUSED": InstancePaused, "SUSPENDED": InstanceSuspended,
	"RESIZE": InstanceResizing, verifyResize: InstanceResizing, "REVERT_RESIZE": InstanceResizing,
	"REBOOT": InstanceRebooting, "HARD_REBOOT": InstanceRebooting,
	"RESCUE": InstanceRescued, "ERROR": InstanceError, "UNKNOWN": InstanceUnknown,
	"DELETED": InstanceDeleted, "SOFT_DELETED": InstanceDeleting, // may be restored
}

// stateOfTask: while Nova works on a server, its status is the old one, and only its task changes.
var stateOfTask = map[string]InstanceState{
	"deleting": InstanceDeleting, "soft-deleting": InstanceDeleting,
	"powering-off": InstanceUpdating, "powering-on": InstanceUpdating,
	"shelving": InstanceUpdating, "shelving_offloading": InstanceUpdating, "unshelving": InstanceUpdating,
	"spawning": InstanceUpdating, "shelving_image_pending_upload": InstanceUpdating,
	"shelving_image_uploading": InstanceUpdating,
	"pausing":                  InstanceUpdating, "unpausing": InstanceUpdating, "suspending": InstanceUpdating,
	"resuming": InstanceUpdating, "rescuing": InstanceUpdating, "unrescuing": InstanceUpdating,
}

// verifyResize is Nova's status of a server that waits until its resize is confirmed or reverted.
const verifyResize = "VERIFY_RESIZE"

// StateOf translates Nova's status and task state ("" = no task). An unknown status counts as updating.
func StateOf(status, task string) InstanceState {
	state, ok := stateOfStatus[status]
	if !ok {
		return InstanceUpdating
	}
	doing, ok := stateOfTask[task]
	if !ok || state == InstanceDeleted || state == InstanceUnknown || state == InstanceBuilding &&
		doing != InstanceDeleting {
		return state
	}
	return doing
}

// Instance is a server under a UUID that survives restarts. Its UUID is a tag of the server.
type Instance struct {
	ID             uuid.UUID
	ProjectID      string
	OrderID        uuid.UUID // zero = not from an order
	Name           string
	ServerID       string // "" until Nova has accepted it
	State          InstanceState
	RawStatus      string // Nova's status
	Problem        *Problem
	UpdatedAt      time.Time
	Origin         string
	Spec           LaunchSpec // of the order; empty without one
	Addresses      []Address
	KeyName        string
	KeyFingerprint string
	Seq            int64     // of its last event
	SeenAt         time.Time // when Nova was read, by the database's clock
	MissedAt       time.Time // when Nova first answered 404 for its server; zero = it did not
	ConnectionID   uuid.UUID // that manages it; zero = none
	Remote         bool      // its server is in another cloud
	LeaseID        uuid.UUID // the open lease that it is in; zero = none
	DisconnectedAt time.Time // zero = it is connected
	CreatedAt      time.Time
	NovaAt         time.Time           // the server's updated_at in Nova; zero = unknown
	DeleteTries    int                 // calls to delete its server that Nova accepted or rejected
	DeleteTriedAt  time.Time           // the last one; zero = never
	VolumesSetAt   time.Time           // when StepVolumes was taken; zero = it was not
	PortGroups     *PortGroups         // nil = StepGroups was not taken
	FloatingIP     *InstanceFloatingIP // nil = StepFloatingIP was not taken
	// CallID is the create call of ServerID. It is not stored with the instance.
	CallID uuid.UUID
	// IsOtherSize reports that the last Observe has changed the flavor or the image of Spec.
	IsOtherSize bool `db:"-"`
}

// Problem is why an instance failed: a code of apperr, and Nova's message.
type Problem struct {
	Code   string `json:"code"`
	Detail string `json:"detail"`
}

// ProblemOf is an error as users see it.
func ProblemOf(err error) *Problem {
	e := apperr.As(err)
	return &Problem{Code: string(e.Code), Detail: e.Message}
}

// Decided reports whether Nova has accepted or rejected the instance.
func (i Instance) Decided() bool { return i.ServerID != "" || i.Problem != nil }

// Settled reports whether the launch of the instance has ended.
func (i Instance) Settled() bool {
	return i.Decided() && i.State != InstanceRequested && i.State != InstanceBuilding
}

// Observe updates the instance from its server. changed is false if nothing changed, or the transition is not allowed:
// a deleted instance stays deleted.
func (i *Instance) Observe(s Server) (changed bool) {
	if !i.may(StateOf(s.Status, s.Task)) {
		return false
	}
	old := *i
	i.ServerID, i.State, i.RawStatus, i.Problem = s.ID, StateOf(s.Status, s.Task), s.Status, nil
	// Nova shows only the creation time of a server whose cell is down.
	if s.UpdatedAt.After(i.NovaAt) && s.Status != "UNKNOWN" {
		i.NovaAt = s.UpdatedAt
	}
	if !s.Partial { // the rest is unknown if the cell is down or the server is deleted
		i.Name, i.Addresses, i.KeyName = s.Name, s.Addresses, s.KeyName
	}
	if i.State == InstanceError {
		i.Problem = novaFault(s, old)
	}
	i.observeSize(s)
	i.observeImage(s)
	return i.IsOtherSize || old.ServerID != i.ServerID || old.State != i.State || old.RawStatus != i.RawStatus ||
		old.Name != i.Name || !slices.Equal(old.Addresses, i.Addresses) || (old.Problem == nil) != (i.Problem == nil) ||
		old.Problem != nil && *old.Problem != *i.Problem
}

// observeSize takes the flavor of a server that was resized. Until a resize waits for its confirmation, Nova shows the
// old one, and Spec has what a connection's quota is held for.
func (i *Instance) observeSize(s Server) {
	f := s.Flavor
	isNamed := i.Spec.FlavorName == "" || i.Spec.FlavorName == f.Name
	isSame := isNamed && i.Spec.VCPUs == f.VCPUs && i.Spec.RAMMB == f.RAMMB
	isResizing := i.State == InstanceResizing && !s.IsResized()
	i.IsOtherSize = !s.Partial && f.Name != "" && i.Spec.VCPUs > 0 && !isSame && !isResizing
	if !i.IsOtherSize {
		return
	}
	i.Spec.Resized(Flavor{Name: f.Name, VCPUs: f.VCPUs, RAMMB: f.RAMMB, DiskGB: f.DiskGB})
}

// observeImage takes the image of a server that was rebuilt.
func (i *Instance) observeImage(s Server) {
	if s.Partial || s.Image == nil || i.Spec.ImageID == "" || s.Image.ID == i.Spec.ImageID {
		return
	}
	i.IsOtherSize = true
	i.Spec.ImageID, i.Spec.ImageRef = s.Image.ID, ""
}

// Accepted moves the instance to the state that follows from an action that Nova has accepted. changed is false if that
// is its state already.
func (i *Instance) Accepted(a ActionRequest) (changed bool) {
	after := a.After(i.State)
	if after == i.State {
		return false
	}
	i.State, i.Problem = after, nil
	return true
}

// unexplained is the detail of an instance in error until Nova shows a fault.
const unexplained = "the server is in ERROR"

// novaFault returns why the server is in ERROR. Nova writes the fault after the state, or never, and omits it from some
// lists: then the known problem stays.
func novaFault(s Server, known Instance) *Problem {
	switch {
	case s.Fault != nil && s.Fault.Message != "":
		return &Problem{Code: "nova_fault", Detail: s.Fault.Message}
	case known.State == InstanceError && known.ServerID == s.ID && known.Problem != nil:
		return known.Problem
	}
	return &Problem{Code: "nova_fault", Detail: unexplained}
}

// Unexplained reports whether the instance is in error without a fault from Nova.
func (i Instance) Unexplained() bool {
	return i.State == InstanceError && i.Problem != nil && i.Problem.Detail == unexplained
}

// Explain records Nova's fault of an instance in error.
func (i *Instance) Explain(fault Fault) {
	if i.State == InstanceError && fault.Message != "" {
		i.Problem = &Problem{Code: "nova_fault", Detail: fault.Message}
	}
}

// The state machines are tables of the states that may follow each state. machine_test.go draws the diagrams in
// docs/states.md from them, and checks random histories.

// living are the states of an instance with a server. Each may follow every other: between two polls a server may go
// through any of them.
var living = []InstanceState{
	InstanceBuilding, InstanceActive, InstanceStopped, InstanceShelved, InstancePaused, InstanceSuspended,
	InstanceRebooting, InstanceUpdating, InstanceResizing, InstanceRescued, InstanceError, InstanceUnknown,
	InstanceDeleting,
}

// InstanceTransitions are the states that may follow each state of an instance. Requested is only a first state, and
// deleted only a last one.
var InstanceTransitions = instanceTransitions()

func instanceTransitions() map[InstanceState][]InstanceState {
	next := map[InstanceState][]InstanceState{InstanceDeleted: {}}
	for _, from := range append([]InstanceState{InstanceRequested}, living...) {
		others := slices.DeleteFunc(slices.Clone(living), func(to InstanceState) bool { return to == from })
		next[from] = append(others, InstanceDeleted)
	}
	return next
}

// may reports whether the instance may be in the state now. A deleted one stays deleted.
func (i Instance) may(state InstanceState) bool {
	next, known := InstanceTransitions[i.State]
	return !known || i.State == state && len(next) > 0 || slices.Contains(next, state)
}

// Poll is the progress of reading the servers of a project with tracked instances. Times are the database's; zero =
// never.
type Poll struct {
	ProjectID string    // "" = the whole cloud
	Since     time.Time // changes before this are known
	FullAt    time.Time // when all servers were last read
	Uncertain int       // instances in unknown, or whose servers Nova did not find

	FailingSince time.Time // the first of the consecutive failed attempts
	NotBefore    time.Time // of the next attempt
	GoneAt       time.Time // when Keystone first answered 404 for the project
	ScanAt       time.Time // when the current read of all servers began
	ScanMarker   string    // the last server that it read
}

// longestRetry is the longest pause between two attempts to log in to a project.
const longestRetry = 15 * time.Minute

// Failed records a failed attempt. If the login to the project failed, the next attempt waits for half of the time
// since the first failure.
func (p *Poll) Failed(now time.Time, isLoginFailed bool) {
	if p.FailingSince.IsZero() {
		p.FailingSince = now
	}
	if isLoginFailed {
		p.NotBefore = now.Add(min(now.Sub(p.FailingSince)/2, longestRetry))
	}
}

// Succeeded records a successful attempt.
func (p *Poll) Succeeded() {
	p.FailingSince, p.NotBefore, p.GoneAt = time.Time{}, time.Time{}, time.Time{}
}

// UnreachableFor reports whether every attempt failed for at least d.
func (p *Poll) UnreachableFor(now time.Time, d time.Duration) bool {
	return !p.FailingSince.IsZero() && now.Sub(p.FailingSince) >= d
}

// ProjectGone marks the instance as deleted with its project.
func (i *Instance) ProjectGone() {
	i.State, i.RawStatus, i.MissedAt = InstanceDeleted, "DELETED", time.Time{}
	i.Problem = &Problem{Code: "project_gone", Detail: "the project was deleted in Keystone"}
}

// moving are the states that Nova soon leaves on its own. A resize that is to be confirmed is among them: see IsMoving.
var moving = []InstanceState{
	InstanceRequested, InstanceBuilding, InstanceRebooting, InstanceUpdating, InstanceResizing, InstanceDeleting,
}

// IsMoving reports whether Nova soon leaves the server's state on its own.
func (s Server) IsMoving() bool {
	return slices.Contains(moving, StateOf(s.Status, s.Task)) && !s.IsResized()
}

// IsResized reports whether the server waits until its resize or its migration is confirmed or reverted.
func (s Server) IsResized() bool { return s.Status == verifyResize && s.Task == "" }

// MovingStates returns the states that Nova soon leaves on its own. Their instances are polled more often.
func MovingStates() []InstanceState { return slices.Clone(moving) }

// MissedFor is the time between two reads that do not find an object, to count as deleted. They have to be independent:
// a database that has failed over, or that lags, shows nothing of objects that exist.
const MissedFor = 30 * time.Second

// Missed records that Nova did not find the instance's server. Not found for at least MissedFor, it is marked as
// deleted. changed is false if nothing changed.
func (i *Instance) Missed(now time.Time) (changed bool) {
	switch {
	case i.MissedAt.IsZero():
		i.MissedAt = now
		return true
	case now.Sub(i.MissedAt) < MissedFor:
		return false
	}
	i.MissedAt = time.Time{}
	return i.Observe(Server{ID: i.ServerID, Status: "DELETED", Partial: true})
}

// Found updates the instance from its server, which Nova found. changed is false if nothing changed.
func (i *Instance) Found(s Server) (changed bool) {
	missed := !i.MissedAt.IsZero()
	i.MissedAt = time.Time{}
	return i.Observe(s) || missed
}

const orderTag = "cloudfn-order:"

// OrderTag returns the tag of all servers of an order. Each also has its instance's id and its CallTag.
func OrderTag(id uuid.UUID) string { return orderTag + id.String() }

// Made returns the order and the instance in the server's tags. ok is false unless there is exactly one of each.
func (s Server) Made() (order, instance uuid.UUID, ok bool) {
	var orders, instances []uuid.UUID
	for _, tag := range s.Tags {
		text, ofOrder := strings.CutPrefix(tag, orderTag)
		id, err := uuid.Parse(text)
		switch {
		case err != nil || text != id.String():
		case ofOrder:
			orders = append(orders, id)
		default:
			instances = append(instances, id)
		}
	}
	if len(orders) != 1 || len(instances) != 1 {
		return order, instance, false
	}
	return orders[0], instances[0], true
}

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

// MayHavePassed reports whether the server may have had states that no poll has observed: it changed, and is not being
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
		return !listed || a.Start.After(s.UpdatedAt.Add(time.Second)) // begun after Nova was read
	})
	slices.Reverse(log)
	slices.SortStableFunc(log, func(a, b LoggedAction) int { return a.Start.Compare(b.Start) })
	if i.State == InstanceDeleting { // what came before the deletion has ended
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
	if current := StateOf(s.Status, s.Task); last == current && len(passed) > 0 {
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
