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

// key reads the id of the request, and tells by a hash whether two requests are the same. Secrets go in by themselves, because they do
// not marshal.
func (a asked) key() (k key, err error) {
	if a.ID == nil {
		return k, nil
	}
	if k.id, err = uuid.Parse(*a.ID); err != nil || len(*a.ID) != 36 || k.id == uuid.Nil {
		return k, apperr.InvalidField("id", "must be a UUID")
	}
	a.ID = nil
	if a.ConnectionID != nil {
		a.ConnectionID = new(strings.ToLower(*a.ConnectionID))
	}
	var secrets []string
	if a.JoinToken != nil {
		secrets = append(secrets, "join_token", a.JoinToken.Reveal())
	}
	if a.Registry != nil {
		secrets = append(secrets, "password", a.Registry.Password.Reveal())
	}
	text, _ := json.Marshal(struct { //nolint:errchkjson // strings, booleans and lists of them cannot fail
		Request asked
		Secrets []string
	}{a, secrets})
	k.hash = sha256.Sum256(text)
	return k, nil
}

const (
	// A replica that has died has had its request's time to work on an action, and some more for what was on its way to Nova.
	keyedSlack = 15 * time.Second
	// What may have reached Nova is not sent again at once.
	keyedPause = 10 * time.Second
	// The database's clock and Nova's may differ by so much.
	clockSkew = 5 * time.Second
)

// once does the action of a request that has an id. One that was done before is answered as it was; of one whose outcome nobody knows,
// Nova is asked first whether it was accepted.
func (a acting) once(ctx context.Context, t target, o outcome) outcome {
	claimFor := time.Minute
	if deadline, ok := ctx.Deadline(); ok {
		claimFor = time.Until(deadline) + keyedSlack
	}
	action, err := a.keyed.Begin(ctx, domain.ActionKey{ProjectID: a.who.ProjectID, ID: a.key.id, BodySHA256: a.key.of(t.serverID)}, claimFor)
	if err != nil {
		o.err = err
		return o
	}
	if action.Result != nil {
		o.State, o.Changed, o.repeated = action.Result.State, action.Result.Changed, true
		return o
	}
	a.action = &action
	var accepted bool
	if action.Resumed {
		accepted, o.err = a.wasAccepted(ctx, t)
	}
	switch {
	case o.err != nil:
	case accepted:
		o.State, o.Changed, o.repeated = a.After(), true, true
	default:
		o.State, o.Changed, o.err = a.to(ctx, t)
	}
	a.record(ctx, action, o)
	return o
}

// record writes down what the action came to, also when the caller hangs up. On failure the claim ends by itself, and whoever sends the
// action again has Nova asked.
func (a acting) record(ctx context.Context, action domain.KeyedAction, o outcome) {
	writing, cancel := context.WithTimeout(context.WithoutCancel(ctx), noteTimeout)
	defer cancel()
	var err error
	switch {
	case o.err == nil:
		err = a.keyed.Finish(writing, action, domain.ActionResult{State: o.State, Changed: o.Changed})
	case errors.Is(o.err, apperr.ErrNotSent):
		err = a.keyed.Release(writing, action, 0)
	case apperr.Retryable(o.err): // Nova may have accepted it
		err = a.keyed.Release(writing, action, keyedPause)
	default:
		err = a.keyed.Abandon(writing, action)
	}
	if err != nil {
		slog.WarnContext(ctx, "the outcome of an action is not recorded", "action_id", action.ID, "error", err)
	}
}

// wasAccepted asks Nova whether it has accepted the action before. To start, stop or delete a server twice is the same as once, so these
// are simply done.
func (a acting) wasAccepted(ctx context.Context, t target) (bool, error) {
	switch {
	case a.Verb == domain.Deploy && a.action.Deployment != uuid.Nil:
		server, err := a.look(ctx, t)
		return server.Metadata[domain.DeployMark] == a.action.Deployment.String(), err
	case a.Verb == domain.Reboot && t.serverID != "":
		if _, err := a.look(ctx, t); err != nil { // also another project's
			return false, err
		}
		logged, err := a.session.Actions(ctx, t.serverID)
		for _, l := range logged {
			if l.Name == "reboot" && l.Start.After(a.action.CreatedAt.Add(-clockSkew)) {
				return true, nil
			}
		}
		return false, err
	}
	return false, nil
}

// deploying records which deployment Nova is about to be asked for: its mark on the server says later whether Nova accepted it.
func (a acting) deploying(ctx context.Context, deployment uuid.UUID) error {
	if a.action == nil {
		return nil
	}
	err := a.keyed.Deploying(ctx, *a.action, deployment)
	if errors.Is(err, domain.ErrFenced) {
		return apperr.New(apperr.Conflict, "action %s is being worked on: send the same request again", a.action.ID)
	}
	return err
}
