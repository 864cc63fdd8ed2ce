package servers

import (
	"context"
	"log/slog"
	"time"

	"github.com/google/uuid"

	"github.com/cloudfn/cloudfn/shared/agent"
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
	writing, cancel := domain.Detached(ctx)
	defer cancel()
	if err := g.deployments.Drop(writing, made.ProjectID, made.ID); err != nil {
		slog.WarnContext(ctx, "a deployment that was refused is still stored", "deployment", made.ID, "error", err)
	}
}
