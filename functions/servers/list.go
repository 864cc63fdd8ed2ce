package servers

import (
	"context"
	"slices"
	"strings"

	"github.com/google/uuid"
	"golang.org/x/sync/errgroup"

	"github.com/cloudfn/cloudfn/shared/actions"
	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/lookup"
)

const (
	// maxSeen is how many servers one request reads, at most, to find those that its filters select. A page may then be
	// shorter than its limit, although there are more.
	maxSeen = 1000
	// filterPage is how many servers are read at once when a filter may leave few of them.
	filterPage = 200

	tagsAtOnce = 100 // in the URL of one request, which takes 8 KB at most
	manyMissed = 32  // so many that no list by tags shows are worth one of Nova's pages
	lookUps    = 8   // servers at once that are asked for by id
)

type query struct {
	domain.ServerQuery
	tracked    *bool     // nil = both
	region     string    // of the catalog; "" = the one of this process
	connection uuid.UUID // what is managed through it; zero = all servers of the project
}

// List reads one page of servers. marker is what the next page starts after, "" at the end. With tracked, and through a
// connection, the newest instance is first, else the newest server.
func (s service) List(ctx context.Context, a access, q query) (found []domain.Server, marker string, err error) {
	switch {
	case a.cloud == nil:
		return s.listManaged(ctx, a, q.ServerQuery)
	case q.tracked != nil && *q.tracked:
		found, marker, err = s.listTracked(ctx, a, q.ServerQuery)
	default:
		found, marker, err = s.listNova(ctx, a, q)
	}
	lookup.FillFaults(ctx, a.cloud, found)
	return found, marker, err
}

// listManaged lists what is managed through a connection, as it was last seen.
func (s service) listManaged(ctx context.Context, a access, q domain.ServerQuery) (page []domain.Server, marker string, err error) {
	found, err := s.instances.ListManaged(ctx, a.Filter(), q.Limit+1, q.Marker)
	if err != nil {
		return nil, "", err
	}
	page = make([]domain.Server, min(q.Limit, len(found)))
	for n := range page {
		page[n] = lastSeen(found[n])
	}
	if len(found) > q.Limit {
		marker = page[q.Limit-1].ID
	}
	return page, marker, nil
}

// listNova reads Nova's pages until ours is full. Nova does not know which servers are not tracked: with that filter
// the pages are larger than ours, and there are few of them.
func (s service) listNova(ctx context.Context, a access, q query) (found []domain.Server, marker string, err error) {
	found = []domain.Server{}
	pages, untracked := q.ServerQuery, q.tracked != nil
	if untracked {
		pages.Limit = max(q.Limit, filterPage)
	}
	for seen := 0; ; {
		page, more, err := a.cloud.Servers(ctx, pages)
		if err != nil {
			return nil, "", err
		}
		if err := s.markTracked(ctx, a, page); err != nil {
			return nil, "", err
		}
		for i, server := range page {
			if !untracked || server.Instance == nil {
				found = append(found, server)
			}
			if len(found) == q.Limit && (more || i < len(page)-1) {
				return found, server.ID, nil
			}
		}
		if !more || len(page) == 0 {
			return found, "", nil
		}
		pages.Marker = page[len(page)-1].ID
		if seen += len(page); untracked && seen >= maxSeen {
			return found, pages.Marker, nil
		}
	}
}

// listTracked pages over the tracked instances, and reads their servers from Nova: that takes few calls, however many
// servers the project has besides.
func (s service) listTracked(ctx context.Context, a access, q domain.ServerQuery) (found []domain.Server, marker string, err error) {
	found = []domain.Server{}
	marker = q.Marker
	for seen := 0; seen < maxSeen; {
		size := q.Limit - len(found)
		if q.Status != "" || q.Name != "" {
			size = filterPage
		}
		tracked, err := s.instances.ListTracked(ctx, a.ProjectID, marker, size+1)
		if err != nil {
			return nil, "", err
		}
		more := len(tracked) > size
		tracked = tracked[:min(size, len(tracked))]
		servers, err := s.fetch(ctx, a, tracked)
		if err != nil {
			return nil, "", err
		}
		for i, t := range tracked {
			if server, ok := servers[t.ServerID]; ok && selects(q, server) {
				t.State = domain.StateOf(server.Status, server.Task) // what was stored may be older
				server.Instance = &t
				found = append(found, server)
			}
			marker = t.ServerID
			if len(found) == q.Limit && (more || i < len(tracked)-1) {
				return found, marker, nil
			}
		}
		if !more {
			return found, "", nil
		}
		seen += len(tracked)
	}
	return found, marker, nil
}

// selects says whether Nova's list would show the server with the query's filters. Nova's usual database does not tell
// cases apart.
func selects(q domain.ServerQuery, server domain.Server) bool {
	return (q.Status == "" || server.Status == q.Status) && strings.Contains(strings.ToLower(server.Name), strings.ToLower(q.Name))
}

// fetch reads the servers of instances, by server id. What was launched has the instance's id as a tag, by which many
// are found at once. What was connected has none, and tags may be removed: these servers are looked for in Nova's first
// page when they are many, and then by id. A server that Nova does not know any more is left out.
func (s service) fetch(ctx context.Context, a access, tracked []domain.Tracked) (map[string]domain.Server, error) {
	found := make(map[string]domain.Server, len(tracked))
	if len(tracked) > 1 {
		if err := byTags(ctx, a.cloud, tracked, found); err != nil {
			return nil, err
		}
	}
	missing := notIn(found, tracked)
	if len(missing) > manyMissed {
		page, _, err := a.cloud.Servers(ctx, domain.ServerQuery{Limit: maxSeen})
		if err != nil {
			return nil, err
		}
		keep(found, page, missing)
		missing = notIn(found, missing)
	}
	servers := make([]domain.Server, len(missing))
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(lookUps)
	for n, t := range missing {
		group.Go(func() (err error) {
			if servers[n], err = actions.ReadServer(ctx, a.cloud, t.ServerID, a.ProjectID, true); apperr.CodeOf(err) == apperr.NotFound {
				err = nil
			}
			return err
		})
	}
	err := group.Wait()
	keep(found, servers, missing)
	return found, err
}

func byTags(ctx context.Context, cloud session, tracked []domain.Tracked, found map[string]domain.Server) error {
	launched := slices.DeleteFunc(slices.Clone(tracked), func(t domain.Tracked) bool { return t.Origin != domain.OriginLaunched })
	for some := range slices.Chunk(launched, tagsAtOnce) {
		tags := make([]string, len(some))
		for n, t := range some {
			tags[n] = t.ID.String()
		}
		page, _, err := cloud.Servers(ctx, domain.ServerQuery{Tags: tags, Limit: maxSeen})
		if err != nil {
			return err
		}
		keep(found, page, some)
	}
	return nil
}

// keep adds those servers to found that are wanted, by their ids.
func keep(found map[string]domain.Server, servers []domain.Server, wanted []domain.Tracked) {
	ids := make(map[string]bool, len(wanted))
	for _, t := range wanted {
		ids[t.ServerID] = true
	}
	for _, server := range servers {
		if ids[server.ID] {
			found[server.ID] = server
		}
	}
}

func notIn(found map[string]domain.Server, tracked []domain.Tracked) []domain.Tracked {
	return slices.DeleteFunc(slices.Clone(tracked), func(t domain.Tracked) bool {
		_, ok := found[t.ServerID]
		return ok
	})
}
