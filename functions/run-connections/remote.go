package runconnections

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/cloudfn/cloudfn/shared/domain"
)

// Servers in other clouds are followed here, because poll-instances reads this cloud only.

const (
	// How often the servers of a connection are read, and how often while Nova is at work on one of them.
	usualPace  = 50 * time.Second
	movingPace = 2 * time.Second
	// Nova may be at work on an instance for days. It is followed closely only for this time after its last change.
	movingFor = 10 * time.Minute

	// For one read, which has to end before its claim. Nova waits 60 s for a cell that hangs.
	readTime  = 100 * time.Second
	readClaim = 2 * time.Minute
	// After this time without an answer the state of a connection's servers is unknown.
	unknownAfter = 3 * time.Minute
	mostStale    = 1000 // at once
)

var pace = domain.RemotePace{Usual: usualPace, Moving: movingPace, Within: movingFor}

// follow has workers read the servers of connections to other clouds where that is due, first those that were not read
// for the longest.
func (s *service) follow(ctx context.Context, b *batch, end time.Time) error {
	clouds, err := s.delegations.RemoteClouds(ctx, pace)
	for _, cloud := range clouds {
		b.fill(ctx, "read", cloud, end, func() (isFound bool) {
			read, isFound, err := s.delegations.ClaimRead(ctx, cloud, pace, readClaim)
			if err == nil && isFound {
				err = s.readConnection(ctx, read)
			}
			if err != nil {
				slog.WarnContext(ctx, "servers of a connection could not be read", "connection_id", read.Connection.ID,
					"cloud", cloud.AuthURL, "error", err)
			}
			return isFound
		})
	}
	return err
}

// readConnection reads the servers of a connection. All of them at the usual pace, and in between only what has
// changed.
func (s *service) readConnection(ctx context.Context, read domain.RemoteRead) error {
	c := read.Connection
	reading, cancel := context.WithTimeout(ctx, readTime)
	defer cancel()
	known, err := s.delegations.Instances(reading, c.ProjectID, c.ID)
	sweep, answered := read.At.Sub(read.SweptAt) >= usualPace, false
	if err == nil {
		err = s.cloud.use(reading, c, func(cloud session) error {
			r := newReader(s, cloud, read, known)
			defer func() { answered = answered || r.answered }()
			if !sweep {
				sweep, err = r.changes(reading)
				if err != nil || !sweep {
					return err
				}
			}
			return r.sweep(reading)
		})
	}
	writing, cancel := domain.Detached(ctx)
	defer cancel()
	if err == nil {
		return s.delegations.DoneRead(writing, read, sweep)
	}
	if unopened, ok := errors.AsType[unopenedError](err); ok {
		s.unopened(ctx, c, unopened.cause)
		return s.delegations.ReleaseRead(writing, read)
	}
	if answered { // the cloud is reachable
		return errors.Join(err, s.delegations.MarkReachable(writing, c.ProjectID, c.ID, nil),
			s.delegations.ReleaseRead(writing, read))
	}
	return errors.Join(err, s.markUnreachable(writing, c), s.delegations.ReleaseRead(writing, read))
}

// markStale marks instances in other clouds as unknown whose state cannot be read any more. Nova's last status is kept.
func (s *service) markStale(ctx context.Context) error {
	now, err := s.db.Now(ctx) // before the list: what is seen since is newer
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
