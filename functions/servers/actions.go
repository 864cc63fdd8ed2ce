package servers

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"
	"golang.org/x/sync/errgroup"

	"github.com/cloudfn/cloudfn/shared/actions"
	"github.com/cloudfn/cloudfn/shared/agent"
	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/postgres"
	"github.com/cloudfn/cloudfn/shared/seal"
)

// parallelActions limits how many servers of one request are worked on in parallel: each takes Nova two requests.
const parallelActions = 8

// target is the server that an id of a request identifies.
type target struct {
	id       string          // as the caller gave it
	serverID string          // "" for an instance without a server
	instance domain.Instance // zero for a server that is not tracked
}

// actionRequest is one action on servers.
type actionRequest struct {
	domain.ActionRequest

	force  bool // of Delete: also a server that existed before it was connected
	args   domain.ActionArguments
	deploy *deploy // of Deploy
	key    key     // of an action with an id from the caller
}

// outcome is the result of an action on one server.
type outcome struct {
	ID         string
	State      domain.InstanceState
	Changed    bool       // Nova has accepted the action, or it is stored; false when there was nothing to do
	ActionID   *uuid.UUID // of an action that is stored
	ImageID    string     // of Snapshot, once Nova has accepted it
	password   domain.Secret
	isTracked  bool
	isRepeated bool // the same request has done the action before
	err        error
}

// Do does one action to servers, and returns the outcome for each, in their order.
func (s service) Do(ctx context.Context, a access, req actionRequest, ids []string) ([]outcome, error) {
	if err := a.authorize(req.Action); err != nil {
		return nil, err
	}
	if req.deploy != nil && req.deploy.serverImage != "" {
		if err := a.Connection.Limits.CheckImage("server_image", req.deploy.serverImage); err != nil {
			return nil, err
		}
	}
	targets, err := s.targets(ctx, a, ids)
	if err != nil {
		return nil, err
	}
	outcomes := make([]outcome, len(targets))
	var group errgroup.Group
	group.SetLimit(parallelActions)
	for i, t := range targets {
		one := req
		one.key = req.key.forServer(t.id)
		group.Go(func() error { outcomes[i] = task{s, a, one, t}.do(ctx); return nil })
	}
	_ = group.Wait() // each outcome has its own error
	if slices.ContainsFunc(outcomes, func(o outcome) bool { return o.Changed && o.isTracked }) {
		s.wake("deliver-events", a.worker())
	}
	return outcomes, nil
}

// worker is the function that continues what the access has begun.
func (a access) worker() string {
	if a.cloud == nil {
		return "run-connections"
	}
	return "poll-instances"
}

// targets finds the servers by their own ids, or their instances'. A server must not be given twice.
func (s service) targets(ctx context.Context, a access, ids []string) ([]target, error) {
	found, err := s.instances.Find(ctx, a.Filter(), ids)
	if err != nil {
		return nil, err
	}
	targets := make([]target, len(ids))
	for n, i := range found {
		t := target{id: ids[n], serverID: i.ServerID, instance: i}
		if i.ID == uuid.Nil {
			t.serverID = ids[n]
		}
		isSame := func(o target) bool { return o.id == t.id || t.serverID != "" && o.serverID == t.serverID }
		if first := slices.IndexFunc(targets[:n], isSame); first >= 0 {
			return nil, apperr.InvalidField(
				fmt.Sprintf("ids[%d]", n), fmt.Sprintf("is the same server as ids[%d]", first))
		}
		targets[n] = t
	}
	return targets, nil
}

// task is one action on one server.
type task struct {
	service
	access
	actionRequest
	target
}

// do stores the action for run-connections, or runs it with the caller's own token.
func (t task) do(ctx context.Context) outcome {
	o := outcome{ID: t.id, State: t.instance.State, isTracked: t.instance.ID != uuid.Nil}
	switch {
	case t.cloud == nil:
		o.err = t.store(ctx, &o)
	case t.key.id != uuid.Nil:
		o.err = t.runOnce(ctx, &o)
	default:
		o.err = t.run(ctx, &o, nil)
	}
	return o
}

