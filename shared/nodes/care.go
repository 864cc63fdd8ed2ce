package nodes

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"time"

	"github.com/google/uuid"

	"github.com/cloudfn/cloudfn/shared/domain"
)

// care cordons hosts that are down for long, and drains those that are suspect or cordoned for long. Nothing is ever
// evacuated: Nova's word that a host is down is no proof that its servers do not run. One host that fails does not keep
// the others.
func (w Watcher) care(ctx context.Context, nodes []domain.Node, hosts []domain.ComputeHost, now time.Time) error {
	byName := make(map[string]domain.ComputeHost, len(hosts))
	for _, h := range hosts {
		byName[h.Name] = h
	}
	var due []domain.Node
	var errs []error
	for _, n := range nodes {
		host, isThere := byName[n.Name]
		switch {
		case !isThere:
		case isCordonDue(n, host, now):
			errs = append(errs, w.cordon(ctx, n.Name, host, "down since "+n.StatusSince.UTC().Format(time.RFC3339)))
		case !drainSince(n, host, now).IsZero():
			due = append(due, n)
		}
	}
	return errors.Join(append(errs, w.drain(ctx, due, alternatives{byName, nodes}, now))...)
}

// isCordonDue reports whether a host is down for longer than its admins let it be.
func isCordonDue(n domain.Node, host domain.ComputeHost, now time.Time) bool {
	return n.AutoCordonAfter > 0 && n.Status == domain.NodeDown && host.IsEnabled &&
		now.Sub(n.StatusSince) >= n.AutoCordonAfter
}

// drainSince says since when a host is in the state for which it is to be drained now; zero = it is not.
func drainSince(n domain.Node, host domain.ComputeHost, now time.Time) time.Time {
	if n.AutoDrainAfter <= 0 || !host.IsUp || n.Status == domain.NodeDown {
		return time.Time{}
	}
	for _, since := range []time.Time{n.CordonedAt, suspectSince(n)} {
		if !since.IsZero() && now.Sub(since) >= n.AutoDrainAfter {
			return since
		}
	}
	return time.Time{}
}

func suspectSince(n domain.Node) time.Time {
	if n.Status == domain.NodeSuspect {
		return n.StatusSince
	}
	return time.Time{}
}

// cordon keeps new servers off a host.
func (w Watcher) cordon(ctx context.Context, name string, host domain.ComputeHost, reason string) error {
	slog.WarnContext(ctx, "a host is cordoned by itself", "node", name, "reason", reason)
	if err := w.Cloud.DisableService(ctx, host.ServiceID, domain.CordonMark+reason); err != nil {
		return err
	}
	_, err := w.Nodes.SetCordoned(ctx, name, true, domain.CordonMark+reason)
	return err
}

// drain begins a drain of each host, once for each time that it is cordoned or suspect. The last host that servers can
// be made on is left alone.
func (w Watcher) drain(
	ctx context.Context, due []domain.Node, all alternatives, now time.Time,
) error {
	if len(due) == 0 {
		return nil
	}
	names := make([]string, len(due))
	for i, n := range due {
		names[i] = n.Name
	}
	last, err := w.Drains.Last(ctx, names...)
	errs := []error{err}
	for _, n := range due {
		host := all.hosts[n.Name]
		since := drainSince(n, host, now)
		drained := last[n.Name] // zero = none
		if err != nil || drained.CreatedAt.After(since) || !drained.DueAt.IsZero() {
			continue
		}
		if host.IsEnabled {
			if !all.hasOther(n) {
				continue
			}
			reason := "suspect since " + since.UTC().Format(time.RFC3339)
			if err := w.cordon(ctx, n.Name, host, reason); err != nil {
				errs = append(errs, err)
				continue
			}
			host.IsEnabled = false
			all.hosts[n.Name] = host
		}
		slog.WarnContext(ctx, "a host is drained by itself", "node", n.Name, "since", since)
		_, _, err := w.Drains.Create(ctx, domain.Drain{
			ID: uuid.Must(uuid.NewV7()), Node: n.Name, Status: domain.DrainRunning, IsAutomatic: true,
			Parallel: w.Parallel, ServerTimeout: w.ServerTimeout,
		})
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// alternatives are the hosts that servers can move to.
type alternatives struct {
	hosts map[string]domain.ComputeHost
	nodes []domain.Node
}

// hasOther reports whether servers can be made on another host of the same sort: reservable ones take servers of leases
// only.
func (a alternatives) hasOther(n domain.Node) bool {
	return slices.ContainsFunc(a.nodes, func(other domain.Node) bool {
		host := a.hosts[other.Name]
		return other.Name != n.Name && (other.Pool == "") == (n.Pool == "") && host.IsUp && host.IsEnabled
	})
}
