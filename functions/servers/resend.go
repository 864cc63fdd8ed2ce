package servers

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"log/slog"
	"strings"
	"time"

	"github.com/google/uuid"

	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/domain"
)

// keyedStore keeps the actions with the project's own token that their callers gave an id.
type keyedStore interface {
	Begin(ctx context.Context, key domain.ActionKey, claimFor time.Duration) (domain.KeyedAction, error)
	Deploying(ctx context.Context, action domain.KeyedAction, deployment uuid.UUID) error
	Finish(ctx context.Context, action domain.KeyedAction, result domain.ActionResult) error
	Abandon(ctx context.Context, action domain.KeyedAction) error
	Release(ctx context.Context, action domain.KeyedAction, pause time.Duration) error
}

// key makes an action one that can be sent again. The zero key has no id: each request is an action of its own.
type key struct {
	id   uuid.UUID
	hash [sha256.Size]byte // of the request
}

// of is the hash of the request for one server.
func (k key) of(serverID string) []byte {
	sum := sha256.Sum256(append(k.hash[:], serverID...))
	return sum[:]
}

// key reads the id of the request, and tells by a hash whether two requests are the same. Secrets go in by themselves,
// because they do not marshal.
func (in actionBody) key() (k key, err error) {
	if in.ID == nil {
		return k, nil
	}
	if k.id, err = uuid.Parse(*in.ID); err != nil || len(*in.ID) != 36 || k.id == uuid.Nil {
		return k, apperr.InvalidField("id", "must be a UUID")
	}
	in.ID = nil
	if in.ConnectionID != nil {
		in.ConnectionID = new(strings.ToLower(*in.ConnectionID))
	}
	var secrets []string
	if in.JoinToken != nil {
		secrets = append(secrets, "join_token", in.JoinToken.Reveal())
	}
	if in.Registry != nil {
		secrets = append(secrets, "password", in.Registry.Password.Reveal())
	}
	text, _ := json.Marshal(struct { //nolint:errchkjson // strings, booleans and lists of them cannot fail
		Request actionBody
		Secrets []string
	}{in, secrets})
	k.hash = sha256.Sum256(text)
	return k, nil
}

const (
	// A replica that has died has had its request's time to work on an action, and some more for what was on its way to
	// Nova.
	keyedSlack = 15 * time.Second
	// What may have reached Nova is not sent again at once.
	keyedPause = 10 * time.Second
	// The database's clock and Nova's may differ by so much.
	clockSkew = 5 * time.Second
)

// once does the action of a request that has an id. One that was done before is answered as it was; of one whose
// outcome nobody knows, Nova is asked first whether it was accepted.
func (p performing) once(ctx context.Context, o outcome) outcome {
	claimFor := time.Minute
	if deadline, ok := ctx.Deadline(); ok {
		claimFor = time.Until(deadline) + keyedSlack
	}
	id := domain.ActionKey{ProjectID: p.ProjectID, ID: p.key.id, BodySHA256: p.key.of(p.serverID)}
	attempt, err := p.keyed.Begin(ctx, id, claimFor)
	if err != nil {
		o.err = err
		return o
	}
	if attempt.Result != nil {
		o.State, o.Changed, o.repeated = attempt.Result.State, attempt.Result.Changed, true
		return o
	}
	p.attempt = &attempt
	var accepted bool
	if attempt.Resumed {
		accepted, o.err = p.wasAccepted(ctx)
	}
	switch {
	case o.err != nil:
	case accepted:
		o.State, o.Changed, o.repeated = p.After(), true, true
	default:
		o.State, o.Changed, o.err = p.run(ctx)
	}
	p.recordOutcome(ctx, attempt, o)
	return o
}

// recordOutcome writes what the action came to, also when the caller hangs up. On failure the claim ends by itself, and
// whoever sends the action again has Nova asked.
func (p performing) recordOutcome(ctx context.Context, attempt domain.KeyedAction, o outcome) {
	writing, cancel := domain.Detached(ctx)
	defer cancel()
	var err error
	switch {
	case o.err == nil:
		err = p.keyed.Finish(writing, attempt, domain.ActionResult{State: o.State, Changed: o.Changed})
	case errors.Is(o.err, apperr.ErrNotSent):
		err = p.keyed.Release(writing, attempt, 0)
	case apperr.Retryable(o.err): // Nova may have accepted it
		err = p.keyed.Release(writing, attempt, keyedPause)
	default:
		err = p.keyed.Abandon(writing, attempt)
	}
	if err != nil {
		slog.WarnContext(ctx, "the outcome of an action is not recorded", "action_id", attempt.ID, "error", err)
	}
}

// wasAccepted asks Nova whether it has accepted the action before. To start, stop or delete a server twice is the same
// as once, so these are simply done.
func (p performing) wasAccepted(ctx context.Context) (bool, error) {
	switch {
	case p.ActionRequest.Action == domain.Deploy && p.attempt.Deployment != uuid.Nil:
		server, err := p.service.engine().Read(ctx, p.access.cloud, p.asAction())
		return server.Metadata[domain.DeployMark] == p.attempt.Deployment.String(), err
	case p.ActionRequest.Action == domain.Reboot && p.serverID != "":
		if _, err := p.service.engine().Read(ctx, p.access.cloud, p.asAction()); err != nil { // also another project's
			return false, err
		}
		logged, err := p.access.cloud.Actions(ctx, p.serverID)
		for _, l := range logged {
			if l.Name == "reboot" && l.Start.After(p.attempt.CreatedAt.Add(-clockSkew)) {
				return true, nil
			}
		}
		return false, err
	}
	return false, nil
}

// recordDeployment records which deployment Nova is about to be asked for: its mark on the server says later whether
// Nova accepted it.
func (p performing) recordDeployment(ctx context.Context, deployment uuid.UUID) error {
	if p.attempt == nil {
		return nil
	}
	err := p.keyed.Deploying(ctx, *p.attempt, deployment)
	if errors.Is(err, domain.ErrFenced) {
		return apperr.New(apperr.Conflict, "action %s is being worked on: send the same request again", p.attempt.ID)
	}
	return err
}
