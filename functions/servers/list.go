package servers

import (
	"context"
	"reflect"
	"slices"

	"golang.org/x/sync/errgroup"

	"github.com/cloudfn/cloudfn/shared/actions"
	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/lookup"
)

const (
	// maxRead limits the servers that one request reads to apply its filters. A page may then be shorter than its limit
	// although there are more.
	maxRead = 1000
	// filterPage is the size of a page when a filter may leave few servers of it.
	filterPage = 200

	tagsPerRequest = 100 // in the URL of one request, which takes 8 KB at most
	manyMissing    = 32  // one of Nova's pages is cheaper than as many reads by id
	readsInFlight  = 8   // of servers by id
)

type query struct {
	domain.ServerQuery
	tracked       *bool  // nil = both
	flavor, image string // by id or unique name; "" = any
}

// find looks up the names of a query.
func (q query) find(ctx context.Context, cloud session) (query, error) {
	if q.flavor != "" {
		all, err := cloud.Flavors(ctx)
		if err != nil {
			return q, err
		}
		if q.Flavor, err = lookup.PickFlavor(all, lookup.Ref{Field: "flavor", Value: q.flavor}); err != nil {
			return q, err
		}
	}
	if q.image != "" {
		all, err := lookup.FindImages(ctx, cloud, q.image)
		if err != nil {
			return q, err
		}
		image, err := lookup.PickImage(all, lookup.Ref{Field: "image", Value: q.image})
		if err != nil {
			return q, err
		}
		q.Image = image.ID
	}
	return q, nil
}

// List reads one page of servers. marker is the last one of the page, "" at the end of the list. With tracked, and
// through a connection, the newest instance comes first, otherwise the newest server.
func (s service) List(ctx context.Context, a access, q query) (found []domain.Server, marker string, err error) {
	if a.cloud == nil {
		return s.listManaged(ctx, a, q.ServerQuery)
	}
	if q, err = q.find(ctx, a.cloud); err != nil {
		return nil, "", err
	}
	if q.Host != "" && !a.Identity.Has("admin") {
		return nil, "", apperr.New(apperr.Forbidden, "host: only admins see the hosts of servers")
	}
	switch {
	case q.tracked != nil && *q.tracked:
		found, marker, err = s.listTracked(ctx, a, q.ServerQuery)
	default:
		found, marker, err = s.listNova(ctx, a, q)
	}
	lookup.FillFaults(ctx, a.cloud, found)
	return found, marker, err
}

// listManaged lists the servers that the connection manages, as they are stored.
func (s service) listManaged(
	ctx context.Context, a access, q domain.ServerQuery,
) (page []domain.Server, marker string, err error) {
	found, err := s.instances.ListManaged(ctx, a.Filter(), q.Limit+1, q.Marker)
	if err != nil {
		return nil, "", err
	}
	page = make([]domain.Server, min(q.Limit, len(found)))
	for n := range page {
		page[n] = storedServer(found[n])
	}
	if len(found) > q.Limit {
		marker = page[q.Limit-1].ID
	}
	return page, marker, nil
}

// listNova reads Nova's pages until ours is full. Nova does not know which servers are tracked, and does not filter by
// key pairs: its pages are larger than ours then, and their number is limited.
func (s service) listNova(ctx context.Context, a access, q query) (found []domain.Server, marker string, err error) {
	found = []domain.Server{}
	pages, untracked := q.ServerQuery, q.tracked != nil
	isFiltered := untracked || q.KeyName != ""
	if isFiltered {
		pages.Limit = max(q.Limit, filterPage)
	}
	for read := 0; ; {
		page, more, err := a.cloud.Servers(ctx, pages)
		if err != nil {
			return nil, "", err
		}
		if err := s.markTracked(ctx, a, page); err != nil {
			return nil, "", err
		}
		for i, server := range page {
			if q.Selects(server) && (!untracked || server.Instance == nil) {
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
		if read += len(page); isFiltered && read >= maxRead {
			return found, pages.Marker, nil
		}
	}
}

// listTracked pages over the tracked instances, and reads their servers from Nova, in few calls however many other
// servers the project has.
func (s service) listTracked(
	ctx context.Context, a access, q domain.ServerQuery,
) (found []domain.Server, marker string, err error) {
	found = []domain.Server{}
	marker = q.Marker
	for read := 0; read < maxRead; {
		size := q.Limit - len(found)
		if isFiltered := !reflect.DeepEqual(q, domain.ServerQuery{Limit: q.Limit, Marker: q.Marker}); isFiltered {
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
			if server := servers[t.ServerID]; server.ID != "" && q.Selects(server) {
				t.State = domain.StateOf(server.Status, server.Task) // the stored one may be older
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
		read += len(tracked)
	}
	return found, marker, nil
}

// fetch reads the servers of instances, by server id. A launched server has the instance's id as a tag, by which Nova
// lists many in one call. A connected one has none, and tags may be removed: such servers are read by id, after Nova's
// first page if they are many. A server that Nova no longer finds is omitted.
func (s service) fetch(ctx context.Context, a access, tracked []domain.Tracked) (map[string]domain.Server, error) {
	found := make(map[string]domain.Server, len(tracked))
	list := func(q domain.ServerQuery) error {
		page, _, err := a.cloud.Servers(ctx, q)
		for _, server := range page {
			found[server.ID] = server
		}
		return err
	}
	var tags []string
	for _, t := range tracked {
		if t.Origin == domain.OriginLaunched && len(tracked) > 1 {
			tags = append(tags, t.ID.String())
		}
	}
	for some := range slices.Chunk(tags, tagsPerRequest) {
		if err := list(domain.ServerQuery{Tags: some, Limit: maxRead}); err != nil {
			return nil, err
		}
	}
	isFound := func(t domain.Tracked) bool { return found[t.ServerID].ID != "" }
	missing := slices.DeleteFunc(slices.Clone(tracked), isFound)
	if len(missing) > manyMissing {
		if err := list(domain.ServerQuery{Limit: maxRead}); err != nil {
			return nil, err
		}
		missing = slices.DeleteFunc(missing, isFound)
	}
	servers := make([]domain.Server, len(missing))
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(readsInFlight)
	for n, t := range missing {
		group.Go(func() (err error) {
			servers[n], err = actions.ReadServer(ctx, a.cloud, t.ServerID, a.ProjectID, true)
			if apperr.CodeOf(err) == apperr.NotFound {
				return nil
			}
			return err
		})
	}
	err := group.Wait()
	for _, server := range servers {
		found[server.ID] = server
	}
	return found, err
}
