package domain

import (
	"time"

	"github.com/google/uuid"
)

// DelegatedOrder is what run-connections needs of an order besides its instances' specs. It is stored sealed, because
// user_data is in it.
type DelegatedOrder struct {
	Servers   []DelegatedServer `json:"servers"`              // one for each instance, in their order
	PublicKey string            `json:"public_key,omitempty"` // of the order's generated key pair
}

// DelegatedServer is one server of a DelegatedOrder.
type DelegatedServer struct {
	Image    string   `json:"image"`    // id or unique name
	Networks []string `json:"networks"` // ids or unique names; none = the project's only one
	UserData string   `json:"user_data,omitempty"`
	// Name and Spec are those of the new server that an order with reuse gets when the idle one cannot be had after
	// all.
	Name string      `json:"name,omitempty"`
	Spec *LaunchSpec `json:"spec,omitempty"`
}

// SealedFor is the purpose that the order's DelegatedOrder is sealed for.
func (o Order) SealedFor() string { return "order/" + o.ProjectID + "/" + o.ID.String() }

// ActionStatus is how far an action has come that is done through a connection.
type ActionStatus string

// The statuses of an action.
const (
	ActionRunning ActionStatus = "running"
	ActionDone    ActionStatus = "done"   // Nova has accepted it, and of a deployment or a deallocation the end was seen
	ActionFailed  ActionStatus = "failed" // Problem says why
)

// ActionStatusMoves are the statuses that may follow each status of an action.
var ActionStatusMoves = map[ActionStatus][]ActionStatus{
	ActionRunning: {ActionDone, ActionFailed},
	ActionDone:    {},
	ActionFailed:  {},
}

// DelegatedAction is one thing that is to be done to an instance through a connection.
type DelegatedAction struct {
	ID           uuid.UUID
	ProjectID    string
	ConnectionID uuid.UUID // zero = all of the project
	InstanceID   uuid.UUID
	ServerID     string // of Connect: the server that is to be taken over
	UserID       string // who asked
	Actor        *Actor // the same in the events of it; nil = an older version stored the action
	Request      ActionRequest
	Payload      []byte // a sealed DelegatedDeploy; nil but for Deploy
	BodySHA256   []byte // of the request, when its caller gave the ID; nil = the ID is ours
	Repeated     bool   // of one that is stored: the same request has stored it before
	Status       ActionStatus
	Problem      *Problem
	CreatedAt    time.Time
	UpdatedAt    time.Time
}

// SealedFor is the purpose that the action's payload is sealed for.
func (a DelegatedAction) SealedFor() string { return "action/" + a.ProjectID + "/" + a.ID.String() }

// PermissionFor is what a connection must permit for an action. ok is false for what takes no permission.
func PermissionFor(v Action) (p Permission, ok bool) {
	switch v {
	case Start:
		return MayStart, true
	case Stop:
		return MayStop, true
	case Reboot:
		return MayReboot, true
	case Deploy:
		return MayDeploy, true
	case Delete:
		return MayDeallocate, true
	case Connect:
		return MayConnect, true
	}
	return "", false
}

// Filter selects orders and instances: all of a project, or those of one connection.
type Filter struct {
	ProjectID    string
	ConnectionID uuid.UUID // zero = all of the project
}
