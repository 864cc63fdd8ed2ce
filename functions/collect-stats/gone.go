package collectstats

import (
	"context"
	"log/slog"
	"slices"
	"time"

	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/domain"
)

// mostGone is how many projects one event asks Keystone for; the next hour's event goes on.
const mostGone = 100

// excuseGone stops expecting hours of projects that were deleted before these were counted: nobody can count them any
// more, and the cloud's sum would lack them for ever. A project that Keystone still has, such as a disabled one, stays
// expected.
func (s service) excuseGone(ctx context.Context, cloud session, listed []domain.Project, first, last time.Time) error {
	lacking, err := s.stats.Lacking(ctx, first, last)
	if err != nil {
		return err
	}
	unlisted := slices.DeleteFunc(lacking, func(id string) bool {
		return slices.ContainsFunc(listed, func(p domain.Project) bool { return p.ID == id })
	})
	for _, id := range unlisted[:min(len(unlisted), mostGone)] {
		if err := cloud.KnowsProject(ctx, id); apperr.CodeOf(err) != apperr.NotFound {
			continue // Keystone has it, is away, or does not let the account ask
		}
		if err := s.stats.Excuse(ctx, id, first, last); err != nil {
			return err
		}
		slog.InfoContext(ctx, "a deleted project is not expected in hours that it was not counted for", "project_id", id)
	}
	return nil
}
