package domain

import "slices"

// The state machines are tables of the states that may follow each state. machine_test.go draws the diagrams in
// docs/states.md from them, and checks random histories.

// living are the states of an instance with a server. Each may follow every other: between two polls a server may go
// through any of them.
var living = []InstanceState{
	InstanceBuilding, InstanceActive, InstanceStopped, InstanceShelved, InstancePaused, InstanceRebooting,
	InstanceUpdating, InstanceRescued, InstanceError, InstanceUnknown, InstanceDeleting,
}

// InstanceTransitions are the states that may follow each state of an instance. Requested is only a first state, and
// deleted only a last one.
var InstanceTransitions = instanceTransitions()

func instanceTransitions() map[InstanceState][]InstanceState {
	next := map[InstanceState][]InstanceState{InstanceDeleted: {}}
	for _, from := range append([]InstanceState{InstanceRequested}, living...) {
		others := slices.DeleteFunc(slices.Clone(living), func(to InstanceState) bool { return to == from })
		next[from] = append(others, InstanceDeleted)
	}
	return next
}

// DeliveryTransitions are the statuses that may follow each status of a delivery. Redelivering a dead one is a new
// delivery.
var DeliveryTransitions = map[DeliveryStatus][]DeliveryStatus{
	DeliveryDue:       {DeliveryDelivered, DeliveryDead},
	DeliveryDelivered: {},
	DeliveryDead:      {},
}

// may reports whether the instance may be in the state now. A deleted one stays deleted.
func (i Instance) may(state InstanceState) bool {
	next, known := InstanceTransitions[i.State]
	return !known || i.State == state && len(next) > 0 || slices.Contains(next, state)
}
