package runconnections

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/delegation"
	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/lookup"
)

// Servers in other clouds are followed here, because poll-instances reads this cloud only.

const (
	// How often the servers of a connection are read, and how often while Nova is at work on one of them.
	usualInterval  = 50 * time.Second
	movingInterval = 2 * time.Second
	// Nova may be at work on an instance for days. It is followed closely only for this time after its last change.
	movingFor = 10 * time.Minute

	// For one read, which has to end before its claim. Nova waits 60 s for a cell that hangs.
	readTime  = 100 * time.Second
	readClaim = 2 * time.Minute
	// After this time without an answer the state of a connection's servers is unknown.
	unknownAfter = 3 * time.Minute
	mostStale    = 1000 // that are listed together
)

var intervals = domain.RemoteIntervals{Usual: usualInterval, Moving: movingInterval, Within: movingFor}

// follow has workers read the servers of connections to other clouds where that is due, first those that were not read
// for the longest.
func (s *service) follow(ctx context.Context, b *batch, end time.Time) error {
	clouds, err := s.delegations.RemoteClouds(ctx, intervals)
	for _, cloud := range clouds {
		b.fill(ctx, "read", cloud, end, func() (isFound bool) {
			read, isFound, err := s.delegations.ClaimRead(ctx, cloud, intervals, readClaim)
			if err == nil && isFound {
				err = s.readConnection(ctx, read)
			}
			if err != nil {
				slog.WarnContext(ctx, "servers of connection not read", "connection_id", read.Connection.ID,
					"cloud", cloud.AuthURL, "error", err)
			}
			return isFound
		})
	}
	return err
}

// readConnection reads the servers of a connection. All of them at the usual interval, and in between only what has
// changed.
func (s *service) readConnection(ctx context.Context, read domain.RemoteRead) error {
	c := read.Connection
	reading, cancel := context.WithTimeout(ctx, readTime)
	defer cancel()
	known, err := s.delegations.Instances(reading, c.ProjectID, c.ID)
	all, answered := read.At.Sub(read.ScannedAt) >= usualInterval, false
	if err == nil {
		err = s.cloud.Use(reading, c, func(cloud session) error {
			r := newReader(s, cloud, read, known)
			defer func() { answered = answered || r.answered }()
			if !all {
				all, err = r.changes(reading)
				if err != nil || !all {
					return err
				}
			}
			return r.scan(reading)
		})
	}
	writing, cancel := domain.Detached(ctx)
	defer cancel()
	if err == nil {
		return s.delegations.DoneRead(writing, read, all)
	}
	if unopened, ok := errors.AsType[delegation.UnopenedError](err); ok {
		s.unopened(ctx, c, unopened.Cause)
		return s.delegations.ReleaseRead(writing, read)
	}
	if answered { // the cloud is reachable
		return errors.Join(err, s.delegations.MarkReachable(writing, c.ProjectID, c.ID, nil),
			s.delegations.ReleaseRead(writing, read))
	}
	return errors.Join(err, s.markUnreachable(writing, c), s.delegations.ReleaseRead(writing, read))
}

// markStale marks instances in other clouds as unknown whose state can no longer be read. Nova's last status is kept.
func (s *service) markStale(ctx context.Context) error {
	now, err := s.db.Now(ctx) // before the list: what is read since is newer
	if err != nil {
		return err
	}
	stale, err := s.delegations.ListStale(ctx, unknownAfter, mostStale)
	if err != nil || len(stale) == 0 {
		return err
	}
	for n := range stale {
		stale[n].State, stale[n].SeenAt = domain.InstanceUnknown, now
	}
	published, err := s.instances.Change(ctx, stale)
	if published > 0 {
		s.wake("deliver-events")
	}
	return err
}

const (
	// The other cloud's clock may differ from the database's by this much. If it differs more, changes may be missed
	// until the next read of all servers.
	overlap = 2 * time.Minute
	// How many servers that are not listed are read by id at one read of all, and how many of them concurrently. The
	// others follow at the next.
	mostLookUps = 100
	lookUps     = 8
)

