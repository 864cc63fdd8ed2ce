package agents

import (
	"context"

	"github.com/google/uuid"

	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/postgres"
)

type service struct {
	store postgres.Deployments
	hash  func(domain.Secret) []byte
}

// Bundle gives an agent its bundle, once. The bundle is encrypted, and only the instance has the key.
func (s service) Bundle(ctx context.Context, deployment uuid.UUID, token domain.Secret) ([]byte, error) {
	return s.store.Fetch(ctx, deployment, s.hash(token))
}

// Ready stores that an agent is ready, once.
func (s service) Ready(ctx context.Context, deployment uuid.UUID, token domain.Secret) error {
	return s.store.Ready(ctx, deployment, s.hash(token))
}
