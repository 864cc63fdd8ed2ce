package domain

import (
	"slices"
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
	InstanceRebooting InstanceState = "rebooting"
	InstanceUpdating  InstanceState = "updating" // resize, rebuild, migration, and unknown statuses
	InstanceRescued   InstanceState = "rescued"
	InstanceError     InstanceState = "error"
	InstanceUnknown   InstanceState = "unknown" // its cell or the API is down; never counted as deleted
	InstanceDeleting  InstanceState = "deleting"
	InstanceDeleted   InstanceState = "deleted"
)

// Where an instance came from.
const (
	OriginLaunched  = "launched"  // from an order
	OriginConnected = "connected" // existed before
)

var stateOfStatus = map[string]InstanceState{
	"BUILD": InstanceBuilding, "ACTIVE": InstanceActive, "SHUTOFF": InstanceStopped,
	"SHELVED": InstanceShelved, "SHELVED_OFFLOADED": InstanceShelved,
	"PAUSED": InstancePaused, "SUSPENDED": InstancePaused,
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
}

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
	SeenAt         time.Time // when Nova was asked, by the database's clock
	MissedAt       time.Time // when Nova first answered 404 for its server; zero = it did not
	ConnectionID   uuid.UUID // that manages it; zero = none
	Remote         bool      // its server is in another cloud
	LeaseID        uuid.UUID // the open lease that it is in; zero = none
	DisconnectedAt time.Time // zero = it is connected
	CreatedAt      time.Time
	NovaAt         time.Time // the server's updated_at in Nova; zero = unknown
	DeleteTries    int       // calls to delete its server that Nova accepted or rejected
	DeleteTriedAt  time.Time // the last one; zero = never
	// CallID is the create call of ServerID. It is not stored with the instance.
	CallID uuid.UUID
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

// Seen updates the instance from its server. changed is false if nothing changed, or the transition is not allowed: a
// deleted instance stays deleted.
func (i *Instance) Seen(s Server) (changed bool) {
	if !i.may(StateOf(s.Status, s.Task)) {
		return false
	}
	old := *i
	i.ServerID, i.State, i.RawStatus, i.Problem = s.ID, StateOf(s.Status, s.Task), s.Status, nil
	// Nova shows only the creation time of a server whose cell is down.
	if s.UpdatedAt.After(i.NovaAt) && s.Status != "UNKNOWN" {
		i.NovaAt = s.UpdatedAt
	}
	if !s.Partial { // the rest is unknown if the cell is down or the server gone
		i.Name, i.Addresses, i.KeyName = s.Name, s.Addresses, s.KeyName
	}
	if i.State == InstanceError {
		i.Problem = novaFault(s, old)
	}
	return old.ServerID != i.ServerID || old.State != i.State || old.RawStatus != i.RawStatus ||
		old.Name != i.Name || !slices.Equal(old.Addresses, i.Addresses) || (old.Problem == nil) != (i.Problem == nil) ||
		old.Problem != nil && *old.Problem != *i.Problem
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