// reader reads the servers of one connection.
type reader struct {
	*service

	cloud session
	read  domain.RemoteRead
	known map[string]domain.Instance // by server id; those that the scan has not read yet

	answered bool // a page came
}

func newReader(s *service, cloud session, read domain.RemoteRead, known []domain.Instance) *reader {
	r := &reader{service: s, cloud: cloud, read: read, known: make(map[string]domain.Instance, len(known))}
	for _, i := range known {
		r.known[i.ServerID] = i
	}
	return r
}

// changes reads the servers that changed since the last read. unable reports that all have to be read instead: Nova
// fails to list changes while the list contains a server that was deleted during its creation.
func (r *reader) changes(ctx context.Context) (unable bool, err error) {
	since := r.read.Since.Add(-overlap)
	err = r.pages(ctx, func(marker string) ([]domain.Server, string, error) {
		return r.cloud.ChangedServers(ctx, r.read.Connection.ActsAs.ProjectID, since, marker)
	})
	if apperr.CodeOf(err) == apperr.BadGateway {
		return true, nil
	}
	return false, err
}

// scan reads all servers of the project, and by id those that are known and not listed.
func (r *reader) scan(ctx context.Context) error {
	err := r.pages(ctx, func(marker string) ([]domain.Server, string, error) {
		return r.cloud.AllServers(ctx, r.read.Connection.ActsAs.ProjectID, marker)
	})
	if err != nil {
		return err
	}
	return r.lookUp(ctx)
}

// pages reads a list to its end, and writes what is new of the known servers page by page.
func (r *reader) pages(ctx context.Context, list func(marker string) ([]domain.Server, string, error)) error {
	for marker := ""; ; {
		page, next, err := list(marker)
		if err != nil {
			return err
		}
		r.answered = true
		var changed []domain.Instance
		for _, server := range page {
			i, ok := r.known[server.ID]
			delete(r.known, server.ID)
			if ok && i.Found(server) {
				changed = append(changed, i)
			}
		}
		if err := r.write(ctx, changed); err != nil || next == "" {
			return err
		}
		marker = next
	}
}

// lookUp reads servers by id. One that Nova does not know at two reads is deleted.
func (r *reader) lookUp(ctx context.Context) error {
	missing := slices.SortedFunc(maps.Values(r.known), func(a, b domain.Instance) int {
		return cmp.Or(a.SeenAt.Compare(b.SeenAt), cmp.Compare(a.ServerID, b.ServerID))
	})
	var mu sync.Mutex
	var changed []domain.Instance
	var failed error
	var group errgroup.Group
	group.SetLimit(lookUps)
	for _, i := range missing[:min(len(missing), mostLookUps)] {
		group.Go(func() error {
			isNew, err := r.lookUpOne(ctx, &i)
			mu.Lock()
			defer mu.Unlock()
			failed = errors.Join(failed, err)
			if isNew {
				changed = append(changed, i)
			}
			return nil
		})
	}
	_ = group.Wait() // the functions above never fail
	return errors.Join(failed, r.write(ctx, changed))
}

func (r *reader) lookUpOne(ctx context.Context, i *domain.Instance) (isNew bool, err error) {
	server, err := r.cloud.Server(ctx, i.ServerID)
	switch {
	case err == nil:
		return i.Found(server), nil
	case apperr.CodeOf(err) == apperr.NotFound:
		return i.Missed(r.read.At), nil
	}
	return false, err
}

// write stores the state of instances, as of the moment before Nova was called.
func (r *reader) write(ctx context.Context, changed []domain.Instance) error {
	if len(changed) == 0 {
		return nil
	}
	lookup.Explain(ctx, r.cloud, changed)
	for n := range changed {
		changed[n].SeenAt = r.read.At
	}
	published, err := r.instances.Change(ctx, changed)
	if published > 0 {
		r.wakeFor(r.read.Connection)
	}
	return err
}
