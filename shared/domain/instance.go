package domain

import (
	"slices"
	"time"

	"github.com/google/uuid"
)

// InstanceState is the state of a tracked server, in words that do not change with Nova's versions.
type InstanceState string

// The states of an instance.
const (
	InstanceRequested InstanceState = "requested" // ordered; Nova has not said yes yet
	InstanceBuilding  InstanceState = "building"
	InstanceActive    InstanceState = "active"
	InstanceStopped   InstanceState = "stopped"
	InstanceShelved   InstanceState = "shelved"
	InstancePaused    InstanceState = "paused"
	InstanceRebooting InstanceState = "rebooting"
	InstanceUpdating  InstanceState = "updating" // resize, rebuild, migration, and whatever Nova may add
	InstanceRescued   InstanceState = "rescued"
	InstanceError     InstanceState = "error"
	InstanceUnknown   InstanceState = "unknown" // its cell or the API is away: never counted as gone
	InstanceDeleting  InstanceState = "deleting"
	InstanceDeleted   InstanceState = "deleted"
)

// Where an instance came from.
const (
	OriginLaunched  = "launched"  // from an order
	OriginConnected = "connected" // it was there already
)

var stateOfStatus = map[string]InstanceState{
	"BUILD": InstanceBuilding, "ACTIVE": InstanceActive, "SHUTOFF": InstanceStopped,
	"SHELVED": InstanceShelved, "SHELVED_OFFLOADED": InstanceShelved,
	"PAUSED": InstancePaused, "SUSPENDED": InstancePaused,
	"REBOOT": InstanceRebooting, "HARD_REBOOT": InstanceRebooting,
	"RESCUE": InstanceRescued, "ERROR": InstanceError, "UNKNOWN": InstanceUnknown,
	"DELETED": InstanceDeleted, "SOFT_DELETED": InstanceDeleting, // it can still be restored
}

// While Nova works on a server, its status is still the old one and its task says what is being done.
var stateOfTask = map[string]InstanceState{
	"deleting": InstanceDeleting, "soft-deleting": InstanceDeleting,
	"powering-off": InstanceUpdating, "powering-on": InstanceUpdating,
	"shelving": InstanceUpdating, "shelving_offloading": InstanceUpdating, "unshelving": InstanceUpdating, "spawning": InstanceUpdating,
}

// StateOf translates Nova's status and task state ("" = no task). A status that is not in the table is something in
// progress.
func StateOf(status, task string) InstanceState {
	state, ok := stateOfStatus[status]
	if !ok {
		return InstanceUpdating
	}
	doing, ok := stateOfTask[task]
	if !ok || state == InstanceDeleted || state == InstanceUnknown || state == InstanceBuilding && doing != InstanceDeleting {
		return state
	}
	return doing
}

// Instance is a server under a UUID that survives restarts. Its UUID is a tag of the server.
type Instance struct {
	ID             uuid.UUID
	ProjectID      string
	OrderID        uuid.UUID // the zero UUID for one that came from no order
	Name           string
	ServerID       string // "" until Nova has accepted it
	State          InstanceState
	RawStatus      string // Nova's own word for the state
	Problem        *Problem
	UpdatedAt      time.Time
	Origin         string
	Spec           LaunchSpec // what the order asks for; empty for one that came from no order
	Addresses      []Address
	KeyName        string
	KeyFingerprint string
	Seq            int64     // of its last event
	SeenAt         time.Time // when what is known was asked for, by the database's clock
	MissedAt       time.Time // when Nova first did not know its server any more; zero = it does
	ConnectionID   uuid.UUID // through which it is managed; zero = none
	Remote         bool      // its server is in another cloud than ours
	DisconnectedAt time.Time // when it was let go; zero = it was not
	CreatedAt      time.Time
	NovaAt         time.Time // Nova's updated_at of the server when it was last seen; zero = not known
	DeleteTries    int       // how many times Nova took or refused the call to delete its server
	DeleteTriedAt  time.Time // when last; zero = never
	CallID         uuid.UUID // of the create call that made, or is about to be known to have made, ServerID; not stored with the instance
}

// Problem is why an instance could not be had: a code of apperr, and Nova's own words.
type Problem struct {
	Code   string `json:"code"`
	Detail string `json:"detail"`
}

// Decided says whether Nova has accepted or refused the instance.
func (i Instance) Decided() bool { return i.ServerID != "" || i.Problem != nil }

// Settled says whether the instance is past its launch.
func (i Instance) Settled() bool {
	return i.Decided() && i.State != InstanceRequested && i.State != InstanceBuilding
}

// Seen applies what Nova says of the instance's server. changed is false when that is nothing new, or cannot be: a deleted
// instance stays deleted.
func (i *Instance) Seen(s Server) (changed bool) {
	if !i.may(StateOf(s.Status, s.Task)) {
		return false
	}
	old := *i
	i.ServerID, i.State, i.RawStatus, i.Problem = s.ID, StateOf(s.Status, s.Task), s.Status, nil
	if s.UpdatedAt.After(i.NovaAt) && s.Status != "UNKNOWN" { // of a server whose cell is down Nova says only when it was created
		i.NovaAt = s.UpdatedAt
	}
	if !s.Partial { // of a server whose cell is down, or that is gone, the rest is not known
		i.Name, i.Addresses, i.KeyName = s.Name, s.Addresses, s.KeyName
	}
	if i.State == InstanceError {
		i.Problem = novaFault(s, old)
	}
	return old.ServerID != i.ServerID || old.State != i.State || old.RawStatus != i.RawStatus ||
		old.Name != i.Name || !slices.Equal(old.Addresses, i.Addresses) || (old.Problem == nil) != (i.Problem == nil) || old.Problem != nil && *old.Problem != *i.Problem
}

// unexplained is the detail of an instance in error while Nova's reason is not known.
const unexplained = "the server is in ERROR"

// novaFault is why the server is in ERROR. Nova writes the reason a moment after the state, sometimes not at all, and leaves it out of some
// lists: then what is known of the instance stays.
func novaFault(s Server, known Instance) *Problem {
	switch {
	case s.Fault != nil && s.Fault.Message != "":
		return &Problem{Code: "nova_fault", Detail: s.Fault.Message}
	case known.State == InstanceError && known.ServerID == s.ID && known.Problem != nil:
		return known.Problem
	}
	return &Problem{Code: "nova_fault", Detail: unexplained}
}

// Unexplained says whether the instance is in error and Nova's reason is not known.
func (i Instance) Unexplained() bool {
	return i.State == InstanceError && i.Problem != nil && i.Problem.Detail == unexplained
}

// Explain applies Nova's reason to an instance that is in error.
func (i *Instance) Explain(fault Fault) {
	if i.State == InstanceError && fault.Message != "" {
		i.Problem = &Problem{Code: "nova_fault", Detail: fault.Message}
	}
}
