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
	Start    Action = "start" // unshelves a shelved server, too
	Stop     Action = "stop"
	Reboot   Action = "reboot"
	Pause    Action = "pause" // keeps its memory on its host
	Unpause  Action = "unpause"
	Suspend  Action = "suspend" // keeps its memory on its host's disk
	Resume   Action = "resume"
	Shelve   Action = "shelve"   // off its host, with its disk kept as an image
	Unshelve Action = "unshelve" // what Start does to a shelved server, and only that
	Snapshot Action = "snapshot" // make an image of the server's disk
	Lock     Action = "lock"     // Nova rejects other actions of its project until it is unlocked
	Unlock   Action = "unlock"
	Rename   Action = "rename"
	// Resize gives a server another flavor. Nova waits for ConfirmResize or RevertResize then.
	Resize        Action = "resize"
	ConfirmResize Action = "confirm_resize"
	RevertResize  Action = "revert_resize"
	// Rebuild replaces a server's disk by an image. Deploy does it with an agent.
	Rebuild Action = "rebuild"
	// Rescue boots a server from another image, with its own disk as a second one, until Unrescue.
	Rescue   Action = "rescue"
	Unrescue Action = "unrescue"
	Deploy   Action = "deploy" // rebuild the server with an agent on it, which wipes its disk
	Delete   Action = "delete"
	// Connect tracks an existing server as an instance, and Disconnect ends that. Neither calls Nova.
	Connect    Action = "connect"
	Disconnect Action = "disconnect"
)

// ActionRequest is a requested action.
type ActionRequest struct {
	Action Action
	Hard   bool // of a reboot: cuts the power
}

// ActionArguments are what some actions take.
type ActionArguments struct {
	Name   string `json:"name,omitempty"`   // of Rename; of Snapshot the image's, "" = the server's
	Reason string `json:"reason,omitempty"` // of Lock
	Flavor string `json:"flavor,omitempty"` // of Resize: an id or a name; an id in a call to Nova
	Image  string `json:"image,omitempty"`  // of Rebuild and Rescue: an id or a name, "" = the server's own, or Nova's

	Volume *VolumeTask `json:"volume,omitempty"` // of AttachVolume and DetachVolume
}

// actionRule says what an action needs and does. Nova's calls are in shared/openstack, in a table of the same actions.
type actionRule struct {
	ActionRequest

	// from are the states that allow it, by Nova's rules (compute/api.py and vm_states.py). Nova may still reject it: a
	// server may be locked, never have reached a host, or change meanwhile.
	from []InstanceState
	// isOfResized is set if the server has to wait for the action: InstanceResizing has statuses that do not allow it.
	isOfResized bool

	after InstanceState   // once Nova has accepted it; "" = the state stays
	idle  []InstanceState // in which there is nothing to do
	tasks []string        // of Nova, which carry it out
	needs Permission      // of a connection
	// log is its name in Nova's action log, which shows whether it was accepted. "" = a repeated call does no harm.
	log string
}

// changeable are the states of a server that Nova knows all about and does not delete.
var changeable = slices.DeleteFunc(slices.Clone(living), func(state InstanceState) bool {
	return state == InstanceUnknown || state == InstanceDeleting
})

