package domain

import (
	"encoding/json"
	"time"
	"unicode/utf8"

	"github.com/google/uuid"
)

// DelegatedOrder is the part of an order that only run-connections may read. It is stored sealed: it holds user_data.
type DelegatedOrder struct {
	Servers   []DelegatedServer `json:"servers"`              // one per instance, in order
	PublicKey string            `json:"public_key,omitempty"` // of the generated key pair
}

// DelegatedServer is one server of a DelegatedOrder.
type DelegatedServer struct {
	Image    string   `json:"image"`    // id or unique name
	Networks []string `json:"networks"` // ids or unique names; empty = the project's only network
	UserData UserData `json:"user_data,omitempty"`
	// Name and Spec describe the server that replaces an idle one that cannot be reused.
	Name string      `json:"name,omitempty"`
	Spec *LaunchSpec `json:"spec,omitempty"`
}

// UserData is what a server gets for cloud-init: any bytes. In JSON it is a string, or in base64 if it is not UTF-8.
type UserData string

type encodedUserData struct {
	Base64 []byte `json:"base64"`
}

// MarshalJSON implements json.Marshaler.
func (d UserData) MarshalJSON() ([]byte, error) {
	if utf8.ValidString(string(d)) {
		return json.Marshal(string(d))
	}
	return json.Marshal(encodedUserData{[]byte(d)})
}

// UnmarshalJSON implements json.Unmarshaler.
func (d *UserData) UnmarshalJSON(text []byte) error {
	if json.Unmarshal(text, (*string)(d)) == nil {
		return nil
	}
	var encoded encodedUserData
	err := json.Unmarshal(text, &encoded)
	*d = UserData(encoded.Base64)
	return err
}

// SealedFor is the context that the order's DelegatedOrder is sealed with.
func (o Order) SealedFor() string { return "order/" + o.ProjectID + "/" + o.ID.String() }

// ActionStatus is the status of an action through a connection.
type ActionStatus string

// The statuses of an action.
const (
	ActionRunning ActionStatus = "running"
	// ActionDone: Nova has accepted it, or completed a deployment, a snapshot, a shelving or a deletion.
	ActionDone   ActionStatus = "done"
	ActionFailed ActionStatus = "failed" // see Problem
)

// ActionStatusTransitions are the statuses that may follow each status of an action.
var ActionStatusTransitions = map[ActionStatus][]ActionStatus{
	ActionRunning: {ActionDone, ActionFailed},
	ActionDone:    {},
	ActionFailed:  {},
}

// DelegatedAction is an action on an instance through a connection.
type DelegatedAction struct {
	ID           uuid.UUID
	ProjectID    string
	ConnectionID uuid.UUID // zero = all of the project
	InstanceID   uuid.UUID
	LeaseID      uuid.UUID // the open lease of its instance; only an action that has been tried has it
	ServerID     string    // of Connect: the server to adopt
	ImageName    string    // of Snapshot; "" = the server's name
	ImageID      string    // of a Snapshot that has ended
	UserID       string    // the caller
	Actor        *Actor    // the caller in events; nil = stored by an older version
	Request      ActionRequest
	Payload      []byte // a sealed DelegatedDeploy; nil but for Deploy
	BodySHA256   []byte // of the request; nil = the caller gave no ID
	Repeated     bool   // the same request had stored it before
	Status       ActionStatus
	Problem      *Problem
	CreatedAt    time.Time
	UpdatedAt    time.Time
}

// SealedFor is the context that the action's payload is sealed with.
func (a DelegatedAction) SealedFor() string { return "action/" + a.ProjectID + "/" + a.ID.String() }

// PermissionFor returns the permission that an action needs. ok is false if it needs none.
func PermissionFor(action Action) (p Permission, ok bool) {
	p, ok = map[Action]Permission{
		Start: MayStart, Stop: MayStop, Reboot: MayReboot, Deploy: MayDeploy, Delete: MayDeallocate,
		Connect: MayConnect, Shelve: MayShelve, Unshelve: MayStart, Snapshot: MaySnapshot,
	}[action]
	return p, ok
}

// Filter selects orders and instances: all of a project, or those of one connection.
type Filter struct {
	ProjectID    string
	ConnectionID uuid.UUID // zero = all of the project
}
