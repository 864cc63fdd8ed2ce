package pollinstances

import (
	"context"
	"log/slog"

	"github.com/cloudfn/cloudfn/shared/domain"
)

// releasesPerPass limits the floating IPs that one pass releases; the next one continues.
const releasesPerPass = 100

// releaseFloatingIPs releases the floating IPs that orders have made for servers which are deleted now, whoever deleted
// them. One that fails is retried by the next pass.
func (s *service) releaseFloatingIPs(ctx context.Context) error {
	left, err := s.polls.ListUnreleased(ctx, releasesPerPass)
	if err != nil {
		return err
	}
	for _, i := range left {
		if ctx.Err() != nil || s.readOnly.has(i.ProjectID) {
			continue
		}
		err := s.cloud.use(ctx, i.ProjectID, func(cloud session) error {
			return cloud.ReleaseFloatingIPs(ctx, i.ServerID, domain.FloatingIPMark(i.ID))
		})
		if err == nil {
			err = s.instances.RecordReleased(ctx, i.ProjectID, i.ID)
		}
		if mayNotAct(err) {
			s.readOnly.add(i.ProjectID)
		}
		if err != nil {
			slog.WarnContext(ctx, "the floating IP of a deleted server was not released", "project_id", i.ProjectID,
				"instance_id", i.ID, "error", err)
		}
	}
	return nil
}
