package domain

import (
	"slices"

	"github.com/cloudfn/cloudfn/shared/apperr"
)

// The types of CloudEvents. functions/callbacks/README.md has a table of their data.
const (
	InstanceEvent     = "cloudfn.instance.state.v1"
	OrderEvent        = "cloudfn.order.state.v1"
	CallbackEvent     = "cloudfn.callback.state.v1"
	CallbackTestEvent = "cloudfn.callback.test.v1" // sent by hand, to test a receiver
	ConnectionEvent   = "cloudfn.connection.state.v1"
	ChangeEvent       = "cloudfn.connection.changed.v1" // fields of a connection changed
	// RevocationEvent: Keystone could not delete a trust, or has deleted it after that.
	RevocationEvent = "cloudfn.connection.revocation.v1"
	// ConnectionRequestEvent is sent to the receiving project when the request is pending, and to both at its end.
	ConnectionRequestEvent = "cloudfn.connection.request.v1"
	ActionEvent            = "cloudfn.action.state.v1" // of an action through a connection
	// UnexpectedServerEvent is about a server that has an instance's tags and is not its server.
	UnexpectedServerEvent = "cloudfn.instance.unexpected_server.v1"
	AgentReadyEvent       = "cloudfn.agent.ready.v1" // a deployed agent has reported once
	StatsEvent            = "cloudfn.stats.hour.v1"
	LeaseEvent            = "cloudfn.lease.state.v1"      // its status changed, or it is degraded or is not any more
	LeaseChangeEvent      = "cloudfn.lease.changed.v1"    // its user has changed fields of it
	LeaseWarningEvent     = "cloudfn.lease.before_end.v1" // it ends soon
	NodeEvent             = "cloudfn.node.state.v1"       // its status changed, or it was cordoned or uncordoned
	DrainEvent            = "cloudfn.node.drain.v1"       // a drain has begun or ended
	MonitorEvent          = "cloudfn.monitor.failed.v1"   // the list of nodes cannot be read, or can be again
	ManagedEvent          = "cloudfn.managed.state.v1"    // a declared resource's status or revision changed
	// UnexpectedObjectEvent is about an object that has the mark of managed resources and is no member of one.
	UnexpectedObjectEvent = "cloudfn.managed.unexpected_object.v1"
)

// EventTypes lists the types that a callback may subscribe to.
func EventTypes() []string {
	return []string{
		InstanceEvent, OrderEvent, CallbackEvent, ConnectionEvent, ChangeEvent, RevocationEvent,
		ConnectionRequestEvent, ActionEvent, AgentReadyEvent, UnexpectedServerEvent, LeaseEvent,
		LeaseChangeEvent, LeaseWarningEvent, NodeEvent, DrainEvent, MonitorEvent, ManagedEvent,
		UnexpectedObjectEvent,
	}
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
