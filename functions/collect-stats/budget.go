package collectstats

import (
	"context"
	"log/slog"

	"github.com/cloudfn/cloudfn/shared/obs"
)

var recordLogGrowth = obs.Gauge("cloudfn.request_log.grown_bytes",
	"Bytes by which the request log and stored responses have grown within a day, with their indexes.")

// checkBudget raises an alarm when the request log and stored responses grow by more than their budget. A full disk
// would stop the API. It reports whether it did.
func (s service) checkBudget(ctx context.Context) (isOver bool) {
	grown, err := s.requests.Measure(ctx)
	if err != nil {
		slog.WarnContext(ctx, "the size of the request log could not be read", "error", err)
		return false
	}
	recordLogGrowth(ctx, grown)
	if grown <= s.budget {
		return false
	}
	slog.ErrorContext(ctx, "the request log and stored responses grow by more than REQUESTS_DAILY_MB: lower the "+
		"rate limits or REQUESTS_RETENTION, or give Postgres more space",
		"grown_bytes", grown, "budget_bytes", s.budget)
	return true
}
