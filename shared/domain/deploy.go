package domain

import (
	"maps"
	"time"

	"github.com/google/uuid"
)

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
