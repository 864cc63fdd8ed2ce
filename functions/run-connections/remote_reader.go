package runconnections

import (
	"cmp"
	"context"
	"errors"
	"maps"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/lookup"
)

const (
	// The other cloud's clock may differ from the database's by this much. If it differs more, changes may be missed
	// until the next read of all servers.
	overlap = 2 * time.Minute
	// How many servers that are not listed are asked for by id at one read of all, and how many of them at once. The
	// others follow at the next.
	mostLookUps = 100
	lookUps     = 8
)

// reader reads the servers of one connection.
type reader struct {
	*service

	cloud session
	read  domain.RemoteRead
	known map[string]domain.Instance // by server id; those that the sweep has not seen yet

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

// sweep reads all servers of the project, and asks by id for those that are known and not listed.
func (r *reader) sweep(ctx context.Context) error {
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

// lookUp asks for servers by id. One that Nova does not know at two reads is deleted.
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
