package domain

import (
	"fmt"
	"slices"

	"github.com/cloudfn/cloudfn/shared/apperr"
)

// Verb is what a caller may want Nova to do to a server.
type Verb string

// The verbs.
const (
	Start  Verb = "start" // takes a shelved server from its shelf, too
	Stop   Verb = "stop"
	Reboot Verb = "reboot"
	Delete Verb = "delete"
	Deploy Verb = "deploy" // rebuild the server with an agent on it, which wipes its disk
	// Connect takes an existing server under management, and Disconnect lets one go. Nova is told of neither.
	Connect    Verb = "connect"
	Disconnect Verb = "disconnect"
)

// Verbs lists the verbs that Nova is told, for messages and checks.
func Verbs() []string {
	return []string{string(Start), string(Stop), string(Reboot), string(Deploy), string(Delete)}
}

// Ask is an action as it is asked for.
type Ask struct {
	Verb Verb
	Hard bool // of a reboot: does not ask the guest
}

var (
	askStart  = Ask{Verb: Start}
	askStop   = Ask{Verb: Stop}
	askReboot = Ask{Verb: Reboot}
	askHard   = Ask{Verb: Reboot, Hard: true}
	askDeploy = Ask{Verb: Deploy}
	askDelete = Ask{Verb: Delete}
)

// ActionMoves says what may be asked for in each state. They are Nova's rules (compute/api.py and vm_states.py), which still
// has the last word: a server may be locked, never have reached a host, or change meanwhile.
var ActionMoves = map[InstanceState][]Ask{
	InstanceRequested: {}, // there is no server yet
	InstanceBuilding:  {askDelete},
	InstanceActive:    {askStop, askReboot, askHard, askDeploy, askDelete},
	InstanceStopped:   {askStart, askHard, askDeploy, askDelete},
	InstanceShelved:   {askStart, askDeploy, askDelete},
	InstancePaused:    {askHard, askDelete},
	InstanceRebooting: {askHard, askDelete},
	InstanceUpdating:  {askDelete},
	InstanceRescued:   {askDelete},
	InstanceError:     {askStop, askHard, askDeploy, askDelete},
	InstanceUnknown:   {askDelete},
	InstanceDeleting:  {},
	InstanceDeleted:   {},
}

// idleIn are the states in which an action has nothing left to do.
var idleIn = map[Verb][]InstanceState{
	Start: {InstanceActive}, Stop: {InstanceStopped}, Delete: {InstanceDeleting, InstanceDeleted},
}

// underWay are the tasks in which Nova already does what the action asks for.
var underWay = map[string]Verb{
	"powering-on": Start, "unshelving": Start, "spawning": Start, "powering-off": Stop,
}

// afterAction is what an instance is once Nova has accepted an action.
var afterAction = map[Verb]InstanceState{
	Start: InstanceUpdating, Stop: InstanceUpdating, Deploy: InstanceUpdating, Reboot: InstanceRebooting, Delete: InstanceDeleting,
}

// After is the state of an instance once Nova has accepted the action.
func (a Ask) After() InstanceState { return afterAction[a.Verb] }

// Idle says whether there is nothing left to do: the server, in the state and with Nova's task given, is already as asked
// for, or on its way there.
func (a Ask) Idle(state InstanceState, task string) bool {
	return slices.Contains(idleIn[a.Verb], state) || state == InstanceUpdating && underWay[task] == a.Verb
}

// Check refuses what the state does not allow, and says what it does.
func (a Ask) Check(state InstanceState) error {
	allows := ActionMoves[state]
	if slices.Contains(allows, a) {
		return nil
	}
	detail := fmt.Sprintf("a server in the state %s cannot be told to %s", state, a.Verb)
	e := apperr.New(apperr.Conflict, "%s", detail)
	e.Fields = []apperr.Field{{Field: "action", Detail: detail, Allowed: AllowedActions(state)}}
	if slices.Contains(allows, Ask{Verb: a.Verb, Hard: true}) {
		e.Message += ", unless hard"
		e.Fields = append(e.Fields, apperr.Field{Field: "hard", Detail: "must be true for a server in the state " + string(state), Allowed: []string{"true"}})
	}
	return e
}

// AllowedActions lists the actions that a state allows, in the order of Verbs. A reboot may have to be hard.
func AllowedActions(state InstanceState) []string {
	return slices.DeleteFunc(Verbs(), func(name string) bool {
		return !slices.ContainsFunc(ActionMoves[state], func(a Ask) bool { return string(a.Verb) == name })
	})
}
