package domain

import (
	"time"

	"github.com/google/uuid"
)

// The types of events about instances, orders, actions and agents.
const (
	InstanceEvent         = "cloudfn.instance.state.v1"
	UnexpectedServerEvent = "cloudfn.instance.unexpected_server.v1"
	OrderEvent            = "cloudfn.order.state.v1"
	ActionEvent           = "cloudfn.action.state.v1"
	AgentReadyEvent       = "cloudfn.agent.ready.v1"
)

// InstanceEventData is what is known of an instance.
type InstanceEventData struct {
	InstanceID     uuid.UUID     `json:"instance_id"`
	ServerID       string        `json:"server_id,omitempty" schema:"UUID"`
	Name           string        `json:"name"`
	State          InstanceState `json:"state"`
	PreviousState  InstanceState `json:"previous_state,omitempty"`
	Status         string        `json:"status,omitempty" minLength:"1" doc:"Nova's own word for it."`
	Addresses      []Address     `json:"addresses,omitzero"`
	KeyName        string        `json:"key_name,omitempty" minLength:"1"`
	KeyFingerprint string        `json:"key_fingerprint,omitempty" minLength:"1"`
	OrderID        *uuid.UUID    `json:"order_id,omitempty"`
	ConnectionID   *uuid.UUID    `json:"connection_id,omitempty"`
	LeaseID        *uuid.UUID    `json:"lease_id,omitempty"`
	Fault          *Problem      `json:"fault,omitempty" schema:"InstanceError"`
	Disconnected   bool          `json:"disconnected,omitempty" enum:"true" doc:"It is disconnected: its last event."`
	Reconstructed  bool          `json:"reconstructed,omitempty" enum:"true" doc:"It lasted seconds, by Nova's log."`
	ChangedAt      time.Time     `json:"changed_at,omitzero" doc:"When a reconstructed state began."`
	Actor          *Actor        `json:"actor,omitempty" schema:"EventActor"`
}

var instanceEvent = EventType{
	Type: InstanceEvent, Data: InstanceEventData{}, Operation: "instanceState", Subject: "the instance",
	Summary: "An instance is in another state",
	Notes: "A change of its name, its addresses, its Nova status or its fault is an event, too. The last event of a " +
		"disconnected instance has `disconnected`.",
	Example: `{"instance_id": "019b7c5e-3a10-7c44-9d0b-2f6a1c0e9a11",
		"server_id": "4f8052c0-49f2-4b75-a508-5c4454e37731", "name": "web", "state": "active",
		"previous_state": "building", "status": "ACTIVE",
		"addresses": [{"network": "private", "ip": "10.0.0.179", "version": 4, "type": "fixed"}],
		"order_id": "0f8fad5b-d9cb-469f-a165-70867728950e"}`,
}

// UnexpectedServerData is about a server that has an instance's tags and is not its server.
type UnexpectedServerData struct {
	InstanceID   uuid.UUID  `json:"instance_id"`
	ServerID     string     `json:"server_id,omitempty" schema:"UUID" doc:"The instance's own server."`
	OrderID      *uuid.UUID `json:"order_id,omitempty"`
	ConnectionID *uuid.UUID `json:"connection_id,omitempty"`
	Server       string     `json:"unexpected_server_id" schema:"UUID"`
	ServerName   string     `json:"unexpected_server_name"`
}

var unexpectedServerEvent = EventType{
	Type: UnexpectedServerEvent, Data: UnexpectedServerData{}, Operation: "unexpectedServer", Subject: "the instance",
	Summary: "A server carries an instance's tags and is not its server",
	Notes: "The tags were copied, or Nova made the server so late that the order was final before. The server is not " +
		"touched, and there is one event about it.",
	Example: `{"instance_id": "019b7c5e-3a10-7c44-9d0b-2f6a1c0e9a11",
		"server_id": "4f8052c0-49f2-4b75-a508-5c4454e37731",
		"order_id": "019b7c5e-3a0f-7b33-8c0a-1e5f0b9d8c77",
		"unexpected_server_id": "8a1d0c5e-2f43-4c7e-9b1a-6d5e4f3a2b10", "unexpected_server_name": "web"}`,
}