// run has the engine do the action. A deployment that Nova certainly does not make is dropped.
func (t task) run(ctx context.Context, o *outcome, attempt *domain.KeyedAction) error {
	var made domain.Deployment
	action := t.asAction()
	if t.deploy != nil {
		action.Deployment.ImageID = t.deploy.serverImage
		action.Deployment.Prepare = func(ctx context.Context) (r domain.RebuildRequest, err error) {
			made, r.UserData, err = t.agents.prepare(ctx, *t.deploy, t.ProjectID, t.instance.ID, uuid.Nil)
			// the attempt's mark on the server shows later whether Nova accepted it
			if r.ID = made.ID; err == nil && attempt != nil {
				err = t.keyed.RecordDeployment(ctx, *attempt, made.ID)
			}
			if errors.Is(err, domain.ErrFenced) {
				err = apperr.New(apperr.Conflict, "action %s is being worked on: send the same request again",
					attempt.ID)
			}
			return r, err
		}
	}
	progress, err := t.engine().Run(ctx, t.cloud, action)
	t.agents.dropFailed(ctx, made, err)
	o.State, o.Changed, o.ImageID, o.password = progress.State, progress.Accepted, progress.ImageID, progress.Password
	return err
}

func (s service) engine() actions.Engine { return actions.Engine{Instances: s.instances} }

func (t task) asAction() actions.Action {
	return actions.Action{
		ActionRequest: t.ActionRequest, ID: t.key.id, Actor: t.Actor(), ServerID: t.serverID, Instance: t.instance,
		ProjectID: t.ProjectID, Force: t.force, Arguments: t.args,
	}
}

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
	// A call that may have reached Nova is not repeated immediately.
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

// wasAccepted finds out whether Nova accepted an earlier attempt. Actions that leave no mark and have no LogName can
// simply be repeated.
func (t task) wasAccepted(ctx context.Context, o *outcome, attempt domain.KeyedAction) (bool, error) {
	isDeployed := t.Action == domain.Deploy && attempt.Deployment != uuid.Nil
	if !isDeployed && t.LogName() == "" && t.Action != domain.Snapshot || t.serverID == "" {
		return false, nil
	}
	server, err := t.engine().Read(ctx, t.cloud, t.asAction()) // fails for a server of another project
	switch {
	case err != nil || isDeployed:
		return server.Metadata[domain.DeployMark] == attempt.Deployment.String(), err
	case t.LogName() != "":
		return actions.WasAccepted(ctx, t.cloud, t.serverID, t.ActionRequest, attempt.CreatedAt)
	}
	images, err := t.cloud.ImagesOf(ctx, attempt.ID, server)
	if err != nil || len(images) == 0 {
		return false, err
	}
	o.State, o.ImageID = domain.StateOf(server.Status, server.Task), images[0].ID
	return true, nil
}

// newAction is an action that the caller requests through its connection.
func (a access) newAction(req actionRequest, instance uuid.UUID) domain.DelegatedAction {
	return domain.DelegatedAction{
		ID: uuid.Must(uuid.NewV7()), ProjectID: a.ProjectID, ConnectionID: a.Connection.ID, InstanceID: instance,
		UserID: a.Identity.UserID, Request: req.ActionRequest, Arguments: req.args, Actor: a.Actor(),
	}
}

// store stores the action for run-connections, which decides by the server's state in Nova then.
func (t task) store(ctx context.Context, o *outcome) (err error) {
	if !o.isTracked {
		return t.notFound(t.id)
	}
	action, stored := t.newAction(t.actionRequest, t.instance.ID), domain.DelegatedAction{}
	if t.key.id != uuid.Nil {
		action.ID, action.BodySHA256 = t.key.id, t.key.of(t.serverID)
		if stored, err = t.actions.FindStored(ctx, action); err != nil {
			return err
		}
	}
	if !stored.Repeated {
		isDeleted := t.instance.State == domain.InstanceDeleted
		switch {
		case isDeleted && t.Action == domain.Delete:
			return nil
		case isDeleted:
			return t.Check(t.instance.State)
		case t.serverID == "":
			return actions.ErrNoServer
		case !t.asAction().MayDelete(t.instance.Origin):
			return actions.ErrNeedsForce
		case t.Action == domain.Deploy:
			stored, err = t.storeDeployment(ctx, action)
		default:
			stored, err = t.actions.Create(ctx, action)
		}
	}
	if err == nil {
		o.ActionID, o.Changed, o.isRepeated = &stored.ID, true, stored.Repeated
	}
	return err
}

// bootTime is what a guest needs from a rebuild until it uses its token: a later rebuild would be useless.
const bootTime = 2 * time.Minute

// storeDeployment stores a deployment, encrypted for run-connections.
func (t task) storeDeployment(ctx context.Context, action domain.DelegatedAction) (domain.DelegatedAction, error) {
	now, err := t.connections.Now(ctx) // before the token's time begins
	if err != nil {
		return action, err
	}
	made, userData, err := t.agents.prepare(ctx, *t.deploy, action.ProjectID, action.InstanceID, action.ConnectionID)
	if err != nil {
		return action, err
	}
	payload, err := json.Marshal(domain.DelegatedDeploy{
		ID: made.ID, ImageID: t.deploy.serverImage, UserData: userData.Reveal(),
		NotAfter: now.Add(t.agents.validFor - min(bootTime, t.agents.validFor/4)),
	})
	if err != nil {
		return action, err
	}
	if action.Payload, err = t.agents.key.Seal(action.SealedFor(), domain.Secret(payload)); err != nil {
		return action, err
	}
	stored, err := t.actions.Create(ctx, action)
	if stored.Repeated {
		t.agents.drop(ctx, made)
	}
	t.agents.dropFailed(ctx, made, err)
	return stored, err
}

