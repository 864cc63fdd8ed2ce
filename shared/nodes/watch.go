package nodes

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/domain"
)

// WatchCloud is what watching hosts takes.
type WatchCloud interface {
	HostReports(ctx context.Context) ([]domain.ComputeHost, error)
	ComputeServices(ctx context.Context) ([]domain.ComputeHost, error)
	ComputeService(ctx context.Context, host string) (domain.ComputeHost, error)
	DescribeHosts(ctx context.Context, hosts []domain.ComputeHost, marker string) (next string, err error)
	DisableService(ctx context.Context, id, reason string) error
}

// Store keeps what was observed of hosts.
type Store interface {
	All(ctx context.Context) ([]domain.Node, error)
	Observe(ctx context.Context, hosts []domain.ComputeHost, limits domain.NodeLimits) ([]domain.Node, error)
	Details(ctx context.Context) (domain.NodeDetails, error)
	SetDetails(ctx context.Context, marker string) error
	MonitorFailed(ctx context.Context, reason string) error
	MonitorWorks(ctx context.Context) error
	SetCordoned(ctx context.Context, name string, isCordoned bool, reason string) (domain.Node, error)
	SetProbed(ctx context.Context, answering, silent []string) error
	HeldZones(ctx context.Context) (map[string]domain.HeldZone, error)
	HoldZone(ctx context.Context, zone, reason string) error
	FreeZone(ctx context.Context, zone string) error
}

// DrainStore stores drains that begin automatically.
type DrainStore interface {
	Open(ctx context.Context) ([]domain.DrainProgress, error)
	Last(ctx context.Context, nodes ...string) (map[string]domain.Drain, error)
	Create(ctx context.Context, drain domain.Drain) (stored domain.Drain, created bool, err error)
}

// Watcher watches hosts.
type Watcher struct {
	Nodes   Store
	Drains  DrainStore
	Cloud   WatchCloud
	Now     func(context.Context) (time.Time, error) // the database's clock
	Probe   func(ctx context.Context, url string) error
	Record  func(ctx context.Context, hostByServer map[string]string) error
	Suspect time.Duration
	Down    time.Duration
	Share   int // of a zone's hosts, in percent, that may be out of service while others are cordoned automatically
	// For drains that begin automatically.
	Parallel      int
	ServerTimeout time.Duration
}

const (
	probes = 16 // status URLs at a time
	// probeTime bounds the requests to status URLs in a poll. The hosts that are left come first in the next one.
	probeTime = 15 * time.Second
	// answerFor is for how long an answer of a status URL counts: until the next poll, or the one after that.
	answerFor = 150 * time.Second
)

// Observed is what a poll has found.
type Observed struct {
	Nodes   []domain.Node          // all that are stored, as they are now
	Drains  []domain.DrainProgress // those that are not over
	Changed bool                   // the status of a node has
}

// Poll reads the hosts of the cloud, stores what it observes, and cordons and drains hosts whose admins have said so.
func (w Watcher) Poll(ctx context.Context) (found Observed, err error) {
	limits := domain.NodeLimits{Suspect: w.Suspect, Down: w.Down}
	if limits.AsOf, err = w.Now(ctx); err != nil { // before Nova is read: what is done meanwhile is newer
		return found, err
	}
	before, err := w.Nodes.All(ctx)
	if err != nil {
		return found, err
	}
	if found.Drains, err = w.Drains.Open(ctx); err != nil {
		return found, err
	}
	details, err := w.Nodes.Details(ctx)
	if err != nil {
		return found, err
	}
	isWhole := details.Marker != "" || len(found.Drains) > 0 || limits.AsOf.Sub(details.At) >= detailsEvery
	hosts, next, err := w.read(ctx, before, isWhole, details.Marker)
	if err != nil {
		return found, w.failed(ctx, err)
	}
	limits.Answering = answering(before, limits.AsOf)
	changed, err := w.Nodes.Observe(ctx, hosts, limits)
	if err != nil {
		return found, err
	}
	found.Changed = len(changed) > 0
	if err := w.Nodes.MonitorWorks(ctx); err != nil {
		return found, err
	}
	if isWhole {
		if err := errors.Join(w.record(ctx, hosts), w.Nodes.SetDetails(ctx, next)); err != nil {
			return found, err
		}
	}
	if found.Nodes, err = w.Nodes.All(ctx); err != nil {
		return found, err
	}
	if err := w.applyPolicies(ctx, found, hosts, limits.AsOf); err != nil { // the hosts were read all the same
		slog.WarnContext(ctx, "automatic cordon or drain failed", "error", err)
	}
	if err := w.probe(ctx, found.Nodes); err != nil {
		slog.WarnContext(ctx, "results of status URLs not stored", "error", err)
	}
	return found, nil
}

// record stores on which host each server is.
func (w Watcher) record(ctx context.Context, hosts []domain.ComputeHost) error {
	if w.Record == nil {
		return nil
	}
	byServer := map[string]string{}
	for _, h := range hosts {
		for _, id := range h.ServerIDs {
			byServer[id] = h.Name
		}
	}
	return w.Record(ctx, byServer)
}

// failed reports that the hosts cannot be read, and returns the error.
func (w Watcher) failed(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return err
	}
	if stored := w.Nodes.MonitorFailed(ctx, apperr.As(err).Message); stored != nil {
		return fmt.Errorf("%w, which could not be stored: %w", err, stored)
	}
	return err
}