// OrderEventData is an order's status.
type OrderEventData struct {
	OrderID        uuid.UUID   `json:"order_id"`
	Status         OrderStatus `json:"status"`
	PreviousStatus OrderStatus `json:"previous_status,omitempty"`
	Fault          *Problem    `json:"fault,omitempty" schema:"OrderError"`
	Actor          *Actor      `json:"actor,omitempty" schema:"EventActor" doc:"Who placed it. In its first event."`
}

var orderEvent = EventType{
	Type: OrderEvent, Data: OrderEventData{}, Operation: "orderState", Subject: "the order",
	Summary: "An order is placed, or settled",
	Example: `{"order_id": "0f8fad5b-d9cb-469f-a165-70867728950e", "status": "running",
		"actor": {"user_id": "fe72559b26734b36b94e5ea3d594acc4", "user_name": "jane",
			"project_id": "0b1f9d6c8e5a4c0f8a7b3d2e1c4f5a69",
			"connection_id": "019b7c5e-1f20-7a31-b5d4-0c7e2f9a6b13",
			"order_id": "0f8fad5b-d9cb-469f-a165-70867728950e"}}`,
}

// ActionEventData is the status of an action through a connection.
type ActionEventData struct {
	ActionID       uuid.UUID    `json:"action_id"`
	InstanceID     uuid.UUID    `json:"instance_id"`
	ConnectionID   uuid.UUID    `json:"connection_id"`
	Action         Action       `json:"action" schema:"EventActorAction"`
	Status         ActionStatus `json:"status" schema:"DelegatedActionStatus"`
	PreviousStatus ActionStatus `json:"previous_status,omitempty" schema:"DelegatedActionStatus"`
	Fault          *Problem     `json:"fault,omitempty" schema:"ActionError"`
	ImageID        string       `json:"image_id,omitempty" minLength:"1" doc:"Of a snapshot that is done: the image."`
	Actor          *Actor       `json:"actor,omitempty" schema:"EventActor" doc:"Who requested the action."`
}

var actionEvent = EventType{
	Type: ActionEvent, Data: ActionEventData{}, Operation: "actionState", Subject: "the action",
	Summary: "An action through a connection is requested, or has ended",
	Example: `{"action_id": "019b7c5e-9f00-7a11-8d22-5b0e6c7d8e9f",
		"instance_id": "019b7c5e-3a10-7c44-9d0b-2f6a1c0e9a11",
		"connection_id": "019b7c5e-1f20-7a31-b5d4-0c7e2f9a6b13", "action": "stop", "status": "done",
		"previous_status": "running"}`,
}

// AgentReadyData is about a deployed agent that runs.
type AgentReadyData struct {
	InstanceID   uuid.UUID  `json:"instance_id"`
	ServerID     string     `json:"server_id" schema:"UUID"`
	DeploymentID uuid.UUID  `json:"deployment_id"`
	Image        string     `json:"image" minLength:"1" doc:"The agent's OCI reference."`
	OrderID      *uuid.UUID `json:"order_id,omitempty"`
	ConnectionID *uuid.UUID `json:"connection_id,omitempty"`
}

var agentReadyEvent = EventType{
	Type: AgentReadyEvent, Data: AgentReadyData{}, Operation: "agentIsReady", Subject: "the instance",
	Summary: "A deployed agent reports that it runs",
	Notes:   "Once for each deployment.",
	Example: `{"instance_id": "019b7c5e-3a10-7c44-9d0b-2f6a1c0e9a11",
		"server_id": "4f8052c0-49f2-4b75-a508-5c4454e37731",
		"deployment_id": "019b7c5e-6e50-7f77-a03e-5c9d4f3b2d44",
		"image": "registry.example.com/team/agent:1.4.2"}`,
}
