package runleases

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"time"

	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/openstack"
)

// AdoptConfig is for leases of servers that were made directly in Nova.
type AdoptConfig struct {
	// For how long each untracked server of ALLOWED_PROJECTS gets one lease: an ISO 8601 duration, such as P1M. Those
	// with the tag `cloudfn:no-lease` get none. Empty = no server does.
	Duration domain.Period `env:"LEASES_ADOPT"`
	// The ids of the projects, which LEASES_ADOPT needs.
	Projects []string `env:"ALLOWED_PROJECTS"`
}

func (c AdoptConfig) isOn() bool { return !c.Duration.IsZero() }

// Validate rejects an adoption that would take hold of every project of the cloud.
func (c AdoptConfig) Validate() error {
	if c.isOn() && len(c.Projects) == 0 {
		return errors.New(
			"LEASES_ADOPT is set and ALLOWED_PROJECTS is empty: list the projects whose servers get leases",
		)
	}
	return nil
}

const (
	optOutTag  = "cloudfn:no-lease"
	adoptEvery = 10 * time.Minute // and how long a replica that has died delays the next
	adoptTime  = 5 * time.Minute
)

// adopt gives untracked servers of the configured projects a lease. One replica does it at a time; two would
// store one lease of a server, too. What the cloud refuses is repeated by the next round.
func (s *service) adopt(ctx context.Context) error {
	cloud, err := s.account.Session(ctx)
	if err != nil {
		logAdoption(ctx, "", err)
		return nil
	}
	for _, project := range s.adoption.Projects {
		err := s.adoptProject(ctx, cloud, project)
		s.account.Forget(err)
		logAdoption(ctx, project, err)
	}
	return nil
}

func logAdoption(ctx context.Context, project string, err error) {
	if err != nil {
		slog.WarnContext(ctx, "adoption failed", "project_id", project, "error", err)
	}
}

// adoptProject adopts the servers of one project. A server that cannot be adopted does not stop the others.
func (s *service) adoptProject(ctx context.Context, cloud *openstack.Session, project string) error {
	var errs []error
	for marker := ""; ; {
		page, next, err := cloud.AllServers(ctx, project, marker)
		if err != nil {
			return errors.Join(append(errs, err)...)
		}
		now, err := s.db.Now(ctx)
		if err != nil {
			return err
		}
		for _, server := range page {
			if server.ProjectID != project || !isAdoptable(server) {
				continue
			}
			if err := s.adoptServer(ctx, server, now); err != nil {
				errs = append(errs, fmt.Errorf("server %s: %w", server.ID, err))
			}
		}
		if marker = next; marker == "" {
			return errors.Join(errs...)
		}
	}
}

// isAdoptable reports whether a server may get a lease without a request.
func isAdoptable(s domain.Server) bool {
	state := domain.StateOf(s.Status, s.Task)
	return !s.Partial && state != domain.InstanceDeleting && state != domain.InstanceDeleted &&
		!slices.Contains(s.Tags, optOutTag) && !strings.HasPrefix(s.Name, domain.ProbePrefix)
}

// leaseOf makes the lease that a server's metadata names, else one of the configured duration: also if the metadata is
// wrong, because no server of these projects is without an end.
func (s *service) leaseOf(ctx context.Context, server domain.Server, now time.Time) (domain.NewLease, error) {
	lease := domain.Lease{ProjectID: server.ProjectID, UserID: server.UserID, Name: server.Name}
	if strings.TrimSpace(lease.Name) == "" {
		lease.Name = server.ID
	}
	terms, name, ok, err := domain.LeaseOfMetadata(server.Metadata)
	if ok && err == nil {
		own := lease
		if strings.TrimSpace(name) != "" {
			own.Name = name
		}
		var made domain.NewLease
		if made, err = terms.NewLease(own, domain.LeaseRules{}, now); err == nil {
			return made, nil
		}
	}
	if err != nil {
		slog.WarnContext(ctx, "the metadata of a server names no lease that can be made: it gets one of LEASES_ADOPT",
			"server_id", server.ID, "project_id", server.ProjectID, "error", err)
	}
	return domain.LeaseTerms{Duration: s.adoption.Duration}.NewLease(lease, domain.LeaseRules{}, now)
}

// adoptServer stores an instance and a lease for a server that was never tracked.
func (s *service) adoptServer(ctx context.Context, server domain.Server, now time.Time) error {
	made, err := s.leaseOf(ctx, server, now)
	if err != nil {
		return err
	}
	instance := domain.Instance{ProjectID: server.ProjectID, Spec: domain.SpecOf(server), SeenAt: now}
	instance.Observe(server)
	instance.CallID, _ = server.CallTagged()
	isNew, err := s.leases.Adopt(ctx, instance, made)
	if apperr.CodeOf(err) == apperr.Conflict { // an order is about to adopt it
		return nil
	}
	if isNew {
		slog.InfoContext(ctx, "server adopted", "server_id", server.ID, "project_id", server.ProjectID,
			"lease_id", made.Lease.ID, "end", made.Lease.EndsAt)
		s.wake("deliver-events")
	}
	return err
}
