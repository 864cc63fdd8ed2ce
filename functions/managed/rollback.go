package managed

import (
	"context"

	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/domain"
)

// Rollback declares an earlier revision again.
func (s service) Rollback(
	ctx context.Context, who domain.Identity, token domain.Secret, d declaration, number int,
) (outcome, error) {
	if err := s.trusts.MayDeclare(who, d.kind); err != nil {
		return outcome{}, err
	}
	old, revision, err := s.Revision(ctx, who, d.kind, d.name, number)
	if err != nil {
		return outcome{Managed: old}, err
	}
	cloud, shared := s.cloud.As(token, who.ProjectID), &attempts{}
	return s.repeat(ctx, who, cloud, d, func(before domain.Managed) (domain.NewManaged, *plan, error) {
		if before.ID != old.ID {
			return domain.NewManaged{}, nil, apperr.New(apperr.NotFound, "the %s %q has no revision %d any more",
				d.kind, d.name, number)
		}
		made := domain.NewManaged{Managed: before, Before: before.Version, Repeats: number}
		made.UserID, made.Actor = who.UserID, domain.ActorFrom(ctx)
		made.Spec, made.Digest = revision.Spec, revision.Digest
		if err := checkMove(ctx, cloud, before, revision.Schedule); err != nil {
			return made, nil, err
		}
		if err := checkTransition(before, revision.Spec, revision.Schedule); err != nil {
			return made, nil, err
		}
		if err := s.actFor(ctx, cloud.InRegion(revision.Schedule.Region), before, &made); err != nil {
			return made, nil, err
		}
		if err := s.count(ctx, who, shared); err != nil {
			return made, nil, err
		}
		return made, nil, s.checkQuota(ctx, cloud.InRegion(revision.Schedule.Region), before, made.Managed)
	})
}
