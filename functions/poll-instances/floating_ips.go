package pollinstances

import (
	"context"
	"log/slog"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/cloudfn/cloudfn/shared/domain"
)

const (
	releasesOfProject = 20 // of one project in one event
	releasesPerEvent  = 200
	releaseFor        = 10 * time.Second // bounds the calls for one instance
	// releaseLimit is how long a floating IP is tried to be released. The service account may not be permitted to.
	releaseLimit = 24 * time.Hour
)

// releaseFloatingIPs releases the floating IPs that orders have made for servers which are deleted now, by any client.
// A project that fails is tried again later, and delays no other.
func (s *service) releaseFloatingIPs(ctx context.Context) error {
	claimed, err := s.polls.ClaimReleases(ctx, releasesOfProject, releasesPerEvent)
	if err != nil || len(claimed) == 0 {
		return err
	}
	ofProject := map[string][]domain.Instance{}
	for _, i := range claimed {
		ofProject[i.ProjectID] = append(ofProject[i.ProjectID], i)
	}
	var group errgroup.Group
	group.SetLimit(parallelProjects)
	for projectID, instances := range ofProject {
		group.Go(func() error {
			for _, i := range instances {
				if err := s.releaseFloatingIP(ctx, i); err != nil {
					slog.WarnContext(ctx, "the floating IP of a deleted server was not released: it is tried again",
						"project_id", projectID, "instance_id", i.ID, "error", err)
					return nil
				}
			}
			return nil
		})
	}
	return group.Wait()
}

func (s *service) releaseFloatingIP(ctx context.Context, i domain.Instance) error {
	calling, cancel := context.WithTimeout(ctx, releaseFor)
	defer cancel()
	err := s.cloud.use(calling, i.ProjectID, func(cloud session) error {
		return cloud.ReleaseFloatingIPs(calling, i.ServerID, domain.FloatingIPMark(i.ID))
	})
	if err != nil && time.Since(i.UpdatedAt) < releaseLimit {
		return err
	}
	if err != nil {
		slog.WarnContext(ctx, "the floating IP of a deleted server stays in its project", "project_id", i.ProjectID,
			"instance_id", i.ID, "error", err)
	}
	return s.polls.FinishRelease(ctx, i.ProjectID, i.ID)
}
