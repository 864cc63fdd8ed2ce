package nodes

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
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

// Store keeps what was seen of hosts.
type Store interface {
	All(ctx context.Context) ([]domain.Node, error)
	Observe(ctx context.Context, hosts []domain.ComputeHost, limits domain.NodeLimits) ([]domain.Node, error)
	Details(ctx context.Context) (domain.NodeDetails, error)
	SetDetails(ctx context.Context, marker string) error
	MonitorFailed(ctx context.Context, reason string) error
	MonitorWorks(ctx context.Context) error
	SetCordoned(ctx context.Context, name string, isCordoned bool, reason string) (domain.Node, error)
}

// Begun stores drains that begin by themselves.
type Begun interface {
	Open(ctx context.Context) ([]domain.DrainProgress, error)
	Last(ctx context.Context, nodes ...string) (map[string]domain.Drain, error)
	Create(ctx context.Context, drain domain.Drain) (stored domain.Drain, created bool, err error)
}

// Watcher watches hosts.
type Watcher struct {
	Nodes   Store
	Drains  Begun
	Cloud   WatchCloud
	Now     func(context.Context) (time.Time, error) // the database's clock
	Probe   func(ctx context.Context, url string) error
	Record  func(ctx context.Context, hostByServer map[string]string) error
	Suspect time.Duration
	Down    time.Duration
	// For drains that begin by themselves.
	Parallel      int
	ServerTimeout time.Duration
}

// probes is how many status URLs are asked at a time.
const probes = 16

// Observed is what a poll has found.
type Observed struct {
	Nodes   []domain.Node          // all that are stored, as they are now
	Drains  []domain.DrainProgress // those that are not over
	Changed bool                   // the status of a node has
}

// Poll reads the hosts of the cloud, stores what it sees, and cordons and drains hosts whose admins have said so.
func (w Watcher) Poll(ctx context.Context) (found Observed, err error) {
	limits := domain.NodeLimits{Suspect: w.Suspect, Down: w.Down}
	if limits.AsOf, err = w.Now(ctx); err != nil { // before Nova is asked: what is done meanwhile is newer
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
	limits.Answering = w.answering(ctx, before)
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
	if err := w.care(ctx, found.Nodes, hosts, limits.AsOf); err != nil { // the hosts were read all the same
		slog.WarnContext(ctx, "not every host could be cordoned or drained", "error", err)
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

// answering asks the status URLs of the hosts that do not report, and returns the hosts whose URL answers.
func (w Watcher) answering(ctx context.Context, nodes []domain.Node) (names []string) {
	if w.Probe == nil {
		return nil
	}
	answers := make([]bool, len(nodes))
	var all errgroup.Group
	all.SetLimit(probes)
	for n, node := range nodes {
		if node.StatusURL == "" || node.Status == domain.NodeUp || node.Status == domain.NodeUnknown {
			continue
		}
		all.Go(func() error {
			answers[n] = w.Probe(ctx, node.StatusURL) == nil
			return nil
		})
	}
	_ = all.Wait() // no step fails
	for n, node := range nodes {
		if answers[n] {
			names = append(names, node.Name)
		}
	}
	return names
}
