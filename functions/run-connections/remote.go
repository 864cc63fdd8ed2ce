package runconnections

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"time"

	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/domain"
)

// Servers in other clouds are followed here, because poll-instances sees this cloud only.

const (
	// How often all servers of a connection are read: while Nova is at work on some of them, and else. Who reads them claims that
	// for this time, and does not give it back.
	readSoon  = 2 * time.Second
	readLater = 50 * time.Second
	// Nova may be at work on an instance for days. Looked at closely is only what has changed within this time.
	movingFor = 10 * time.Minute
	// Two looks at a server that is not there have to be independent, also when an event comes twice.
	missedFor = 30 * time.Second
	// After so long without an answer nothing is known of a connection's servers.
	unknownAfter = 3 * time.Minute
	mostUnheard  = 1000 // at once
)

// follow begins to read the servers of connections to other clouds, where that is due.
func (s *service) follow(ctx context.Context, c *crew) error {
	remote, err := s.delegations.Remote(ctx)
	if err != nil {
		return err
	}
	for _, connection := range remote {
		c.begin("remote/"+connection.ID.String(), c.connections, func() { s.followOne(ctx, connection) })
	}
	return nil
}

func (s *service) followOne(ctx context.Context, c domain.Connection) {
	known, err := s.delegations.Instances(ctx, c.ProjectID, c.ID)
	if err == nil && len(known) > 0 {
		err = s.readIfDue(ctx, c, known)
	}
	if err != nil {
		slog.WarnContext(ctx, "servers of a connection could not be read", "connection_id", c.ID, "error", err)
	}
}

func (s *service) readIfDue(ctx context.Context, c domain.Connection, known []domain.Instance) error {
	now, err := s.clock.Now(ctx)
	if err != nil {
		return err
	}
	key, every := c.ID.String(), readLater
	if slices.ContainsFunc(known, func(i domain.Instance) bool { return moves(i, now) }) {
		key, every = key+"/moving", readSoon
	}
	_, due, err := s.jobs.Claim(ctx, jobKind, key, every)
	if err != nil || !due {
		return err
	}
	reading, cancel := context.WithTimeout(ctx, orderTime)
	defer cancel()
	err = s.cloud.use(reading, c, func(cloud session) error { return s.read(reading, cloud, c, known, now) })
	if unopened, ok := errors.AsType[unopenedError](err); ok {
		s.unopened(ctx, c, unopened.cause)
		return nil
	}
	writing, cancel := ending(ctx)
	defer cancel()
	if err != nil {
		return errors.Join(err, s.silent(writing, c))
	}
	return s.delegations.Answered(writing, c.ProjectID, c.ID, nil)
}

func moves(i domain.Instance, now time.Time) bool {
	return slices.Contains(domain.MovingStates(), i.State) && now.Sub(i.UpdatedAt) < movingFor
}

// read reads all servers of the connection's project, and writes down what is new of those that are known, as of the moment before.
func (s *service) read(ctx context.Context, cloud session, c domain.Connection, known []domain.Instance, at time.Time) error {
	servers := map[string]domain.Server{}
	for marker := ""; ; {
		page, next, err := cloud.AllServers(ctx, c.ActsAs.ProjectID, marker)
		if err != nil {
			return err
		}
		for _, server := range page {
			servers[server.ID] = server
		}
		if next == "" {
			break
		}
		marker = next
	}
	var news []domain.Instance
	var failed error
	for _, i := range known {
		changed, err := apply(ctx, cloud, servers, &i, at)
		failed = errors.Join(failed, err)
		if changed {
			i.SeenAt = at
			news = append(news, i)
		}
	}
	if len(news) == 0 {
		return failed
	}
	told, err := s.instances.Change(ctx, news)
	if told > 0 {
		s.tell(c)
	}
	return errors.Join(failed, err)
}

// apply applies what is listed to an instance. A server that is not listed is asked for by its id, and only one that Nova does not know
// at two looks counts as deleted.
func apply(ctx context.Context, cloud session, servers map[string]domain.Server, i *domain.Instance, at time.Time) (changed bool, err error) {
	if server, listed := servers[i.ServerID]; listed {
		return i.Found(server), nil
	}
	server, err := cloud.Server(ctx, i.ServerID)
	switch {
	case err == nil:
		return i.Found(server), nil
	case apperr.CodeOf(err) == apperr.NotFound:
		return i.Missed(at, missedFor), nil
	}
	return false, err
}

// unheard marks instances in other clouds as unknown of which nobody hears any more. What Nova called their state last is kept.
func (s *service) unheard(ctx context.Context) error {
	silent, err := s.delegations.Unheard(ctx, unknownAfter, mostUnheard)
	if err != nil || len(silent) == 0 {
		return err
	}
	for n := range silent {
		silent[n].State, silent[n].SeenAt = domain.InstanceUnknown, time.Time{} // now
	}
	told, err := s.instances.Change(ctx, silent)
	if told > 0 {
		s.wake("deliver-events")
	}
	return err
}
