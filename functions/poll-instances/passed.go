package pollinstances

import (
	"context"
	"log/slog"
	"sync"

	"golang.org/x/sync/errgroup"

	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/domain"
)

// Bounds for reading action logs. Each log is a call.
const (
	mostLogs   = 100 // at each event; beyond that, states in between are passed over
	logsAtOnce = 8
)

// passed reads the action logs of servers that changed, and derives the states that their instances passed through
// since they were last seen, by the server's id. A log that cannot be read hides them: what Nova shows now is
// written all the same.
func (r *reader) passed(
	ctx context.Context, found []domain.Instance, servers []domain.Server,
) map[string][]domain.PassedState {
	var mu sync.Mutex
	passed, beyond := map[string][]domain.PassedState{}, 0
	var group errgroup.Group
	group.SetLimit(logsAtOnce)
	for _, i := range found {
		s, ok := serverOf(i, servers)
		if !ok || !i.MayHavePassed(s) {
			continue
		}
		if r.logs.Add(1) > mostLogs {
			beyond++
			continue
		}
		group.Go(func() error {
			log, err := r.cloud.Actions(ctx, s.ID)
			if err != nil && apperr.CodeOf(err) != apperr.NotFound {
				slog.WarnContext(ctx, "an action log could not be read: states in between are passed over",
					"project_id", i.ProjectID, "instance_id", i.ID, "error", err)
			}
			mu.Lock()
			defer mu.Unlock()
			passed[s.ID] = i.PassedStates(s, log)
			return nil
		})
	}
	_ = group.Wait() // the functions above never fail
	if beyond > 0 {
		slog.WarnContext(ctx, "too many servers changed to read their action logs: states in between are passed over",
			"servers", beyond)
	}
	return passed
}
