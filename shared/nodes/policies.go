package nodes

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"

	"github.com/cloudfn/cloudfn/shared/domain"
)

// The reasons for which hosts are cordoned automatically, as Nova shows them; a time follows.
const (
	notUpReason   = "not up since "
	suspectReason = "suspect since "
)

// isAutoCordon reports whether a host was cordoned automatically, by the reason that Nova keeps.
func isAutoCordon(reason string) bool {
	return strings.HasPrefix(reason, domain.CordonMark+notUpReason) ||
		strings.HasPrefix(reason, domain.CordonMark+suspectReason)
}

// applyPolicies cordons hosts that are not up for long, and drains those that are suspect or cordoned for long. Nothing
// is ever evacuated: Nova's word that a host is down is no proof that its servers do not run. One host that fails does
// not keep the others, and the last host of a zone that takes servers is left alone. While more than a share of a
// zone's hosts is out of service nothing is done there, and then they have their whole time again: an outage of many is
// for people. One replica at a time does this, which holds the claim of the job.
func (w Watcher) applyPolicies(ctx context.Context, found Observed, hosts []domain.ComputeHost, now time.Time) error {
	held, err := w.Nodes.HeldZones(ctx)
	if err != nil {
		return err
	}
	all := survey(found, hosts, w.Share)
	cordons, drains := dueHosts(found.Nodes, all, held, now)
	isHeld := map[string]bool{}
	for _, n := range slices.Concat(cordons, drains) {
		zone := all.zone(n.Name)
		if isHeld[zone.name] || len(zone.out) <= zone.limit {
			continue
		}
		isHeld[zone.name] = true
		err = errors.Join(err, w.Nodes.HoldZone(ctx, zone.name, zone.reason(w.Share)))
	}
	mustWait := func(n domain.Node) bool {
		zone := all.zone(n.Name)
		return isHeld[zone.name] || !zone.hasRoom(n.Name)
	}
	for name, zone := range held {
		if !zone.Since.IsZero() && !isHeld[name] {
			isHeld[name] = true // for this time
			err = errors.Join(err, w.Nodes.FreeZone(ctx, name))
		}
	}
	for _, n := range slices.DeleteFunc(cordons, mustWait) {
		if !all.isLast(n.Name) {
			err = errors.Join(err, w.cordon(ctx, all, n.Name, notUpReason+n.NotUpSince.UTC().Format(time.RFC3339)))
		}
	}
	return errors.Join(err, w.drain(ctx, slices.DeleteFunc(drains, mustWait), all))
}

// dueHosts returns the hosts that are to be cordoned, and those that are to be drained, the longest due first.
func dueHosts(
	nodes []domain.Node, all known, held map[string]domain.HeldZone, now time.Time,
) (cordons, drains []domain.Node) {
	since := map[string]time.Time{}
	for _, n := range nodes {
		host := all.host(n.Name)
		if host == nil {
			continue
		}
		ended := held[all.zone(n.Name).name].EndedAt
		if n.AutoCordonAfter > 0 && host.IsEnabled && !n.NotUpSince.IsZero() &&
			now.Sub(latest(n.NotUpSince, ended)) >= n.AutoCordonAfter {
			cordons = append(cordons, n)
		}
		state := drainState(n, *host)
		if state.IsZero() {
			continue
		}
		if since[n.Name] = latest(state, n.StatusSince, ended); now.Sub(since[n.Name]) >= n.AutoDrainAfter {
			drains = append(drains, n)
		}
	}
	slices.SortStableFunc(drains, func(a, b domain.Node) int { return since[a.Name].Compare(since[b.Name]) })
	return cordons, drains
}

// drainState returns since when a host is suspect, or else cordoned: it is to be drained once for that, some time after
// it has come up. Zero = it is not to be drained.
func drainState(n domain.Node, host domain.ComputeHost) time.Time {
	switch {
	case n.AutoDrainAfter <= 0 || !host.IsUp || n.Status == domain.NodeDown:
		return time.Time{}
	case n.Status == domain.NodeSuspect:
		return n.StatusSince
	}
	return n.CordonedAt
}

func latest(times ...time.Time) time.Time { return slices.MaxFunc(times, time.Time.Compare) }

// cordon keeps new servers off a host.
func (w Watcher) cordon(ctx context.Context, all known, name, reason string) error {
	slog.WarnContext(ctx, "node cordoned automatically", "node", name, "reason", reason)
	host := all.host(name)
	if err := w.Cloud.DisableService(ctx, host.ServiceID, domain.CordonMark+reason); err != nil {
		return err
	}
	host.IsEnabled = false
	_, err := w.Nodes.SetCordoned(ctx, name, true, domain.CordonMark+reason)
	return err
}

