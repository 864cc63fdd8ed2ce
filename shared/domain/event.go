package domain

import (
	"slices"

	"github.com/cloudfn/cloudfn/shared/apperr"
)

// EventType is a type of CloudEvents. The webhooks and schemas of openapi.yaml, and the table of events in
// functions/callbacks/README.md, are made from it.
type EventType struct {
	Type string // as in Ce-Type
	// Data is the zero value of its data. The tags doc, enum, minLength, minItems, minimum and uniqueItems describe its
	// fields. A field refers to the schema that has the name of its Go type, or to the one of the tag schema.
	Data      any
	Example   string // of the data, as JSON
	Operation string // the webhook's operationId
	Subject   string // what Ce-Subject identifies
	Summary   string // when it is sent
	Notes     string // what else a receiver should know
	ByHand    bool   // sent to one callback, on request: no callback subscribes to it
	SinkOnly  bool   // sent to the operator's sink: no callback gets it
}

// Events lists the types of events.
func Events() []EventType {
	return []EventType{
		instanceEvent, orderEvent, callbackEvent, callbackTestEvent, connectionEvent, changeEvent, revocationEvent,
		connectionRequestEvent, actionEvent, agentReadyEvent, unexpectedServerEvent, leaseEvent, leaseChangeEvent,
		leaseWarningEvent, nodeEvent, drainEvent, monitorEvent, managedEvent, unexpectedObjectEvent, statsEvent,
	}
}

// EventTypes lists the types that a callback may subscribe to.
func EventTypes() (types []string) {
	for _, e := range Events() {
		if !e.ByHand && !e.SinkOnly {
			types = append(types, e.Type)
		}
	}
	return types
}

// CheckEventTypes fails on an unknown type, and lists the known ones.
func CheckEventTypes(field string, types []string) error {
	for _, t := range types {
		if !slices.Contains(EventTypes(), t) {
			return apperr.Unknown(field, "event type", t, EventTypes()...)
		}
	}
	return nil
}
