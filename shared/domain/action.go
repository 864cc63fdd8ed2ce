package domain

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/cloudfn/cloudfn/shared/apperr"
)

// Action is an action on a server.
type Action string

// The actions.
const (
	Start  Action = "start" // unshelves a shelved server, too
	Stop   Action = "stop"
	Reboot Action = "reboot"
	Delete Action = "delete"
	Deploy Action = "deploy" // rebuild the server with an agent on it, which wipes its disk
	// Connect tracks an existing server as an instance, and Disconnect ends that. Neither calls Nova.
	Connect    Action = "connect"
	Disconnect Action = "disconnect"
	Shelve     Action = "shelve"   // off its host, with its disk kept as an image
	Unshelve   Action = "unshelve" // what Start does to a shelved server, and only that
	Snapshot   Action = "snapshot" // make an image of the server's disk
)

// Actions lists the actions that are calls to Nova, for messages and checks.
func Actions() []string {
	return texts(Start, Stop, Reboot, Shelve, Unshelve, Snapshot, Deploy, Delete)
}

// ActionRequest is a requested action.
type ActionRequest struct {
	Action Action
	Hard   bool // of a reboot: cuts the power
}

var (
	requestStart    = ActionRequest{Action: Start}
	requestStop     = ActionRequest{Action: Stop}
	requestReboot   = ActionRequest{Action: Reboot}
	requestHard     = ActionRequest{Action: Reboot, Hard: true}
	requestShelve   = ActionRequest{Action: Shelve}
	requestUnshelve = ActionRequest{Action: Unshelve}
	requestSnapshot = ActionRequest{Action: Snapshot}
	requestDeploy   = ActionRequest{Action: Deploy}
	requestDelete   = ActionRequest{Action: Delete}
)

// ActionTransitions lists the actions that each state allows, by Nova's rules (compute/api.py and vm_states.py). Nova
// may still reject one: a server may be locked, never have reached a host, or change meanwhile.
var ActionTransitions = map[InstanceState][]ActionRequest{
	InstanceRequested: {}, // there is no server yet
	InstanceBuilding:  {requestDelete},
	InstanceActive: {
		requestStop, requestReboot, requestHard, requestShelve, requestSnapshot, requestDeploy, requestDelete,
	},
	InstanceStopped: {
		requestStart, requestHard, requestShelve, requestSnapshot, requestDeploy, requestDelete,
	},
	InstanceShelved:   {requestStart, requestUnshelve, requestDeploy, requestDelete},
	InstancePaused:    {requestHard, requestShelve, requestSnapshot, requestDelete}, // suspended, too
	InstanceRebooting: {requestHard, requestDelete},
	InstanceUpdating:  {requestDelete},
	InstanceRescued:   {requestDelete},
	InstanceError:     {requestStop, requestHard, requestDeploy, requestDelete},
	InstanceUnknown:   {requestDelete},
	InstanceDeleting:  {},
	InstanceDeleted:   {},
}

// idleIn lists the states in which an action has nothing to do.
var idleIn = map[Action][]InstanceState{
	Start: {InstanceActive}, Unshelve: {InstanceActive}, Stop: {InstanceStopped}, Shelve: {InstanceShelved},
	Delete: {InstanceDeleting, InstanceDeleted},
}

// underWay lists the actions that Nova already carries out in a task.
var underWay = map[string][]Action{
	"powering-on": {Start}, "unshelving": {Start, Unshelve}, "spawning": {Start, Unshelve}, "powering-off": {Stop},
	"shelving": {Shelve}, "shelving_image_pending_upload": {Shelve}, "shelving_image_uploading": {Shelve},
	"shelving_offloading": {Shelve},
}

// afterAction is the state of an instance once Nova has accepted an action. Snapshot changes none.
var afterAction = map[Action]InstanceState{
	Start: InstanceUpdating, Stop: InstanceUpdating, Deploy: InstanceUpdating, Reboot: InstanceRebooting,
	Delete: InstanceDeleting, Shelve: InstanceUpdating, Unshelve: InstanceUpdating,
}

// After is the state of an instance once Nova has accepted the action in a state.
func (a ActionRequest) After(state InstanceState) InstanceState {
	return cmp.Or(afterAction[a.Action], state)
}

// Idle reports whether there is nothing to do: by its state and Nova's task, the server is in the requested state or on
// its way there.
func (a ActionRequest) Idle(state InstanceState, task string) bool {
	return slices.Contains(idleIn[a.Action], state) || state == InstanceUpdating &&
		slices.Contains(underWay[task], a.Action)
}

// Check fails if the state does not allow the action, and lists the actions that it allows.
func (a ActionRequest) Check(state InstanceState) error {
	allows := ActionTransitions[state]
	if slices.Contains(allows, a) {
		return nil
	}
	detail := fmt.Sprintf("a server in the state %s does not allow the action %s", state, a.Action)
	e := apperr.New(apperr.Conflict, "%s", detail)
	e.Fields = []apperr.Field{{Field: "action", Detail: detail, Allowed: AllowedActions(state)}}
	if slices.Contains(allows, ActionRequest{Action: a.Action, Hard: true}) {
		e.Message += ", unless hard"
		e.Fields = append(e.Fields, apperr.Field{
			Field: "hard", Detail: "must be true for a server in the state " + string(state), Allowed: []string{"true"},
		})
	}
	return e
}

// AllowedActions lists the actions that a state allows, in the order of Actions. A reboot may have to be hard.
func AllowedActions(state InstanceState) []string {
	return slices.DeleteFunc(Actions(), func(name string) bool {
		return !slices.ContainsFunc(ActionTransitions[state], func(a ActionRequest) bool {
			return string(a.Action) == name
		})
	})
}