// actionRules are the rules of the actions that call Nova, in the order in which they are listed.
var actionRules = []actionRule{
	{
		ActionRequest: ActionRequest{Action: Start}, needs: MayStart,
		from: []InstanceState{InstanceStopped, InstanceShelved}, after: InstanceUpdating,
		idle: []InstanceState{InstanceActive}, tasks: []string{"powering-on", "unshelving", "spawning"},
	},
	{
		ActionRequest: ActionRequest{Action: Stop}, needs: MayStop,
		from: []InstanceState{InstanceActive, InstanceError}, after: InstanceUpdating,
		idle: []InstanceState{InstanceStopped}, tasks: []string{"powering-off"},
	},
	{
		ActionRequest: ActionRequest{Action: Reboot}, needs: MayReboot, log: "reboot",
		from: []InstanceState{InstanceActive}, after: InstanceRebooting,
	},
	{
		ActionRequest: ActionRequest{Action: Reboot, Hard: true}, needs: MayReboot, log: "reboot",
		from: []InstanceState{
			InstanceActive, InstanceStopped, InstancePaused, InstanceSuspended, InstanceRebooting, InstanceError,
		},
		after: InstanceRebooting,
	},
	{
		ActionRequest: ActionRequest{Action: Pause}, needs: MayPause,
		from: []InstanceState{InstanceActive}, after: InstanceUpdating,
		idle: []InstanceState{InstancePaused}, tasks: []string{"pausing"},
	},
	{
		ActionRequest: ActionRequest{Action: Unpause}, needs: MayPause,
		from: []InstanceState{InstancePaused}, after: InstanceUpdating,
		idle: []InstanceState{InstanceActive}, tasks: []string{"unpausing"},
	},
	{
		ActionRequest: ActionRequest{Action: Suspend}, needs: MaySuspend,
		from: []InstanceState{InstanceActive}, after: InstanceUpdating,
		idle: []InstanceState{InstanceSuspended}, tasks: []string{"suspending"},
	},
	{
		ActionRequest: ActionRequest{Action: Resume}, needs: MaySuspend,
		from: []InstanceState{InstanceSuspended}, after: InstanceUpdating,
		idle: []InstanceState{InstanceActive}, tasks: []string{"resuming"},
	},
	{
		ActionRequest: ActionRequest{Action: Shelve}, needs: MayShelve,
		from:  []InstanceState{InstanceActive, InstanceStopped, InstancePaused, InstanceSuspended},
		after: InstanceUpdating, idle: []InstanceState{InstanceShelved},
		tasks: []string{
			"shelving", "shelving_image_pending_upload", "shelving_image_uploading", "shelving_offloading",
		},
	},
	{
		ActionRequest: ActionRequest{Action: Unshelve}, needs: MayStart,
		from: []InstanceState{InstanceShelved}, after: InstanceUpdating,
		idle: []InstanceState{InstanceActive}, tasks: []string{"unshelving", "spawning"},
	},
	{
		ActionRequest: ActionRequest{Action: Snapshot}, needs: MaySnapshot,
		from: []InstanceState{InstanceActive, InstanceStopped, InstancePaused, InstanceSuspended},
	},
	{
		ActionRequest: ActionRequest{Action: Lock}, needs: MayLock, from: changeable,
	},
	{
		ActionRequest: ActionRequest{Action: Unlock}, needs: MayLock, from: changeable,
	},
	{
		ActionRequest: ActionRequest{Action: Rename}, needs: MayRename, from: changeable,
	},
	{
		ActionRequest: ActionRequest{Action: Resize}, needs: MayResize, log: "resize",
		from: []InstanceState{InstanceActive, InstanceStopped}, after: InstanceResizing,
	},
	{
		ActionRequest: ActionRequest{Action: ConfirmResize}, needs: MayResize, log: "confirmResize",
		from: []InstanceState{InstanceResizing}, isOfResized: true, after: InstanceResizing,
	},
	{
		ActionRequest: ActionRequest{Action: RevertResize}, needs: MayResize, log: "revertResize",
		from: []InstanceState{InstanceResizing}, isOfResized: true, after: InstanceResizing,
		tasks: []string{"resize_reverting"},
	},
	{
		ActionRequest: ActionRequest{Action: Rebuild}, needs: MayRebuild, log: "rebuild",
		from: []InstanceState{InstanceActive, InstanceStopped, InstanceError}, after: InstanceUpdating,
	},
	{
		ActionRequest: ActionRequest{Action: Rescue}, needs: MayRescue, log: "rescue",
		from: []InstanceState{InstanceActive, InstanceStopped, InstanceError}, after: InstanceUpdating,
		idle: []InstanceState{InstanceRescued}, tasks: []string{"rescuing"},
	},
	{
		ActionRequest: ActionRequest{Action: Unrescue}, needs: MayRescue, log: "unrescue",
		from: []InstanceState{InstanceRescued}, after: InstanceUpdating,
		idle: []InstanceState{InstanceActive}, tasks: []string{"unrescuing"},
	},
	{
		ActionRequest: ActionRequest{Action: Deploy}, needs: MayDeploy,
		from:  []InstanceState{InstanceActive, InstanceStopped, InstanceShelved, InstanceError},
		after: InstanceUpdating,
	},
	{
		ActionRequest: ActionRequest{Action: Delete}, needs: MayDeallocate,
		from: append(slices.Clone(changeable), InstanceUnknown), after: InstanceDeleting,
		idle: []InstanceState{InstanceDeleting, InstanceDeleted},
	},
}