// drain begins a drain of the first host that is due, once for each time that it is cordoned or suspect. One automatic
// drain runs at a time in the whole cloud: Nova's scheduler may move servers to other zones, and all migrations share
// its conductors and network. The last host that servers can be made on is left alone.
func (w Watcher) drain(ctx context.Context, hosts []domain.Node, all known) error {
	if len(hosts) == 0 || all.isDraining {
		return nil
	}
	names := make([]string, len(hosts))
	for i, n := range hosts {
		names[i] = n.Name
	}
	last, err := w.Drains.Last(ctx, names...)
	if err != nil {
		return err
	}
	var errs []error
	for _, n := range hosts {
		host := all.host(n.Name)
		state := drainState(n, *host)
		drained := last[n.Name] // zero = none
		if drained.CreatedAt.After(state) || !drained.DueAt.IsZero() || host.IsEnabled && all.isLast(n.Name) {
			continue
		}
		if host.IsEnabled {
			reason := suspectReason + state.UTC().Format(time.RFC3339)
			if err := w.cordon(ctx, all, n.Name, reason); err != nil {
				errs = append(errs, err)
				continue
			}
		}
		slog.WarnContext(ctx, "node drained automatically", "node", n.Name, "since", state)
		_, _, err := w.Drains.Create(ctx, domain.Drain{
			ID: uuid.Must(uuid.NewV7()), Node: n.Name, Status: domain.DrainRunning, IsAutomatic: true,
			Parallel: w.Parallel, ServerTimeout: w.ServerTimeout,
		})
		if errs = append(errs, err); err == nil {
			break
		}
	}
	return errors.Join(errs...)
}

// known are the hosts of the cloud, as they are after what is done to them.
type known struct {
	hosts      []domain.ComputeHost
	pooled     map[string]bool // the reservable ones
	zones      map[string]*zone
	zoneOf     map[string]string
	isDraining bool // automatically
}

// zone is how many of its hosts are out of service. Those that an admin has disabled are no outage, and do not count.
type zone struct {
	name  string
	hosts int
	out   map[string]bool // not up, or cordoned or drained automatically
	limit int
}

// survey counts the hosts of each zone. share is a percentage.
func survey(found Observed, hosts []domain.ComputeHost, share int) known {
	all := known{
		hosts: slices.Clone(hosts), pooled: map[string]bool{}, zones: map[string]*zone{}, zoneOf: map[string]string{},
	}
	drained := map[string]bool{}
	for _, d := range found.Drains {
		drained[d.Node] = d.IsAutomatic
		all.isDraining = all.isDraining || d.IsAutomatic
	}
	for _, n := range found.Nodes {
		host := all.host(n.Name)
		all.pooled[n.Name] = n.Pool != ""
		if host == nil {
			continue
		}
		name := cmp.Or(host.Zone, n.Zone) // of a cell that is down Nova shows no zone
		all.zoneOf[n.Name] = name
		if all.zones[name] == nil {
			all.zones[name] = &zone{name: name, out: map[string]bool{}}
		}
		z, isOurs := all.zones[name], drained[n.Name] || isAutoCordon(cmp.Or(host.DisabledReason, n.DisabledReason))
		if !isOurs && !host.IsEnabled && (!host.CellDown || !n.Enabled) {
			continue
		}
		z.hosts++
		if isOurs || host.CellDown || n.Status == domain.NodeSuspect || n.Status == domain.NodeDown {
			z.out[n.Name] = true
		}
	}
	for _, z := range all.zones {
		z.limit = max(1, z.hosts*share/100)
	}
	return all
}

// hasRoom reports whether a host may be cordoned or drained automatically, as far as the limit of its zone goes. One
// that an admin has cordoned may have to wait until others are back.
func (z *zone) hasRoom(name string) bool {
	out := len(z.out)
	if !z.out[name] {
		out++
	}
	return out <= z.limit
}

func (z *zone) reason(share int) string {
	return fmt.Sprintf("%d of %d hosts of zone %s are not up, or are cordoned or drained automatically; the limit is "+
		"%d (NODES_AUTO_SHARE, %d %%): no host of the zone is cordoned or drained automatically",
		len(z.out), z.hosts, z.name, z.limit, share)
}

func (k known) zone(name string) *zone { return k.zones[k.zoneOf[name]] }

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
	return len(domain.Substitutes(name, k.hosts, k.pooled)) == 0
}
