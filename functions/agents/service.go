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
	wake  func(functions ...string)
}

// Bundle gives an agent its bundle, once: it is encrypted, and its key is on the instance only.
func (s service) Bundle(ctx context.Context, deployment uuid.UUID, token domain.Secret) ([]byte, error) {
	return s.store.Fetch(ctx, deployment, s.hash(token))
}

// Ready takes down that an agent is there, once.
func (s service) Ready(ctx context.Context, deployment uuid.UUID, token domain.Secret) error {
	err := s.store.Ready(ctx, deployment, s.hash(token))
	if err == nil {
		s.wake("deliver-events")
	}
	return err
}
