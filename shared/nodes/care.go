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

// care cordons hosts that are not up for long, and drains those that are suspect or cordoned for long. Nothing is ever
// evacuated: Nova's word that a host is down is no proof that its servers do not run. One host that fails does not keep
// the others, and the last host of a zone that takes servers is left alone.
func (w Watcher) care(ctx context.Context, nodes []domain.Node, hosts []domain.ComputeHost, now time.Time) error {
	all := known{hosts: slices.Clone(hosts), pooled: map[string]bool{}}
	for _, n := range nodes {
		all.pooled[n.Name] = n.Pool != ""
	}
	var due []domain.Node
	var errs []error
	for _, n := range nodes {
		host := all.host(n.Name)
		if host == nil {
			continue
		}
		if isCordonDue(n, *host, now) && !all.isLast(n.Name) {
			errs = append(errs, w.cordon(ctx, host, "not up since "+n.NotUpSince.UTC().Format(time.RFC3339)))
		}
		if !drainSince(n, *host, now).IsZero() {
			due = append(due, n)
		}
	}
	return errors.Join(append(errs, w.drain(ctx, due, all, now))...)
}

// isCordonDue reports whether a host is suspect or down for longer than its admins let it be.
func isCordonDue(n domain.Node, host domain.ComputeHost, now time.Time) bool {
	return n.AutoCordonAfter > 0 && host.IsEnabled && !n.NotUpSince.IsZero() &&
		now.Sub(n.NotUpSince) >= n.AutoCordonAfter
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
func (w Watcher) cordon(ctx context.Context, host *domain.ComputeHost, reason string) error {
	slog.WarnContext(ctx, "a host is cordoned automatically", "node", host.Name, "reason", reason)
	if err := w.Cloud.DisableService(ctx, host.ServiceID, domain.CordonMark+reason); err != nil {
		return err
	}
	host.IsEnabled = false
	_, err := w.Nodes.SetCordoned(ctx, host.Name, true, domain.CordonMark+reason)
	return err
}

// drain begins a drain of each host, once for each time that it is cordoned or suspect. The last host that servers can
// be made on is left alone.
func (w Watcher) drain(ctx context.Context, due []domain.Node, all known, now time.Time) error {
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
		host := all.host(n.Name)
		since := drainSince(n, *host, now)
		drained := last[n.Name] // zero = none
		if err != nil || drained.CreatedAt.After(since) || !drained.DueAt.IsZero() {
			continue
		}
		if host.IsEnabled {
			if all.isLast(n.Name) {
				continue
			}
			reason := "suspect since " + since.UTC().Format(time.RFC3339)
			if err := w.cordon(ctx, host, reason); err != nil {
				errs = append(errs, err)
				continue
			}
		}
		slog.WarnContext(ctx, "a host is drained automatically", "node", n.Name, "since", since)
		_, _, err := w.Drains.Create(ctx, domain.Drain{
			ID: uuid.Must(uuid.NewV7()), Node: n.Name, Status: domain.DrainRunning, IsAutomatic: true,
			Parallel: w.Parallel, ServerTimeout: w.ServerTimeout,
		})
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// known are the hosts of the cloud, as they are after what is done to them.
type known struct {
	hosts  []domain.ComputeHost
	pooled map[string]bool // the reservable ones
}

// host finds one by its name; nil = Nova has none.
func (k known) host(name string) *domain.ComputeHost {
	for n := range k.hosts {
		if k.hosts[n].Name == name {
			return &k.hosts[n]
		}
	}
	return nil
}

func (k known) isLast(name string) bool {
	return domain.IsLast(name, k.hosts, func(name string) bool { return k.pooled[name] })
}
