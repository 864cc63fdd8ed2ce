package servers

import (
	"context"
	"log/slog"
	"time"

	"github.com/google/uuid"

	"github.com/cloudfn/cloudfn/shared/agent"
	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/postgres"
	"github.com/cloudfn/cloudfn/shared/seal"
)

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

// drop deletes a deployment that nobody will make. On failure its token expires.
func (g agents) drop(ctx context.Context, made domain.Deployment) {
	writing, cancel := domain.Detached(ctx)
	defer cancel()
	if err := g.deployments.Drop(writing, made.ProjectID, made.ID); err != nil {
		slog.WarnContext(ctx, "a failed deployment is still stored", "deployment", made.ID, "error", err)
	}
}
