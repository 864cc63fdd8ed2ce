package domain

import (
	"maps"
	"time"

	"github.com/google/uuid"
)

// DeployMark is the key of a server's metadata whose value is the id of the deployment that it was last rebuilt for.
// Nova takes it in the same call as the rebuild, so whoever looks knows whether that was asked for already.
const DeployMark = "cloudfn-deployment"

// Deployment is one agent on its way to an instance.
type Deployment struct {
	ID         uuid.UUID
	ProjectID  string
	InstanceID uuid.UUID
	Image      string // the OCI reference
	TokenHash  []byte // SHA-256 of the token in the user_data
	Bundle     []byte // encrypted with a key that is in the user_data only
	// ConnectionID is the connection that it was ordered through; zero is the project's own token.
	ConnectionID uuid.UUID
}

// Rebuild is what Nova is asked for to deploy.
type Rebuild struct {
	ID       uuid.UUID         // of the deployment
	ImageID  string            // that the server boots from; "" is the one that it has
	UserData Secret            // cloud-config
	Metadata map[string]string // all of the server's, the mark with it
}

// DelegatedDeploy is what run-connections needs to deploy. It is stored sealed.
type DelegatedDeploy struct {
	ID       uuid.UUID `json:"id"`
	ImageID  string    `json:"image_id,omitempty"`
	UserData string    `json:"user_data"`
	// NotAfter is shortly before the deployment's token ends. Who rebuilds later wipes a disk for an agent that cannot
	// come; zero is not said.
	NotAfter time.Time `json:"not_after,omitzero"`
}

// DeployStep is what is to be done next to deploy.
type DeployStep string

// The steps of a deployment. A server that is stopped is started first: Nova starts one that it rebuilds, and one that
// was stopped it would power off again in the middle of its first boot.
const (
	DeployWait    DeployStep = ""        // Nova is at work
	DeployStart   DeployStep = "start"   // or unshelve
	DeployRebuild DeployStep = "rebuild" // with the new user_data
	DeployDone    DeployStep = "done"
	DeployFailed  DeployStep = "failed"
)

// DeployNext is what is to be done to the server for the deployment. Each step may be done twice without harm.
func DeployNext(id uuid.UUID, s Server) DeployStep {
	state := StateOf(s.Status, s.Task)
	asked := s.Metadata[DeployMark] == id.String()
	switch {
	case s.Task != "" || s.Partial:
		return DeployWait
	case asked && state == InstanceActive:
		return DeployDone
	case asked && state == InstanceError:
		return DeployFailed
	case state == InstanceStopped || state == InstanceShelved:
		return DeployStart
	case !asked && (state == InstanceActive || state == InstanceError):
		return DeployRebuild
	}
	return DeployWait
}

// Marked is the server's metadata with the deployment's mark.
func (s Server) Marked(id uuid.UUID) map[string]string {
	marked := maps.Clone(s.Metadata)
	if marked == nil {
		marked = map[string]string{}
	}
	marked[DeployMark] = id.String()
	return marked
}
