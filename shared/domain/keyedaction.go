package domain

import (
	"time"

	"github.com/google/uuid"
)

// ActionKey identifies an action on a server by an id of the caller's. The same id with another hash is another action.
type ActionKey struct {
	ProjectID  string
	ID         uuid.UUID
	BodySHA256 []byte // of what was asked for, and of which server
}

// ActionResult is what the caller of an action was answered.
type ActionResult struct {
	State   InstanceState `json:"state"`
	Changed bool          `json:"changed"`
}

// KeyedAction is an action with the project's own token that can be sent again. Result is set when it is done; else the
// replica that began it holds the claim.
type KeyedAction struct {
	ActionKey

	Claim      uuid.UUID
	CreatedAt  time.Time
	Resumed    bool      // an earlier attempt ended without a result: Nova may have accepted it
	Deployment uuid.UUID // that the earlier attempt had Nova rebuild the server for; zero = none
	Result     *ActionResult
}
