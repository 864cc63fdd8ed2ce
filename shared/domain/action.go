package domain

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/google/uuid"

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

// ActionKey identifies an action on a server by the caller's id. The same id with another hash is another action.
type ActionKey struct {
	ProjectID  string
	ID         uuid.UUID
	BodySHA256 []byte // of the request and the server
}

// ActionResult is the answer to an action.
type ActionResult struct {
	State   InstanceState `json:"state"`
	Changed bool          `json:"changed"`
	ImageID string        `json:"image_id,omitempty"` // of Snapshot
}

// KeyedAction is a repeatable action with the project's own token. Result is set when it is done; until then the
// replica that began it holds the claim.
type KeyedAction struct {
	ActionKey

	Claim      Claim
	CreatedAt  time.Time
	Resumed    bool      // an earlier attempt has no result; Nova may have accepted it
	Deployment uuid.UUID // of the earlier attempt's rebuild; zero = none
	Result     *ActionResult
}

// DeployMark is the key of the server's metadata that holds the id of its last deployment. The rebuild call sets it, so
// it shows whether the rebuild was requested.
const DeployMark = "cloudfn-deployment"

// SnapshotMark is the key of an image's properties that holds the id of the action that made the image, or one that
// follows from the lease and the server that it was made for.
const SnapshotMark = "cloudfn-action"

// SnapshotServer is the key that holds the id of the server. It is Nova's own, which Nova leaves out, or inherits from
// an earlier image, when a server boots from a volume.
const SnapshotServer = "instance_uuid"

// Deployment is the deployment of an agent to an instance.
type Deployment struct {
	ID         uuid.UUID
	ProjectID  string
	InstanceID uuid.UUID
	Image      string // the OCI reference
	TokenHash  []byte // SHA-256 of the token in the user_data
	Bundle     []byte // encrypted with a key that is in the user_data only
	// ConnectionID is the connection that requested it; zero = none.
	ConnectionID uuid.UUID
}

// Rebuild is the request to Nova that deploys.
type Rebuild struct {
	ID       uuid.UUID         // of the deployment
	ImageID  string            // "" = the current one
	UserData Secret            // cloud-config
	Metadata map[string]string // all of the server's, with DeployMark
}

// DelegatedDeploy is a deployment that only run-connections may read. It is stored sealed.
type DelegatedDeploy struct {
	ID       uuid.UUID `json:"id"`
	ImageID  string    `json:"image_id,omitempty"`
	UserData string    `json:"user_data"`
	// NotAfter is shortly before the deployment's token expires: a later rebuild would wipe the disk for an agent that
	// cannot start. Zero = unknown.
	NotAfter time.Time `json:"not_after,omitzero"`
}

// DeployStep is the next step of a deployment.
type DeployStep string

// The steps of a deployment. A stopped server is started first: after a rebuild Nova would power it off during its
// first boot.
const (
	DeployWait    DeployStep = ""        // Nova is busy
	DeployStart   DeployStep = "start"   // or unshelve
	DeployRebuild DeployStep = "rebuild" // with the new user_data
	DeployDone    DeployStep = "done"
	DeployFailed  DeployStep = "failed"
)

// DeployNext returns the next step of the deployment. All steps are idempotent.
func DeployNext(id uuid.UUID, s Server) DeployStep {
	state := StateOf(s.Status, s.Task)
	isRequested := s.Metadata[DeployMark] == id.String()
	switch {
	case s.Task != "" || s.Partial:
		return DeployWait
	case isRequested && state == InstanceActive:
		return DeployDone
	case isRequested && state == InstanceError:
		return DeployFailed
	case state == InstanceStopped || state == InstanceShelved:
		return DeployStart
	case !isRequested && (state == InstanceActive || state == InstanceError):
		return DeployRebuild
	}
	return DeployWait
}

// Marked returns the server's metadata with DeployMark set.
func (s Server) Marked(id uuid.UUID) map[string]string {
	marked := maps.Clone(s.Metadata)
	if marked == nil {
		marked = map[string]string{}
	}
	marked[DeployMark] = id.String()
	return marked
}

// ActionStatus is the status of an action through a connection.
type ActionStatus string

// The statuses of an action.
const (
	ActionRunning ActionStatus = "running"
	// ActionDone: Nova has accepted it, or completed a deployment, a snapshot, a shelving or a deletion.
	ActionDone   ActionStatus = "done"
	ActionFailed ActionStatus = "failed" // see Problem
)

// ActionStatusTransitions are the statuses that may follow each status of an action.
var ActionStatusTransitions = map[ActionStatus][]ActionStatus{
	ActionRunning: {ActionDone, ActionFailed},
	ActionDone:    {},
	ActionFailed:  {},
}

// DelegatedAction is an action on an instance through a connection.
type DelegatedAction struct {
	ID           uuid.UUID
	ProjectID    string
	ConnectionID uuid.UUID // zero = all of the project
	InstanceID   uuid.UUID
	LeaseID      uuid.UUID // the open lease of its instance; only an action that has been tried has it
	ServerID     string    // of Connect: the server to adopt
	ImageName    string    // of Snapshot; "" = the server's name
	ImageID      string    // of a Snapshot that has ended
	UserID       string    // the caller
	Actor        *Actor    // the caller in events
	Request      ActionRequest
	Payload      []byte // a sealed DelegatedDeploy; nil but for Deploy
	BodySHA256   []byte // of the request; nil = the caller gave no ID
	Repeated     bool   // the same request had stored it before
	Status       ActionStatus
	Problem      *Problem
	CreatedAt    time.Time
	UpdatedAt    time.Time
}

// SealedFor is the context that the action's payload is sealed with.
func (a DelegatedAction) SealedFor() string { return "action/" + a.ProjectID + "/" + a.ID.String() }

// PermissionFor returns the permission that an action needs. ok is false if it needs none.
func PermissionFor(action Action) (p Permission, ok bool) {
	p, ok = map[Action]Permission{
		Start: MayStart, Stop: MayStop, Reboot: MayReboot, Deploy: MayDeploy, Delete: MayDeallocate,
		Connect: MayConnect, Shelve: MayShelve, Unshelve: MayStart, Snapshot: MaySnapshot,
	}[action]
	return p, ok
}
