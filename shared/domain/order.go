package domain

import (
	"errors"
	"slices"
	"time"

	"github.com/google/uuid"
)

// OrderStatus is how far an order has come.
type OrderStatus string

// The statuses of an order. Only running is not final.
const (
	OrderRunning    OrderStatus = "running"
	OrderDone       OrderStatus = "done"
	OrderPartial    OrderStatus = "partial" // some instances could not be had
	OrderFailed     OrderStatus = "failed"  // none could be had
	OrderRolledBack OrderStatus = "rolled_back"
)

// Order is one launch request of 1..N instances.
type Order struct {
	ID         uuid.UUID
	ProjectID  string
	DomainID   string
	UserID     string
	BodySHA256 []byte // of the canonical request, to tell a repeat from another order under the same id
	Spec       OrderSpec
	Status     OrderStatus
	Problem    *Problem // why it has ended otherwise than as it was asked for, where no instance says it
	CreatedAt  time.Time
	Instances  []Instance
	Callback   *Callback // one that is to be made with the order, which then gets every event of it
	Actor      *Actor    // who places it; it is written and not read

	ConnectionID uuid.UUID // run-connections works on the order, with what was delegated; zero = its caller does
	Payload      []byte    // of an order through a connection: a sealed DelegatedOrder

	Calls         []CreateCall // of its instances, as far as they are recorded
	CallsRecorded bool         // every create call of the order is; false for one that an older version stored
	ReadAt        time.Time    // when it was read, by the database's clock
}

// OrderQuery asks for a page of orders, the newest first.
type OrderQuery struct {
	Filter
	Statuses []string // none = all
	Limit    int
	Marker   uuid.UUID // the last one that was seen; zero = none
}

// ListedOrder is an order of a list, as it is stored.
type ListedOrder struct {
	Order
	Busy bool // a replica works on it right now
}

// OrderStatuses are all statuses of an order.
func OrderStatuses() []string {
	return []string{string(OrderRunning), string(OrderDone), string(OrderPartial), string(OrderFailed), string(OrderRolledBack)}
}

// OrderSpec is what an order asks for as a whole; what it asks for of each server is in its instances. It is kept with
// the order, so it has no place for a secret.
type OrderSpec struct {
	OnFailure    OnFailure `json:"on_failure,omitempty"`
	Stopped      bool      `json:"stopped,omitempty"`       // each server is stopped as soon as it is ACTIVE
	GeneratedKey string    `json:"generated_key,omitempty"` // the name of the key pair that was made for the order
	Reuse        bool      `json:"reuse,omitempty"`         // idle instances of the connection are taken before new ones are made

	CallbackID *uuid.UUID `json:"callback_id,omitempty"` // of the callback that was made with the order
}

// Attended says whether the order needs more of us than asking Nova for its servers.
func (s OrderSpec) Attended() bool { return s.OnFailure == Rollback || s.Stopped || s.Reuse }

// OnFailure is what becomes of an order's servers when one of them cannot be had.
type OnFailure string

// What an order may ask for; empty is Keep.
const (
	Keep     OnFailure = "keep"
	Rollback OnFailure = "rollback" // all or nothing: every server goes
)

// Claim is one replica's right to work on an order until it expires, so that a replica that died blocks nobody.
type Claim struct {
	ID    uuid.UUID
	Held  bool      // false: another replica holds it, or there is nothing left to do
	Fresh bool      // the order was stored just now, so nobody has asked Nova for its servers yet
	At    time.Time // when a fresh order was stored, by the database's clock
}

// ErrFenced says that another replica has adopted the claim: stop working at once.
var ErrFenced = errors.New("another replica has adopted the claim")

// OrderMoves are the statuses that may follow each status of an order.
var OrderMoves = map[OrderStatus][]OrderStatus{
	OrderRunning:    {OrderDone, OrderPartial, OrderFailed, OrderRolledBack},
	OrderDone:       {},
	OrderPartial:    {},
	OrderFailed:     {},
	OrderRolledBack: {},
}

// Evaluate is the status that follows from the instances. A final status stays: what happens to a
// server later is no longer the order's business.
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

// rolledBack is the status of an order of which nothing is to stay. It fails when Nova was asked often enough to delete
// what is left.
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

// Abandoned is the status of an order on which nobody can work any more, because its connection has ended: that of its
// instances as they are, all of which are decided. What can no longer be done (to stop them, start idle ones, or roll
// back) is not waited for.
func (o Order) Abandoned() OrderStatus {
	gone := make([]bool, len(o.Instances)) // a server that was idle, and of which nothing came
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

// settled says whether the instance is what the order asks for, or surely will not be.
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
	if o.starts(i) || o.Spec.Reuse && i.State == InstanceUpdating { // on its way up, as a new one is that is building
		return false
	}
	return i.Settled()
}

// starts says whether the instance was idle until the order took it, and is still to be started.
func (o Order) starts(i Instance) bool {
	return o.Spec.Reuse && !o.Spec.Stopped && i.State == InstanceStopped
}

// IsReused says whether the instance was idle, and the order has taken it.
func (o Order) IsReused(i Instance) bool { return o.Spec.Reuse && i.CreatedAt.Before(o.CreatedAt) }

// IsReplaced says whether the order is to have another instance for one that was idle and is gone.
func (o Order) IsReplaced(i Instance) bool {
	return o.Status == OrderRunning && o.IsReused(i) && !i.isDisconnected() && (i.State == InstanceDeleting || i.State == InstanceDeleted)
}

// HasReplaced says whether one of the order's instances is to be replaced.
func (o Order) HasReplaced() bool { return slices.ContainsFunc(o.Instances, o.IsReplaced) }

// isDisconnected says whether the instance was disconnected: then no order does anything to its server any more, nor
// waits for it.
func (i Instance) isDisconnected() bool { return !i.DisconnectedAt.IsZero() }

// Step is what is to be done next for one instance of an order.
type Step string

// The steps of an order.
const (
	StepNone   Step = ""       // nothing, or nothing yet
	StepCreate Step = "create" // look for its server by tag, and ask Nova for one when there is none
	StepStop   Step = "stop"   // stop its server
	StepStart  Step = "start"  // start its server, which was idle
	StepDelete Step = "delete" // delete its server
	StepForgo  Step = "forgo"  // look for its server by tag, and when there is none write down Forgone: it is not asked for any more
)

// Forgone is the Problem of an instance that was not asked for, because its order is rolled back.
func Forgone() *Problem {
	return &Problem{Code: "rolled_back", Detail: "not asked for: another instance of the order could not be had, and the order is all or nothing"}
}

// Next is what is to be done now, for each instance of the order. Each step may be done twice without harm. When there
// is none and Evaluate still says running, Nova is at work. Nothing is done any more for an order that is final.
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

// IsDelegated says whether run-connections works on the order, with what was delegated.
func (o Order) IsDelegated() bool { return o.ConnectionID != uuid.Nil }

// IsRemote says whether a server of the order is in another cloud than ours.
func (o Order) IsRemote() bool {
	return slices.ContainsFunc(o.Instances, func(i Instance) bool { return i.Remote })
}

// HasServers says whether Nova has accepted any instance of the order.
func (o Order) HasServers() bool {
	return slices.ContainsFunc(o.Instances, func(i Instance) bool { return i.ServerID != "" })
}

// Undecided counts the instances that Nova has neither accepted nor refused.
func (o Order) Undecided() int {
	n := 0
	for _, i := range o.Instances {
		if !i.Decided() {
			n++
		}
	}
	return n
}
