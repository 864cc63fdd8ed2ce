package postgres

import (
	"context"

	"github.com/cloudfn/cloudfn/shared/domain"
)

// Get reads a host. It is NotFound for one that was never seen or described.
func (s Nodes) Get(ctx context.Context, name string) (domain.Node, error) {
	found, err := queryOne[domain.Node](ctx, s.DB.pool, "select "+nodeColumns+" from nodes where name = $1", name)
	return found, orNotFound(err, "unknown node %.64q", name)
}

// All reads every host by name.
func (s Nodes) All(ctx context.Context) ([]domain.Node, error) {
	return queryAll[domain.Node](ctx, s.DB.pool, "select "+nodeColumns+" from nodes order by name")
}
