package connections

import (
	"context"

	"github.com/cloudfn/cloudfn/shared/domain"
)

// createByTrust creates a trust with the caller's own token, and stores the connection.
func (s service) createByTrust(
	ctx context.Context, who domain.Identity, token domain.Secret, d draft,
) (stored domain.Connection, err error) {
	cloud := s.cloud.As(token, who.ProjectID)
	if d.Flavors, err = cloud.Flavors(ctx); err != nil {
		return stored, err
	}
	if err := checkLimits(d, s.cloud.Region()); err != nil {
		return stored, err
	}
	d.ActsAs = domain.ActsAs{
		UserID: who.UserID, UserName: who.UserName, ProjectID: who.ProjectID,
		ProjectName: who.ProjectName, Roles: d.roles,
	}
	if err := s.trusts.Create(ctx, who, cloud, &d.Connection); err != nil {
		return stored, err
	}
	if stored, err = s.insert(ctx, d); err == nil {
		return stored, nil
	}
	if d.grant != nil {
		return s.afterFailedGrant(ctx, who, cloud, d, err)
	}
	s.trusts.Abandon(ctx, cloud, d.Connection)
	return stored, err
}
