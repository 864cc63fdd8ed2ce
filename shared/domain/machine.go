package domain

import "slices"

// The state machines are tables: for each state, those that may follow it. OrderMoves and CallbackMoves are beside what
// they are about. The diagrams in docs/states.md are drawn from all of them (machine_test.go), and random histories are held against them.

// living are the states of an instance with a server. Between two looks at Nova a server may have gone through any of them,
// so each may be followed by every other one.
var living = []InstanceState{
	InstanceBuilding, InstanceActive, InstanceStopped, InstanceShelved, InstancePaused, InstanceRebooting, InstanceUpdating,
	InstanceRescued, InstanceError, InstanceUnknown, InstanceDeleting,
}

// InstanceMoves are the states that may follow each state of an instance. None leads back to requested, and none out of
// deleted.
var InstanceMoves = instanceMoves()

func instanceMoves() map[InstanceState][]InstanceState {
	moves := map[InstanceState][]InstanceState{InstanceDeleted: {}}
	for _, from := range append([]InstanceState{InstanceRequested}, living...) {
		others := slices.DeleteFunc(slices.Clone(living), func(to InstanceState) bool { return to == from })
		moves[from] = append(others, InstanceDeleted)
	}
	return moves
}

// DeliveryMoves are the statuses that may follow each status of a delivery. To deliver a dead one again is a new delivery.
var DeliveryMoves = map[DeliveryStatus][]DeliveryStatus{
	DeliveryDue:       {DeliveryDelivered, DeliveryDead},
	DeliveryDelivered: {},
	DeliveryDead:      {},
}

// may says whether the instance, whatever is known of it, may be found in the state. Of a deleted one nothing is news.
func (i Instance) may(state InstanceState) bool {
	moves, known := InstanceMoves[i.State]
	return !known || i.State == state && len(moves) > 0 || slices.Contains(moves, state)
}