// answering returns the hosts whose status URL has answered in the last poll.
func answering(nodes []domain.Node, now time.Time) (names []string) {
	for _, n := range nodes {
		if n.StatusURL != "" && !n.AnsweredAt.IsZero() && now.Sub(n.AnsweredAt) <= answerFor {
			names = append(names, n.Name)
		}
	}
	return names
}

// probe requests the status URLs of the hosts that do not report, and stores which answer, for the next poll: requests
// to many hosts without power take longer than a poll has. Hosts whose URL has answered come first, as that keeps them
// from being down, then those that were not requested for the longest time.
func (w Watcher) probe(ctx context.Context, nodes []domain.Node) error {
	if w.Probe == nil {
		return nil
	}
	nodes = slices.DeleteFunc(slices.Clone(nodes), func(n domain.Node) bool {
		isReporting := n.Status != domain.NodeSuspect && n.Status != domain.NodeDown
		return n.StatusURL == "" || isReporting || n.ForcedDown
	})
	if len(nodes) == 0 {
		return nil
	}
	slices.SortStableFunc(nodes, func(a, b domain.Node) int {
		if a.AnsweredAt.IsZero() != b.AnsweredAt.IsZero() {
			return b.AnsweredAt.Compare(a.AnsweredAt)
		}
		return a.ProbedAt.Compare(b.ProbedAt)
	})
	limited, cancel := context.WithTimeout(ctx, probeTime)
	defer cancel()
	const silent, answers = 1, 2 // 0 = it was not requested, or not until its time was over
	results := make([]int, len(nodes))
	var all errgroup.Group
	all.SetLimit(probes)
	for i, n := range nodes {
		all.Go(func() error {
			isTime := limited.Err() == nil
			switch isAnswered := isTime && w.Probe(limited, n.StatusURL) == nil; {
			case isAnswered:
				results[i] = answers
			case limited.Err() == nil:
				results[i] = silent
			}
			return nil
		})
	}
	_ = all.Wait() // no step fails
	names := [answers + 1][]string{}
	for i, n := range nodes {
		names[results[i]] = append(names[results[i]], n.Name)
	}
	return w.Nodes.SetProbed(ctx, names[answers], names[silent])
}

// detailsEvery is how often the hypervisors are read, with the servers on them, while no drain moves any.
const detailsEvery = 5 * time.Minute

// read reads the hosts in at most two calls for any number of them. Most polls only read which of them report. A whole
// one reads the list of services and a page of hypervisors, after the marker, and returns the marker of the next page.
// An empty list is no news of a cloud that had hosts: then the account does not see them.
func (w Watcher) read(
	ctx context.Context, before []domain.Node, isWhole bool, marker string,
) (hosts []domain.ComputeHost, next string, err error) {
	if isWhole {
		hosts, err = w.Cloud.ComputeServices(ctx)
	} else {
		hosts, err = w.reports(ctx, before)
	}
	if err == nil && len(hosts) == 0 && slices.ContainsFunc(before, isNovas) {
		err = apperr.New(apperr.BadGateway, "Nova's list of compute services is empty")
	}
	if err == nil && isWhole {
		next, err = w.Cloud.DescribeHosts(ctx, hosts, marker)
	}
	return hosts, next, err
}

// ForAdmins replaces the words in which Nova's policy forbids a call by a sentence for callers who are no admins. Other
// errors stay, such as that of a token whose access rules do not permit the call.
func ForAdmins(err error, sentence string) error {
	if apperr.CodeOf(err) == apperr.Forbidden && strings.HasPrefix(apperr.As(err).Message, "nova: ") {
		return apperr.Wrap(apperr.Forbidden, err, "%s", sentence)
	}
	return err
}

// isNovas reports whether Nova has a node, or had it.
func isNovas(n domain.Node) bool { return n.ServiceID != "" }

// reports reads which hosts report, by the call that has the least. That has no disabled hosts, and no ids and reasons,
// which are known. When more than one host is disabled, one is not up, or another host is there than before, the list
// of services is read instead: it shows which hosts an admin has forced down.
func (w Watcher) reports(ctx context.Context, before []domain.Node) ([]domain.ComputeHost, error) {
	enabled, disabled, isUp := map[string]domain.Node{}, []string{}, true
	for _, n := range before {
		if isNovas(n) && n.Enabled {
			enabled[n.Name], isUp = n, isUp && n.IsUp
		} else if isNovas(n) {
			disabled = append(disabled, n.Name)
		}
	}
	if !isUp || len(enabled) == 0 || len(disabled) > 1 {
		return w.Cloud.ComputeServices(ctx)
	}
	hosts, err := w.Cloud.HostReports(ctx)
	if err != nil {
		return nil, err
	}
	for i, h := range hosts {
		n, isKnown := enabled[h.Name]
		if !isKnown || !h.IsUp {
			return w.Cloud.ComputeServices(ctx)
		}
		hosts[i].ServiceID = n.ServiceID
	}
	if len(hosts) != len(enabled) {
		return w.Cloud.ComputeServices(ctx)
	}
	if len(disabled) == 0 {
		return hosts, nil
	}
	last, err := w.Cloud.ComputeService(ctx, disabled[0])
	if apperr.CodeOf(err) == apperr.NotFound { // its nova-compute was deleted
		return hosts, nil
	}
	return append(hosts, last), err
}
