package servers

import (
	"context"
	"crypto/sha256"
	"errors"
	"log/slog"
	"time"

	"github.com/google/uuid"

	"github.com/cloudfn/cloudfn/shared/actions"
	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/domain"
)

// key makes an action idempotent. Without an id each request is an action of its own.
type key struct {
	id       uuid.UUID
	hash     [sha256.Size]byte // of the request; zero for an id that belongs to no other
	isOfMany bool              // the request is for several servers
}

// forServer is the key of the action on one server.
func (k key) forServer(id string) key {
	if k.isOfMany {
		k.id = uuid.NewSHA1(k.id, []byte(id))
	}
	return k
}

// of is the hash of the request for one server.
func (k key) of(serverID string) []byte {
	sum := sha256.Sum256(append(k.hash[:], serverID...))
	return sum[:]
}

const (
	// A dead replica has had its request's time to work on an action, and this much for calls on their way to Nova.
	keyedSlack = 15 * time.Second
	// A call that may have reached Nova is not repeated at once.
	keyedPause = 10 * time.Second
)

// runOnce runs an action that has a key. A repeated request gets the stored result. When an earlier attempt has no
// result, Nova knows whether it accepted the action.
func (t task) runOnce(ctx context.Context, o *outcome) error {
	claimFor := time.Minute
	if deadline, ok := ctx.Deadline(); ok {
		claimFor = time.Until(deadline) + keyedSlack
	}
	id := domain.ActionKey{ProjectID: t.ProjectID, ID: t.key.id, BodySHA256: t.key.of(t.serverID)}
	attempt, err := t.keyed.Begin(ctx, id, claimFor)
	if err != nil {
		return err
	}
	if attempt.Result != nil {
		r := attempt.Result
		o.State, o.Changed, o.ImageID, o.isRepeated = r.State, r.Changed, r.ImageID, true
		return nil
	}
	if attempt.Resumed {
		o.isRepeated, err = t.wasAccepted(ctx, o, attempt)
	}
	switch {
	case o.isRepeated:
		o.State, o.Changed = t.After(o.State), true
	case err == nil:
		err = t.run(ctx, o, &attempt)
	}
	t.recordOutcome(ctx, attempt, *o, err)
	return err
}

// recordOutcome stores the result, also when the client hangs up. On failure the claim expires, and the next attempt
// finds out whether Nova accepted the action.
func (t task) recordOutcome(ctx context.Context, attempt domain.KeyedAction, o outcome, failed error) {
	writing, cancel := domain.Detached(ctx)
	defer cancel()
	var err error
	switch {
	case failed == nil:
		err = t.keyed.Finish(writing, attempt, domain.ActionResult{
			State: o.State, Changed: o.Changed, ImageID: o.ImageID,
		})
	case errors.Is(failed, apperr.ErrNotSent):
		err = t.keyed.Release(writing, attempt, 0)
	case apperr.Retryable(failed): // Nova may have accepted it
		err = t.keyed.Release(writing, attempt, keyedPause)
	default:
		err = t.keyed.Abandon(writing, attempt)
	}
	if err != nil {
		slog.WarnContext(ctx, "the outcome of an action is not recorded", "action_id", attempt.ID, "error", err)
	}
}

// wasAccepted finds out whether Nova accepted an earlier attempt. Start, stop, shelve, unshelve and delete can simply
// be repeated.
func (t task) wasAccepted(ctx context.Context, o *outcome, attempt domain.KeyedAction) (bool, error) {
	isDeployed := t.Action == domain.Deploy && attempt.Deployment != uuid.Nil
	if !isDeployed && t.Action != domain.Reboot && t.Action != domain.Snapshot || t.serverID == "" {
		return false, nil
	}
	server, err := t.engine().Read(ctx, t.cloud, t.asAction()) // fails for a server of another project
	switch {
	case err != nil || isDeployed:
		return server.Metadata[domain.DeployMark] == attempt.Deployment.String(), err
	case t.Action == domain.Reboot:
		return actions.WasRebooted(ctx, t.cloud, t.serverID, attempt.CreatedAt)
	}
	images, err := t.cloud.ImagesOf(ctx, attempt.ID, server)
	if err != nil || len(images) == 0 {
		return false, err
	}
	o.State, o.ImageID = domain.StateOf(server.Status, server.Task), images[0].ID
	return true, nil
}
