package domain

import "github.com/google/uuid"

// The types of events about managed resources.
const (
	ManagedEvent          = "cloudfn.managed.state.v1"
	UnexpectedObjectEvent = "cloudfn.managed.unexpected_object.v1"
)

// ManagedEventData is the status of a declared resource.
type ManagedEventData struct {
	ManagedID uuid.UUID `json:"managed_id"`
	Kind      Kind      `json:"kind" minLength:"1"`
	Name      string    `json:"name" minLength:"1"`

	Status string `json:"status" enum:"pending,creating,updating,ready,degraded,error,deleting,deleted"`

	PreviousStatus   ManagedStatus `json:"previous_status,omitempty" doc:"Absent in the first event."`
	Reason           string        `json:"reason,omitempty" minLength:"1" doc:"Of the status."`
	Revision         int           `json:"revision" minimum:"1" doc:"What is declared."`
	ObservedRevision int           `json:"observed_revision" minimum:"0" doc:"What is real."`
	Actor            *Actor        `json:"actor,omitempty" schema:"EventActor"`
}

var managedEvent = EventType{
	Type: ManagedEvent, Data: ManagedEventData{}, Operation: "managedState", Subject: "the resource",
	Summary: "A declared resource has another status or revision",
	Notes:   "The last event has the status `deleted`.",
	Example: `{"managed_id": "019b7c5e-8a70-7b99-825a-7e1f6b5d4f66", "kind": "VirtualMachineDeployment",
		"name": "web", "status": "ready", "previous_status": "updating", "revision": 3,
		"observed_revision": 3}`,
}

// UnexpectedObjectData is about an object that has the mark of managed resources and is no member of one.
type UnexpectedObjectData struct {
	ObjectID string `json:"object_id" minLength:"1" doc:"Its id in its service."`
	Name     string `json:"name"`
	Provider string `json:"provider" minLength:"1" doc:"As in GET /v1/managed/providers: nova, cinder, ..."`
	Region   string `json:"region,omitempty" minLength:"1" doc:"Absent for the region of cloudfn."`
}

var unexpectedObjectEvent = EventType{
	Type: UnexpectedObjectEvent, Data: UnexpectedObjectData{}, Operation: "unexpectedObject", Subject: "the object",
	Summary: "An object carries cloudfn's mark and belongs to no resource",
	Notes: "The mark was copied, or the service did not find the object for a while and another one was made. The " +
		"object is not touched, and there is one event about it, after two scans have found it. What a deletion with " +
		"`orphan` has left is not reported.",
	Example: `{"object_id": "8a1d0c5e-2f43-4c7e-9b1a-6d5e4f3a2b10", "name": "web-0", "provider": "nova"}`,
}
