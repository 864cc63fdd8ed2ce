package domain

import (
	"maps"
	"time"

	"github.com/google/uuid"
)

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

// RebuildRequest is the request to Nova that deploys.
type RebuildRequest struct {
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
	Arguments    ActionArguments
	ImageID      string // of a Snapshot that has ended
	Outcome      ActionOutcome
	UserID       string // the caller
	Actor        *Actor // the caller in events
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
