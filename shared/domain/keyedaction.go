package domain

import (
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