// deploy is an agent to run on an instance. Its project and instance are filled in later.
type deploy struct {
	agent.Spec

	serverImage string // for the server's disk; "" = its own
}

// agents is what deployments need.
type agents struct {
	config      agent.Config
	validFor    time.Duration // of a deployment's token
	deployments postgres.Deployments
	key         seal.PublicKey // of run-connections
}

// prepare makes the deployment and stores it, before the first call to Nova.
func (g agents) prepare(
	ctx context.Context, d deploy, projectID string, instance, connection uuid.UUID,
) (domain.Deployment, domain.Secret, error) {
	d.ProjectID, d.Instance = projectID, instance
	made, userData, err := agent.New(g.config, d.Spec)
	if err != nil {
		return made, "", err
	}
	made.ConnectionID = connection
	return made, userData, g.deployments.Create(ctx, made, g.validFor)
}

// dropFailed drops a deployment (zero = none) unless the action may have been accepted in spite of the error.
func (g agents) dropFailed(ctx context.Context, made domain.Deployment, err error) {
	if made.ID != uuid.Nil && err != nil && !apperr.Retryable(err) {
		g.drop(ctx, made)
	}
}

// drop deletes a deployment that no one will make. On failure its token expires.
func (g agents) drop(ctx context.Context, made domain.Deployment) {
	writing, cancel := domain.Detached(ctx)
	defer cancel()
	if err := g.deployments.Drop(writing, made.ProjectID, made.ID); err != nil {
		slog.WarnContext(ctx, "a failed deployment is still stored", "deployment", made.ID, "error", err)
	}
}

// maxConsoleLog bounds a console log, in bytes. Nova's drivers keep 100 KiB, where they bound it.
const maxConsoleLog = 256 << 10

// ConsoleLog returns the last lines of a server's console log, at most maxConsoleLog bytes of them.
func (s service) ConsoleLog(ctx context.Context, a access, id string, lines int) (string, error) {
	server, err := s.withConsole(ctx, a, id)
	if err != nil {
		return "", err
	}
	output, err := a.cloud.ConsoleLog(ctx, server, lines)
	return lastLines(output, lines), withoutConsole(err)
}

// RemoteConsole returns a URL of a server's remote console. It has a token, so it is a secret.
func (s service) RemoteConsole(
	ctx context.Context, a access, id string, kind domain.ConsoleType,
) (domain.Secret, error) {
	server, err := s.withConsole(ctx, a, id)
	if err != nil {
		return "", err
	}
	at, err := a.cloud.RemoteConsole(ctx, server, kind)
	return at, withoutConsole(err)
}

// withConsole returns Nova's id of a server of the caller's project, by its own id or its instance's. Nova alone would
// show admins the consoles of other projects, too.
func (s service) withConsole(ctx context.Context, a access, id string) (string, error) {
	i, isTracked, err := s.withServer(ctx, a, id)
	if err != nil {
		return "", err
	}
	if isTracked {
		id = i.ServerID
	}
	server, err := actions.ReadServer(ctx, a.cloud, id, a.ProjectID, isTracked)
	return server.ID, err
}

// withoutConsole is Nova's rejection of a console. The server was read just before, and the request was checked: so it
// is the console that is not found, or its type that the cloud does not offer.
func withoutConsole(err error) error {
	if code := apperr.CodeOf(err); code == apperr.NotFound || code == apperr.Invalid {
		return apperr.Wrap(apperr.Conflict, err, "the server has no such console: %s", apperr.As(err).Message)
	}
	return err
}

// lastLines returns the last lines of a text, as many as n and maxConsoleLog permit. A line that is too long is cut.
func lastLines(text string, n int) string {
	if len(text) > maxConsoleLog {
		text = text[len(text)-maxConsoleLog:]
		if _, rest, found := strings.Cut(text, "\n"); found && rest != "" {
			text = rest
		}
		text = strings.ToValidUTF8(text, "")
	}
	start := len(strings.TrimSuffix(text, "\n"))
	for range n {
		if start = strings.LastIndexByte(text[:start], '\n'); start < 0 {
			return text
		}
	}
	return text[start+1:]
}
