package collectstats

import (
	"context"
	"time"

	"github.com/cloudfn/cloudfn/shared/postgres"
)

// upkeep keeps the database small: the request log's partitions, and what is older than it is kept.
type upkeep struct {
	requests  postgres.Requests
	retention postgres.Retention
}

// Maintain does both, also when the first one fails.
func (u upkeep) Maintain(ctx context.Context, retention time.Duration) error {
	return joined(u.requests.Maintain(ctx, retention), u.retention.Run(ctx))
}
