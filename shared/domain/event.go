package domain

import (
	"slices"

	"github.com/cloudfn/cloudfn/shared/apperr"
)

// The types of the CloudEvents that tell of state changes. A table in functions/callbacks/README.md says what their data hold.
const (
	InstanceEvent     = "cloudfn.instance.state.v1"
	OrderEvent        = "cloudfn.order.state.v1"
	CallbackEvent     = "cloudfn.callback.state.v1"
	CallbackTestEvent = "cloudfn.callback.test.v1" // made by hand, to try a receiver
	ConnectionEvent   = "cloudfn.connection.state.v1"
	ChangeEvent       = "cloudfn.connection.changed.v1"    // which fields of a connection its project has changed
	RevocationEvent   = "cloudfn.connection.revocation.v1" // a trust could not be taken back in Keystone, or is gone after that
	// ConnectionRequestEvent is about a request for a connection: pending for the project that it was sent to, each end for both projects.
	ConnectionRequestEvent = "cloudfn.connection.request.v1"
	ActionEvent            = "cloudfn.action.state.v1" // of what is done through a connection
	// UnexpectedServerEvent is about a server that carries an instance's tags and is not its own.
	UnexpectedServerEvent = "cloudfn.instance.unexpected_server.v1"
	AgentReadyEvent       = "cloudfn.agent.ready.v1" // an agent that was deployed says once that it is there
	StatsEvent            = "cloudfn.stats.hour.v1"
)

// EventTypes are the types that a callback may choose from.
func EventTypes() []string {
	return []string{
		InstanceEvent, OrderEvent, CallbackEvent, ConnectionEvent, ChangeEvent, RevocationEvent, ConnectionRequestEvent, ActionEvent,
		AgentReadyEvent, UnexpectedServerEvent,
	}
}

// CheckEventTypes fails on a type that a callback cannot choose, and names it with the field and the types that it can.
func CheckEventTypes(field string, types []string) error {
	for _, t := range types {
		if !slices.Contains(EventTypes(), t) {
			return apperr.Unknown(field, "event type", t, EventTypes()...)
		}
	}
	return nil
}