// rule returns the rule of an action that calls Nova, and the zero rule of any other.
func (a ActionRequest) rule() actionRule {
	if n := slices.IndexFunc(actionRules, func(r actionRule) bool { return r.ActionRequest == a }); n >= 0 {
		return actionRules[n]
	}
	return actionRule{ActionRequest: a}
}

// Actions lists the actions that are calls to Nova, for messages and checks.
func Actions() []string {
	var names []string
	for _, r := range actionRules {
		names = append(names, string(r.Action))
	}
	return slices.Compact(names)
}

// ActionTransitions lists the actions that each state allows.
var ActionTransitions = actionTransitions()

func actionTransitions() map[InstanceState][]ActionRequest {
	allowed := map[InstanceState][]ActionRequest{InstanceRequested: {}, InstanceDeleted: {}} // they have no server
	for _, state := range living {
		allowed[state] = []ActionRequest{}
		for _, r := range actionRules {
			if slices.Contains(r.from, state) {
				allowed[state] = append(allowed[state], r.ActionRequest)
			}
		}
	}
	return allowed
}

// After is the state of an instance once Nova has accepted the action in a state.
func (a ActionRequest) After(state InstanceState) InstanceState { return cmp.Or(a.rule().after, state) }

// Idle reports whether there is nothing to do: by its state and Nova's task, the server is in the requested state or on
// its way there.
func (a ActionRequest) Idle(state InstanceState, task string) bool {
	r := a.rule()
	isWorking := state == InstanceUpdating || state == InstanceResizing
	return slices.Contains(r.idle, state) || isWorking && slices.Contains(r.tasks, task)
}

// Fulfilled reports whether there is nothing to do to the server, because it has what the arguments request.
func (a ActionRequest) Fulfilled(server Server, args ActionArguments) bool {
	if server.Partial {
		return false
	}
	switch a.Action {
	case Lock:
		return server.Locked
	case Unlock:
		return !server.Locked
	case Rename:
		return server.Name == args.Name
	}
	return false
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

// CheckServer is Check for the server as Nova shows it: a resize can be confirmed or reverted only once it waits for
// that.
func (a ActionRequest) CheckServer(s Server) error {
	state := StateOf(s.Status, s.Task)
	if err := a.Check(state); err != nil || !a.rule().isOfResized || s.IsResized() {
		return err
	}
	detail := fmt.Sprintf("the action %s is possible in Nova's status %s: the server is in %s", a.Action, verifyResize,
		s.Status)
	e := apperr.New(apperr.Conflict, "%s", detail)
	e.Fields = []apperr.Field{{Field: "action", Detail: detail, Allowed: texts(s.Allows(state)...)}}
	return e
}

// Allows lists the actions that the server allows in a state, in the order of Actions. A reboot may have to be hard.
func (s Server) Allows(state InstanceState) []Action {
	var all []Action
	for _, a := range ActionTransitions[state] {
		if !slices.Contains(all, a.Action) && (!a.rule().isOfResized || s.IsResized()) {
			all = append(all, a.Action)
		}
	}
	return all
}

// AllowedActions lists the actions that a state allows, in the order of Actions. A reboot may have to be hard.
func AllowedActions(state InstanceState) []string {
	return slices.DeleteFunc(Actions(), func(name string) bool {
		return !slices.ContainsFunc(ActionTransitions[state], func(a ActionRequest) bool {
			return string(a.Action) == name
		})
	})
}

// LogName is the action's name in Nova's log, when only that shows whether Nova has accepted a call. "" = the call can
// be repeated.
func (a ActionRequest) LogName() string { return a.rule().log }

// PermissionFor returns the permission that an action needs. ok is false if it needs none.
func PermissionFor(action Action) (p Permission, ok bool) {
	switch action {
	case Connect:
		return MayConnect, true
	case AttachVolume, DetachVolume:
		return MayAttach, true
	}
	p = ActionRequest{Action: action}.rule().needs
	return p, p != ""
}
