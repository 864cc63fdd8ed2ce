package domain

import (
	"fmt"
	"slices"

	"github.com/cloudfn/cloudfn/shared/apperr"
)

// Action is what a caller may want Nova to do to a server.
type Action string

// The verbs.
const (
	Start  Action = "start" // takes a shelved server from its shelf, too
	Stop   Action = "stop"
	Reboot Action = "reboot"
	Delete Action = "delete"
	Deploy Action = "deploy" // rebuild the server with an agent on it, which wipes its disk
	// Connect takes an existing server under management, and Disconnect ends that. Nova hears of neither.
	Connect    Action = "connect"
	Disconnect Action = "disconnect"
)

// Actions lists the actions that are calls to Nova, for messages and checks.
func Actions() []string {
	return []string{string(Start), string(Stop), string(Reboot), string(Deploy), string(Delete)}
}

// ActionRequest is an action as it is asked for.
type ActionRequest struct {
	Action Action
	Hard   bool // of a reboot: does not ask the guest
}

var (
	requestStart  = ActionRequest{Action: Start}
	requestStop   = ActionRequest{Action: Stop}
	requestReboot = ActionRequest{Action: Reboot}
	requestHard   = ActionRequest{Action: Reboot, Hard: true}
	requestDeploy = ActionRequest{Action: Deploy}
	requestDelete = ActionRequest{Action: Delete}
)

// ActionMoves says what may be asked for in each state. They are Nova's rules (compute/api.py and vm_states.py), which
// still has the last word: a server may be locked, never have reached a host, or change meanwhile.
var ActionMoves = map[InstanceState][]ActionRequest{
	InstanceRequested: {}, // there is no server yet
	InstanceBuilding:  {requestDelete},
	InstanceActive:    {requestStop, requestReboot, requestHard, requestDeploy, requestDelete},
	InstanceStopped:   {requestStart, requestHard, requestDeploy, requestDelete},
	InstanceShelved:   {requestStart, requestDeploy, requestDelete},
	InstancePaused:    {requestHard, requestDelete},
	InstanceRebooting: {requestHard, requestDelete},
	InstanceUpdating:  {requestDelete},
	InstanceRescued:   {requestDelete},
	InstanceError:     {requestStop, requestHard, requestDeploy, requestDelete},
	InstanceUnknown:   {requestDelete},
	InstanceDeleting:  {},
	InstanceDeleted:   {},
}

// idleIn are the states in which an action has nothing left to do.
var idleIn = map[Action][]InstanceState{
	Start: {InstanceActive}, Stop: {InstanceStopped}, Delete: {InstanceDeleting, InstanceDeleted},
}

// underWay are the tasks in which Nova already does what the action asks for.
var underWay = map[string]Action{
	"powering-on": Start, "unshelving": Start, "spawning": Start, "powering-off": Stop,
}

// afterAction is what an instance is once Nova has accepted an action.
var afterAction = map[Action]InstanceState{
	Start: InstanceUpdating, Stop: InstanceUpdating, Deploy: InstanceUpdating, Reboot: InstanceRebooting, Delete: InstanceDeleting,
}

// After is the state of an instance once Nova has accepted the action.
func (a ActionRequest) After() InstanceState { return afterAction[a.Action] }

// Idle says whether there is nothing left to do: the server, in the state and with Nova's task given, is already as
// asked for, or on its way there.
func (a ActionRequest) Idle(state InstanceState, task string) bool {
	return slices.Contains(idleIn[a.Action], state) || state == InstanceUpdating && underWay[task] == a.Action
}

// Check refuses what the state does not allow, and says what it does.
func (a ActionRequest) Check(state InstanceState) error {
	allows := ActionMoves[state]
	if slices.Contains(allows, a) {
		return nil
	}
	detail := fmt.Sprintf("a server in the state %s does not allow the action %s", state, a.Action)
	e := apperr.New(apperr.Conflict, "%s", detail)
	e.Fields = []apperr.Field{{Field: "action", Detail: detail, Allowed: AllowedActions(state)}}
	if slices.Contains(allows, ActionRequest{Action: a.Action, Hard: true}) {
		e.Message += ", unless hard"
		e.Fields = append(e.Fields, apperr.Field{Field: "hard", Detail: "must be true for a server in the state " + string(state), Allowed: []string{"true"}})
	}
	return e
}

// AllowedActions lists the actions that a state allows, in the order of Verbs. A reboot may have to be hard.
func AllowedActions(state InstanceState) []string {
	return slices.DeleteFunc(Actions(), func(name string) bool {
		return !slices.ContainsFunc(ActionMoves[state], func(a ActionRequest) bool { return string(a.Action) == name })
	})
}
