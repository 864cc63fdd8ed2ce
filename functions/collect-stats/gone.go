package collectstats

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"time"

	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/domain"
)

// mostGone is how many projects one event asks Keystone for; the next hour's event continues.
const mostGone = 100

// excuseGone stops expecting hours of projects that were deleted before these were counted: nobody can count them any
// more, and the cloud's sum would lack them for ever. A project that Keystone still has, such as a disabled one, stays
// expected.
func (s service) excuseGone(ctx context.Context, cloud session, listed []domain.Project, first, last time.Time) error {
	lacking, err := s.stats.ListMissing(ctx, first, last)
	if err != nil {
		return err
	}
	unlisted := slices.DeleteFunc(lacking, func(id string) bool {
		return slices.ContainsFunc(listed, func(p domain.Project) bool { return p.ID == id })
	})
	for _, id := range unlisted[:min(len(unlisted), mostGone)] {
		if _, err := s.excuse(ctx, cloud, id, first, last); err != nil {
			return err
		}
	}
	return nil
}

// excuse stops expecting those hours of a project that it was not counted for, if Keystone says that it is gone.
func (s service) excuse(ctx context.Context, cloud session, id string, first, last time.Time) (isGone bool, err error) {
	if err := cloud.CheckProject(ctx, id); apperr.CodeOf(err) != apperr.NotFound {
		return false, nil // Keystone has it, is away, or does not let the account ask
	}
	if err := s.stats.ExcuseMissing(ctx, id, first, last); err != nil {
		return false, err
	}
	slog.InfoContext(ctx, "a deleted project is not expected in hours that it was not counted for", "project_id", id)
	return true, nil
}

// excuseUnread does that for a project that was deleted after it was listed. Other projects stay unread: err is why.
func (s service) excuseUnread(ctx context.Context, cloud session, id string, due []*entry, err error) error {
	byHour := func(a, b *entry) int { return a.Hour.Compare(b.Hour) }
	isGone, failed := s.excuse(ctx, cloud, id, slices.MinFunc(due, byHour).Hour, slices.MaxFunc(due, byHour).Hour)
	if isGone {
		return nil
	}
	slog.ErrorContext(ctx, "a project cannot be counted: its hours stay missing", "project_id", id, "error", err)
	return errors.Join(err, failed)
}
