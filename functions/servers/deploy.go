package servers

import (
	"context"
	"encoding/json"
	"log/slog"
	"time"

	"github.com/google/uuid"

	"github.com/cloudfn/cloudfn/shared/agent"
	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/domain"
)

// deploy is an agent that is to run on an instance. Its project and instance are filled in later.
type deploy struct {
	agent.Spec

	serverImage string // that the server's disk is made from; "" is the one that it has
}

// deploymentStore keeps what agents fetch.
type deploymentStore interface {
	Create(ctx context.Context, made domain.Deployment, validFor time.Duration) error
	Drop(ctx context.Context, projectID string, id uuid.UUID) error
}

// sealer makes what it takes to deploy readable for run-connections only.
type sealer interface {
	Seal(purpose string, secret domain.Secret) ([]byte, error)
}

// agents is what deployments need.
type agents struct {
	config      agent.Config
	validFor    time.Duration // of a deployment's token
	deployments deploymentStore
	seal        sealer
}

const (
	lookAgain = time.Second // between two looks at a server that Nova starts
	// Of the request's time, kept for the rebuild and for writing down what happened: a quarter, up to this much.
	longestFinish = 10 * time.Second
)

// prepare makes the deployment and stores it, before Nova is asked for anything.
func (g agents) prepare(ctx context.Context, d deploy, projectID string, instance, connection uuid.UUID) (domain.Deployment, domain.Secret, error) {
	d.ProjectID, d.Instance = projectID, instance
	made, userData, err := agent.New(g.config, d.Spec)
	if err != nil {
		return made, "", err
	}
	made.ConnectionID = connection
	return made, userData, g.deployments.Create(ctx, made, g.validFor)
}

// drop forgets a deployment that will surely not come to be. Should that fail, its token runs out all the same.
func (g agents) drop(ctx context.Context, made domain.Deployment) {
	writing, cancel := context.WithTimeout(context.WithoutCancel(ctx), noteTimeout)
	defer cancel()
	if err := g.deployments.Drop(writing, made.ProjectID, made.ID); err != nil {
		slog.WarnContext(ctx, "a deployment that was refused is still stored", "deployment", made.ID, "error", err)
	}
}

// deployTo rebuilds a tracked server with an agent on it. One that is stopped is started first. It gives the server as it was just
// before the rebuild.
func (a acting) deployTo(ctx context.Context, t target, server domain.Server) (domain.Server, error) {
	if t.tracked == nil {
		return server, apperr.New(apperr.Conflict, "the server is not tracked: connect it first, by POST /v1/servers")
	}
	if server.Image == nil && a.deploy.serverImage == "" {
		return server, apperr.InvalidField("server_image", "must be the id of an image, because the server boots from a volume")
	}
	server, err := a.started(ctx, t, server)
	if err != nil {
		return server, err
	}
	made, userData, err := a.agents.prepare(ctx, *a.deploy, a.who.ProjectID, t.tracked.ID, uuid.Nil)
	if err != nil {
		return server, err
	}
	if err := a.deploying(ctx, made.ID); err != nil {
		a.agents.drop(ctx, made)
		return server, err
	}
	rebuild := domain.Rebuild{ID: made.ID, ImageID: a.deploy.serverImage, UserData: userData, Metadata: server.Marked(made.ID)}
	if rebuild.ImageID == "" {
		rebuild.ImageID = server.Image.ID
	}
	err = a.session.RebuildServer(ctx, server.ID, rebuild, server.Image == nil)
	if err != nil && !apperr.Retryable(err) {
		a.agents.drop(ctx, made) // else it is open whether Nova does it
	}
	return server, err
}

// started waits until the server can be rebuilt, and starts it if it is stopped, for as long as the request has time.
func (a acting) started(ctx context.Context, t target, server domain.Server) (domain.Server, error) {
	enough, cancel := withoutFinish(ctx)
	defer cancel()
	for {
		switch domain.DeployNext(uuid.Nil, server) {
		case domain.DeployRebuild:
			return server, nil
		case domain.DeployStart:
			if err := a.start(ctx, server); err != nil {
				return server, err
			}
			a.note(ctx, t.tracked.ID, server)
		}
		select {
		case <-enough.Done():
		case <-time.After(lookAgain):
		}
		seen, err := a.read(enough, a.session, a.who, server.ID, true)
		switch {
		case enough.Err() != nil:
			return server, apperr.New(apperr.Conflict, "the server is being started: send the same again when it is active")
		case err != nil:
			return server, err
		}
		server = seen
	}
}

func (a acting) start(ctx context.Context, server domain.Server) error {
	if domain.StateOf(server.Status, server.Task) == domain.InstanceShelved {
		return a.session.UnshelveServer(ctx, server.ID)
	}
	return a.session.StartServer(ctx, server.ID)
}

// withoutFinish ends early enough for what comes after the wait.
func withoutFinish(ctx context.Context) (context.Context, context.CancelFunc) {
	deadline, ok := ctx.Deadline()
	if !ok {
		return context.WithCancel(ctx)
	}
	return context.WithDeadline(ctx, deadline.Add(-min(longestFinish, time.Until(deadline)/4)))
}

// bootTime is what a guest needs from a rebuild to its token's use: one that is rebuilt later would come too late.
const bootTime = 2 * time.Minute

// askDeploy has it done through a connection. Only run-connections can read what that takes.
func (s service) askDeploy(ctx context.Context, wanted domain.DelegatedAction, d deploy) (domain.DelegatedAction, error) {
	now, err := s.connections.Now(ctx) // before the token's time begins
	if err != nil {
		return wanted, err
	}
	made, userData, err := s.agents.prepare(ctx, d, wanted.ProjectID, wanted.InstanceID, wanted.ConnectionID)
	if err != nil {
		return wanted, err
	}
	payload, err := json.Marshal(domain.DelegatedDeploy{
		ID: made.ID, ImageID: d.serverImage, UserData: userData.Reveal(), NotAfter: now.Add(s.agents.validFor - min(bootTime, s.agents.validFor/4)),
	})
	if err != nil {
		return wanted, err
	}
	if wanted.Payload, err = s.agents.seal.Seal(wanted.SealedFor(), domain.Secret(payload)); err != nil {
		return wanted, err
	}
	stored, err := s.actions.Ask(ctx, wanted)
	if err != nil && !apperr.Retryable(err) || stored.Repeated {
		s.agents.drop(ctx, made) // else it is open whether it will be done
	}
	return stored, err
}
