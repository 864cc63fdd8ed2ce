package domain

import (
	"slices"
	"time"

	"github.com/google/uuid"
)

// OrderStatus is the status of an order.
type OrderStatus string

// The statuses of an order. Only running is not final.
const (
	OrderRunning    OrderStatus = "running"
	OrderDone       OrderStatus = "done"
	OrderPartial    OrderStatus = "partial" // some instances failed
	OrderFailed     OrderStatus = "failed"  // all instances failed
	OrderRolledBack OrderStatus = "rolled_back"
)

// Order is one launch request of 1..N instances.
type Order struct {
	ID         uuid.UUID
	ProjectID  string
	DomainID   string
	UserID     string
	BodySHA256 []byte // of the canonical request; tells a repeat from another order with the same id
	Spec       OrderSpec
	Status     OrderStatus
	Problem    *Problem // why it failed, where no instance shows it
	CreatedAt  time.Time
	Instances  []Instance
	Callback   *Callback // created with the order, for all of its events
	Lease      *NewLease // created with the order, for its instances
	Actor      *Actor    // who places it; only written

	ConnectionID uuid.UUID // through which run-connections carries it out; zero = its caller does
	Payload      []byte    // of an order through a connection: a sealed DelegatedOrder

	Calls         []CreateCall // the recorded ones of its instances
	CallsRecorded bool         // all create calls are recorded; false for orders of older versions
	ReadAt        time.Time    // when it was read, by the database's clock
}

// OrderQuery selects a page of orders, the newest first.
type OrderQuery struct {
	Filter
	Statuses []string // empty = all
	Limit    int
	Marker   uuid.UUID // the last id of the page before; zero = the first page
}

// RunningOrder names a running order.
type RunningOrder struct {
	ProjectID string
	ID        uuid.UUID
	UpdatedAt time.Time
}

// ListedOrder is an order of a list, as it is stored.
type ListedOrder struct {
	Order
	Busy bool // a replica is working on it
}

// OrderStatuses lists all statuses of an order.
func OrderStatuses() []string {
	return texts(OrderRunning, OrderDone, OrderPartial, OrderFailed, OrderRolledBack)
}

// OrderSpec is the part of an order's request that concerns all servers. It is stored with the order, so it has no
// secrets.
type OrderSpec struct {
	OnFailure    OnFailure `json:"on_failure,omitempty"`
	Stopped      bool      `json:"stopped,omitempty"`       // stop each server when it is ACTIVE
	GeneratedKey string    `json:"generated_key,omitempty"` // name of the order's own key pair
	// Reuse takes idle instances of the connection before it creates new ones.
	Reuse bool `json:"reuse,omitempty"`

	// IsManaged says that its server is a member of a managed resource, and carries ManagedTag.
	IsManaged bool `json:"managed,omitempty"`

	ReservationID *uuid.UUID `json:"reservation_id,omitempty"` // whose hosts the servers are for
	CallbackID    *uuid.UUID `json:"callback_id,omitempty"`    // of the order's own callback
	LeaseID       *uuid.UUID `json:"lease_id,omitempty"`       // of the order's own lease
}

// Attended reports whether the order needs more steps than creating its servers.
func (s OrderSpec) Attended() bool { return s.OnFailure == Rollback || s.Stopped || s.Reuse }

// OnFailure says what happens to an order's servers when one of them fails.
type OnFailure string

// The values of OnFailure; empty is Keep.
const (
	Keep     OnFailure = "keep"
	Rollback OnFailure = "rollback" // all or nothing: delete every server
)

// OrderTransitions are the statuses that may follow each status of an order.
var OrderTransitions = map[OrderStatus][]OrderStatus{
	OrderRunning:    {OrderDone, OrderPartial, OrderFailed, OrderRolledBack},
	OrderDone:       {},
	OrderPartial:    {},
	OrderFailed:     {},
	OrderRolledBack: {},
}

// Evaluate returns the status that follows from the instances. A final status never changes.
func (o Order) Evaluate() OrderStatus {
	if o.Status != OrderRunning && o.Status != "" {
		return o.Status
	}
	if o.RollingBack() {
		return o.rolledBack()
	}
	failed := 0
	for _, i := range o.Instances {
		if !o.settled(i) {
			return OrderRunning
		}
		if i.State == InstanceError {
			failed++
		}
	}
	switch failed {
	case 0:
		return OrderDone
	case len(o.Instances):
		return OrderFailed
	}
	return OrderPartial
}

// rolledBack returns the status of an order that is being rolled back. It fails if Nova could not delete the remaining
// servers.
func (o Order) rolledBack() OrderStatus {
	left := o.Left()
	switch {
	case len(left) == 0:
		return OrderRolledBack
	case slices.ContainsFunc(left, func(i Instance) bool { return !o.undeletable(i) }):
		return OrderRunning
	}
	return OrderFailed
}

