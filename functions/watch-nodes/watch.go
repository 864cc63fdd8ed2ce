package watchnodes

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"time"

	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/flow"
	"github.com/cloudfn/cloudfn/shared/nodes"
)

const (
	jobKind = "watch-nodes"
	// watchTime bounds one event's polls of the hosts. The claim of a replica that dies ends after it.
	watchTime = 50 * time.Second
	// keepDrains is how long drains that are over are kept, besides the last one of each host.
	keepDrains = 90 * 24 * time.Hour
)

// watch polls the hosts of the cloud. What fails is repeated by the next event.
func (s *service) watch(ctx context.Context) error {
	found, err := s.poll(ctx)
	if err != nil {
		slog.WarnContext(ctx, "node poll failed", "error", err)
		s.account.Forget(err)
		return nil
	}
	s.metrics.Push(ctx, measure(found))
	return nil
}

// poll reads the hosts, and once more when one has become suspect: it may have been a hiccup.
func (s *service) poll(ctx context.Context) (found nodes.Observed, err error) {
	cloud, err := s.account.Session(ctx)
	if err != nil {
		return found, s.unreadable(ctx, err)
	}
	watcher := s.watcher
	watcher.Cloud = cloud
	for isAgain := false; ; isAgain = true {
		found, err = watcher.Poll(ctx)
		switch {
		case found.Changed: // the leases of hosts that are down, or up again, are due
			s.wake("deliver-events", "run-leases")
		case err != nil:
			s.wake("deliver-events")
		}
		if err != nil || isAgain || !found.Changed || !hasSuspect(found.Nodes) || !flow.Sleep(ctx, s.againAfter) {
			return found, err
		}
	}
}

// unreadable reports that the hosts cannot be read, because the account cannot log in.
func (s *service) unreadable(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return err
	}
	s.wake("deliver-events")
	return errors.Join(err, s.nodes.MonitorFailed(ctx, apperr.As(err).Message))
}

func hasSuspect(found []domain.Node) bool {
	return slices.ContainsFunc(found, func(n domain.Node) bool { return n.Status == domain.NodeSuspect })
}
