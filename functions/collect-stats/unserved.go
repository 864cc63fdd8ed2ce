package collectstats

import (
	"context"
	"log/slog"
)

// suspendUnserved suspends what projects have left that the lists do not let in any more, and resumes what a changed
// list lets in again.
func (s service) suspendUnserved(ctx context.Context) error {
	remains, err := s.left.ListRemains(ctx)
	if err != nil {
		return err
	}
	ended, resumed, err := s.left.Set(ctx, s.unserved(remains))
	if err != nil {
		return err
	}
	for _, id := range ended {
		slog.WarnContext(ctx, "a project is not served any more: its callbacks and connections are suspended, and "+
			"nothing is done in it; `cloudfnd projects` ends what it has left", "project_id", id)
	}
	for _, id := range resumed {
		slog.WarnContext(ctx, "a project is served again, or has nothing left: what was suspended is resumed",
			"project_id", id)
	}
	if len(ended)+len(resumed) > 0 {
		s.wake("deliver-events", "run-connections")
	}
	return nil
}