// Abandoned returns the status of an order whose connection has ended, and whose instances are all decided. It follows
// from the instances as they are, without the steps that are left: to stop, start or roll back.
func (o Order) Abandoned() OrderStatus {
	gone := make([]bool, len(o.Instances)) // idle servers that are gone
	for n, i := range o.Instances {
		gone[n] = o.IsReplaced(i)
	}
	o.Spec = OrderSpec{}
	o.Instances = slices.Clone(o.Instances)
	for n := range o.Instances {
		switch i := &o.Instances[n]; {
		case gone[n]:
			i.State = InstanceError
		case !i.Settled():
			i.State = InstanceUnknown
		}
	}
	return o.Evaluate()
}

// settled reports whether the instance is as ordered, or cannot become so.
func (o Order) settled(i Instance) bool {
	if i.isDisconnected() {
		return true
	}
	if o.IsReplaced(i) {
		return false
	}
	if o.Spec.Stopped {
		switch i.State {
		case InstanceActive, InstanceUpdating, InstanceRebooting, InstanceUnknown:
			return false
		}
	}
	if o.starts(i) || o.Spec.Reuse && i.State == InstanceUpdating { // starting
		return false
	}
	return i.Settled()
}

// starts reports whether a reused instance is still to be started.
func (o Order) starts(i Instance) bool {
	return o.Spec.Reuse && !o.Spec.Stopped && i.State == InstanceStopped
}

// IsReused reports whether the order reuses an idle instance.
func (o Order) IsReused(i Instance) bool { return o.Spec.Reuse && i.CreatedAt.Before(o.CreatedAt) }

// IsReplaced reports whether the order needs another instance for a reused one that is gone.
func (o Order) IsReplaced(i Instance) bool {
	return o.Status == OrderRunning && o.IsReused(i) && !i.isDisconnected() &&
		(i.State == InstanceDeleting || i.State == InstanceDeleted)
}

// HasReplaced reports whether one of the order's instances must be replaced.
func (o Order) HasReplaced() bool { return slices.ContainsFunc(o.Instances, o.IsReplaced) }

// isDisconnected reports whether the instance was disconnected. Orders ignore such instances.
func (i Instance) isDisconnected() bool { return !i.DisconnectedAt.IsZero() }

// Step is the next step for one instance of an order.
type Step string

// The steps of an order.
const (
	StepNone   Step = ""       // nothing to do now
	StepCreate Step = "create" // find its server by tag, or create it
	StepStop   Step = "stop"   // stop the server
	StepStart  Step = "start"  // start the reused server
	StepDelete Step = "delete" // delete the server
	// StepForgo finds its server by tag, and records Forgone if it has none: it is not created any more.
	StepForgo Step = "forgo"
)

// Forgone is the Problem of an instance that was not created, because its order is rolled back.
func Forgone() *Problem {
	return &Problem{
		Code:   "rolled_back",
		Detail: "not created: another instance of the order failed, and the order is all or nothing",
	}
}

// Next returns the next step of each instance. All steps are idempotent. If there are no steps and Evaluate still
// returns running, Nova is busy. A final order has no steps.
func (o Order) Next() []Step {
	steps := make([]Step, len(o.Instances))
	rollingBack := o.RollingBack()
	for n, i := range o.Instances {
		switch {
		case i.isDisconnected(), o.Status != OrderRunning:
		case rollingBack && o.awaits(i, rollbackPatience):
		case rollingBack:
			steps[n] = o.undo(i)
		case !i.Decided():
			steps[n] = StepCreate
		case o.Spec.Stopped && i.State == InstanceActive:
			steps[n] = StepStop
		case o.starts(i):
			steps[n] = StepStart
		}
	}
	return steps
}

// IsDelegated reports whether run-connections carries out the order.
func (o Order) IsDelegated() bool { return o.ConnectionID != uuid.Nil }

// IsRemote reports whether a server of the order is in another cloud.
func (o Order) IsRemote() bool {
	return slices.ContainsFunc(o.Instances, func(i Instance) bool { return i.Remote })
}

// HasServers reports whether Nova has accepted any instance of the order.
func (o Order) HasServers() bool {
	return slices.ContainsFunc(o.Instances, func(i Instance) bool { return i.ServerID != "" })
}

// Undecided counts the instances that Nova has neither accepted nor rejected.
func (o Order) Undecided() int {
	n := 0
	for _, i := range o.Instances {
		if !i.Decided() {
			n++
		}
	}
	return n
}
