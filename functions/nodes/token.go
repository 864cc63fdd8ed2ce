package nodes

import (
	"context"
	"crypto/rand"

	"github.com/cloudfn/cloudfn/shared/agent"
	"github.com/cloudfn/cloudfn/shared/domain"
)

// CreateToken makes the token of a node's agent, in the place of the one before. It is for who may change compute
// services. A host that Nova does not have is stored: an agent may report one.
func (s service) CreateToken(
	ctx context.Context, who domain.Identity, token domain.Secret, name string,
) (domain.Secret, error) {
	if err := s.cloud.As(token, who.ProjectID).MayChangeServices(ctx); err != nil {
		return "", err
	}
	made := domain.Secret(rand.Text())
	return made, s.nodes.SetToken(ctx, name, agent.Hash(made), who.UserID)
}

// RevokeToken ends the token of a node's agent.
func (s service) RevokeToken(ctx context.Context, who domain.Identity, token domain.Secret, name string) error {
	if err := s.cloud.As(token, who.ProjectID).MayChangeServices(ctx); err != nil {
		return err
	}
	return s.nodes.RevokeToken(ctx, name)
}

// Report records the heartbeat of a node's agent.
func (s service) Report(
	ctx context.Context, name string, token domain.Secret, status domain.NodeStatus, reason string,
) error {
	n, err := s.nodes.Heartbeat(ctx, name, agent.Hash(token), status, reason)
	if err == nil && n.Status != status {
		s.wake("watch-nodes")
	}
	return err
}
