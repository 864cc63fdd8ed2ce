package domain

import (
	"time"

	"github.com/google/uuid"
)

// The types of events about connections, their requests, and callbacks.
const (
	ConnectionEvent        = "cloudfn.connection.state.v1"
	ChangeEvent            = "cloudfn.connection.changed.v1"
	RevocationEvent        = "cloudfn.connection.revocation.v1"
	ConnectionRequestEvent = "cloudfn.connection.request.v1"
	CallbackEvent          = "cloudfn.callback.state.v1"
	CallbackTestEvent      = "cloudfn.callback.test.v1"
)

// ConnectionEventData is a connection's status.
type ConnectionEventData struct {
	ConnectionID   uuid.UUID        `json:"connection_id"`
	Status         ConnectionStatus `json:"status"`
	PreviousStatus ConnectionStatus `json:"previous_status,omitempty"`
	Reason         string           `json:"reason,omitempty" minLength:"1" doc:"Why it has ended."`
	Actor          *Actor           `json:"actor,omitempty" schema:"EventActor"`
}

var connectionEvent = EventType{
	Type: ConnectionEvent, Data: ConnectionEventData{}, Operation: "connectionState", Subject: "the connection",
	Summary: "A connection is made, suspended or resumed, or has ended",
	Example: `{"connection_id": "019b7c5e-1f20-7a31-b5d4-0c7e2f9a6b13", "status": "expired",
		"previous_status": "active"}`,
}

// ConnectionChangeData is which fields of a connection were changed.
type ConnectionChangeData struct {
	ConnectionID uuid.UUID         `json:"connection_id"`
	Fields       []ConnectionField `json:"fields" minItems:"1" uniqueItems:"true" doc:"What has changed."`
	ExpiresAt    time.Time         `json:"expires_at" doc:"When it ends now."`
	Actor        *Actor            `json:"actor,omitempty" schema:"EventActor"`
}

// ConnectionField is a field of a connection that its user may change.
type ConnectionField string

// Values lists the fields.
func (ConnectionField) Values() []string {
	return []string{"actions", "expires_at", "id", "idle_timeout", "limits", "name", "quota", "secret", "usable_by"}
}

var changeEvent = EventType{
	Type: ChangeEvent, Data: ConnectionChangeData{}, Operation: "connectionChanged", Subject: "the connection",
	Summary: "A connection was changed behind its id",
	Notes:   "No secret is in it.",
	Example: `{"connection_id": "019b7c5e-1f20-7a31-b5d4-0c7e2f9a6b13", "fields": ["expires_at", "quota"],
		"expires_at": "2027-06-30T23:59:59.000000Z",
		"actor": {"user_id": "8c1d9b3a5e7f4c2d9a0b1c2d3e4f5a6b", "user_name": "demo",
			"project_id": "43f6e73ab2484cdd87b789e3e289627c"}}`,
}

// RevocationData is whether Keystone still has the trust of a connection that has ended.
type RevocationData struct {
	ConnectionID   uuid.UUID  `json:"connection_id"`
	Status         Revocation `json:"status"`
	Reason         string     `json:"reason,omitempty" minLength:"1" doc:"Why it is pending."`
	TrustExpiresAt time.Time  `json:"trust_expires_at,omitzero" doc:"When it expires. Absent when it is deleted."`
}

var revocationEvent = EventType{
	Type: RevocationEvent, Data: RevocationData{}, Operation: "connectionRevocation", Subject: "the connection",
	Summary: "A trust could not be revoked in Keystone, or is deleted after that",
	Notes: "Sent to callbacks of the connection's own project when the first attempt fails (`pending`), and when the " +
		"trust is deleted (`done`). A trust that is revoked at the first attempt has no such event. Not sent to " +
		"callbacks with a `connection_id`.",
	Example: `{"connection_id": "019b7c5e-1f20-7a31-b5d4-0c7e2f9a6b13", "status": "pending",
		"reason": "Keystone could not be reached to delete the trust",
		"trust_expires_at": "2027-01-01T00:12:41.402153Z"}`,
}

// ConnectionRequestData is the status of a request for a connection.
type ConnectionRequestData struct {
	RequestID          uuid.UUID     `json:"request_id"`
	Status             RequestStatus `json:"status" schema:"ConnectionRequestStatus"`
	PreviousStatus     RequestStatus `json:"previous_status,omitempty" enum:"pending"`
	ProjectID          string        `json:"project_id" minLength:"1" doc:"Which project it was sent to."`
	RequesterProjectID string        `json:"requester_project_id" minLength:"1"`
	RequesterUserID    string        `json:"requester_user_id" minLength:"1"`
	ConnectionID       *uuid.UUID    `json:"connection_id,omitempty"`
	Reason             string        `json:"reason,omitempty" minLength:"1" doc:"Why it is declined."`
}

var connectionRequestEvent = EventType{
	Type: ConnectionRequestEvent, Data: ConnectionRequestData{}, Operation: "connectionRequestState",
	Subject: "the request",
	Summary: "A request for a connection waits, or has ended",
	Notes: "`pending` is sent to callbacks of the project that it was sent to, each end to callbacks of both " +
		"projects. What the requester wrote is not in it: show the request for that. Not sent to callbacks with a " +
		"`connection_id`.",
	Example: `{"request_id": "019b7c5e-4c11-7d02-9a3e-5b8f0e2d7c46", "status": "granted",
		"previous_status": "pending", "project_id": "0b1c2d3e4f5a6b7c8d9e0f1a2b3c4d5e",
		"requester_project_id": "43f6e73ab2484cdd87b789e3e289627c",
		"requester_user_id": "5d4b2c1fbb7a4a6c8f0f3f1f0a9d7c55",
		"connection_id": "019b7c5e-1f20-7a31-b5d4-0c7e2f9a6b13"}`,
}

// CallbackEventData is a callback's status.
type CallbackEventData struct {
	CallbackID     uuid.UUID      `json:"callback_id"`
	Status         CallbackStatus `json:"status"`
	PreviousStatus CallbackStatus `json:"previous_status,omitempty"`
	Reason         string         `json:"reason,omitempty" minLength:"1"`
}

var callbackEvent = EventType{
	Type: CallbackEvent, Data: CallbackEventData{}, Operation: "callbackState", Subject: "that callback",
	Summary: "Another callback of the project is in another status",
	Example: `{"callback_id": "019b7c5e-4c30-7d55-8e1c-3a7b2d1f0b22", "status": "verified",
		"previous_status": "pending"}`,
}

// CallbackTestData is about the callback that is tested.
type CallbackTestData struct {
	CallbackID uuid.UUID      `json:"callback_id"`
	Status     CallbackStatus `json:"status"`
}

var callbackTestEvent = EventType{
	Type: CallbackTestEvent, Data: CallbackTestData{}, Operation: "callbackTest", Subject: "this very callback",
	Summary: "A user tests the receiver",
	Notes:   "It goes to this callback only, whatever events it has chosen.",
	ByHand:  true,
	Example: `{"callback_id": "019b7c5e-4c30-7d55-8e1c-3a7b2d1f0b22", "status": "verified"}`,
}
