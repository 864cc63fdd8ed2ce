package openstack

import (
	"context"
	"maps"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/flow"
)

// How Nova's list of servers ends (compute/api.py, get_all):
//
// Nova lists build requests first, then the instances of its cells. It applies the limit to both together and removes
// duplicates afterwards. A server on its way to a cell is in both for a moment, so a page can be shorter than its
// limit, and have no `next` link, although more servers follow. Only an empty page proves the end of a list.

// serverPage reads one page of detail. linked says that Nova gave a link to the next page.
func (s *Session) serverPage(
	ctx context.Context, microversion string, query url.Values,
) (page []server, linked bool, err error) {
	nova, err := s.compute(ctx, microversion)
	if err != nil {
		return nil, false, err
	}
	var body struct {
		Servers []server `json:"servers"`
		Links   []link   `json:"servers_links"`
	}
	err = getPage(ctx, nova, nova.ServiceURL("servers", "detail")+"?"+query.Encode(), &body)
	return body.Servers, len(body.Links) > 0, classify("nova", err)
}

// eachServer calls see once for every server of a list.
func (s *Session) eachServer(ctx context.Context, microversion string, query url.Values, see func(*server)) error {
	seen, markers, again := map[string]bool{}, map[string]bool{}, 0
	for marker := ""; ; {
		page, next, err := s.pageAfter(ctx, microversion, query, marker)
		if err != nil {
			return err
		}
		for i := range page {
			if id := page[i].ID; !seen[id] {
				seen[id] = true
				see(&page[i])
			}
		}
		if next == "" {
			return nil
		}
		if markers[next] { // the list began again, or Nova goes in a circle
			if again++; again > maxTries {
				return errCircle()
			}
			clear(markers)
		}
		markers[next], marker = true, next
	}
}

// pageAfter reads the page after the marker. next is the marker of the page after it, "" at the end of the list. If
// Nova no longer knows the marker, because its server was purged meanwhile, the list begins again.
func (s *Session) pageAfter(
	ctx context.Context, microversion string, query url.Values, marker string,
) (page []server, next string, err error) {
	for try := 1; ; try++ {
		query.Del("marker")
		if marker != "" {
			query.Set("marker", marker)
		}
		page, err = s.patientPage(ctx, microversion, query)
		if marker != "" && isMarkerGone(err, marker) {
			marker = ""
			continue
		}
		if err != nil || len(page) == 0 {
			return page, "", err
		}
		last := page[len(page)-1]
		switch {
		case last.Status == "UNKNOWN":
			// servers of a down cell come first, so there are no others, and Nova cannot go on after one
			return page, "", nil
		case last.ID != marker:
			return page, last.ID, nil
		case !isBuilding(&last) || try == maxTries:
			return nil, "", errCircle()
		}
		// Nova lists all instances after a build request. The marker is still one, and already an instance.
		if !flow.Sleep(ctx, firstPause<<try) {
			return nil, "", classify("nova", ctx.Err())
		}
	}
}

func errCircle() error { return apperr.New(apperr.BadGateway, "nova gives the same page for ever") }

// isMarkerGone reports whether Nova refused a page because it does not know the marker.
func isMarkerGone(err error, marker string) bool {
	return apperr.CodeOf(err) == apperr.Invalid && strings.Contains(err.Error(), "marker") &&
		strings.Contains(err.Error(), marker)
}

// pageTries is how often a page is asked for that Nova fails: with watchPage the last one has one server.
const pageTries = 4

// patientPage repeats a read that Nova failed, each time with a tenth of the limit. Nova fails a page while one of its
// servers is deleted; and it fails a page of changes, for as long as the server is in it, when a server was deleted in
// the middle of its creation: that one has two rows of instance_extra, one of them without a flavor, and whether Nova
// finds the good one depends on the size of the page (seen: never with 13 servers, always with 4 or fewer).
func (s *Session) patientPage(ctx context.Context, microversion string, query url.Values) (page []server, err error) {
	query = maps.Clone(query)
	for try := 1; ; try++ {
		page, _, err = s.serverPage(ctx, microversion, query)
		if apperr.CodeOf(err) != apperr.BadGateway || try == pageTries {
			return page, err
		}
		// without a limit it shows the cells that are down
		if limit, err := strconv.Atoi(query.Get("limit")); err == nil {
			query.Set("limit", strconv.Itoa(max(1, limit/10)))
		}
		if !flow.Sleep(ctx, firstPause<<try) {
			return nil, classify("nova", ctx.Err())
		}
	}
}

// Servers reads one page of the project's servers, newest first. more reports whether servers follow the last of them.
// It may be true although none follow: when the page is exactly full, or when Nova does not answer the question.
func (s *Session) Servers(ctx context.Context, q domain.ServerQuery) (page []domain.Server, more bool, err error) {
	query := listQuery(q)
	var found []server
	for try := 1; ; try++ {
		found, more, err = s.serverPage(ctx, computeFlavorInside, query)
		if err != nil || more || !mayHideMore(found, q.Limit) {
			break
		}
		more, err = s.hasMore(ctx, query, found)
		if !isMarkerGone(err, found[len(found)-1].ID) {
			more, err = more || err != nil, nil
			break
		}
		if try == maxTries {
			break
		} // its last server was deleted before it reached a cell: the page is another one now
	}
	page = make([]domain.Server, len(found))
	for i := range found {
		page[i] = found[i].domain()
	}
	return page, more, err
}

// mayHideMore reports whether servers may follow a page without a link. To ask costs each caller a call, so it is asked
// only where it can make a difference: some server of the page may be listed twice, or the page is at least half full.
func mayHideMore(page []server, limit int) bool {
	return 2*len(page) > limit || slices.ContainsFunc(page,
		func(found server) bool { return isBuilding(&found) || isMoving(&found) })
}

// isBuilding reports whether the server may be a build request.
func isBuilding(found *server) bool { return found.Status == "BUILD" }

// isMoving reports whether the server may be in two cells: a resize across cells.
func isMoving(found *server) bool {
	return strings.HasSuffix(found.Status, "RESIZE") || strings.HasPrefix(found.Task, "resize_")
}

// hasMore asks for what follows the last server of a page. After an instance one server tells. After a build request
// Nova lists all instances, so those of the page may come first, each twice.
func (s *Session) hasMore(ctx context.Context, query url.Values, page []server) (bool, error) {
	after := maps.Clone(query)
	last := &page[len(page)-1]
	after.Set("marker", last.ID)
	limit := 1
	if isBuilding(last) {
		limit = min(2*len(page)+1, watchPage)
	}
	after.Set("limit", strconv.Itoa(limit))
	rest, linked, err := s.serverPage(ctx, computeFlavorInside, after)
	return linked || slices.ContainsFunc(rest, func(r server) bool {
		return !slices.ContainsFunc(page, func(p server) bool { return p.ID == r.ID })
	}), err
}

// How servers are followed, and what Nova keeps to itself meanwhile:
//
// A list with any filter, limit or marker leaves out the servers of a cell that is down, without a word: changes-since
// too. Only a list without all of these shows them, as UNKNOWN, and no more of them than fit its one page. So whoever
// reads changes has to ask by other means whether all cells answer (CellsUp), and what a list does not show is no
// deleted server before it was asked for by its id.

// watchPage is how many servers a page has at most: Nova's own max_limit.
const watchPage = 1000

// ChangedServers reads a page of the servers that changed since the moment, deleted ones included, newest first: of the
// whole cloud when projectID is "", else of that project. All but the session's own project takes the admin role. next
// is the marker of the page after it, "" at the end.
func (s *Session) ChangedServers(
	ctx context.Context, projectID string, since time.Time, marker string,
) (page []domain.Server, next string, err error) {
	query := url.Values{"changes-since": {since.UTC().Format(time.RFC3339)}, "limit": {strconv.Itoa(watchPage)}}
	return s.pageOf(ctx, computeTags, projectID, query, marker)
}

// AllServers reads a page of all servers that are not deleted. projectID and next as in ChangedServers. The first page
// shows servers of cells that are down, with Partial set and the status UNKNOWN, as far as they fit.
func (s *Session) AllServers(
	ctx context.Context, projectID, marker string,
) (page []domain.Server, next string, err error) {
	query := url.Values{}
	if marker != "" {
		query.Set("limit", strconv.Itoa(watchPage))
	}
	return s.pageOf(ctx, computeDownCells, projectID, query, marker)
}

func (s *Session) pageOf(
	ctx context.Context, microversion, projectID string, query url.Values, marker string,
) (page []domain.Server, next string, err error) {
	if projectID == "" || projectID != s.project {
		query.Set("all_tenants", "1")
	}
	if projectID != "" && projectID != s.project {
		query.Set("project_id", projectID)
	}
	found, next, err := s.pageAfter(ctx, microversion, query, marker)
	page = make([]domain.Server, len(found))
	for i := range found {
		page[i] = found[i].domain()
		if page[i].Status == "DELETED" || page[i].Status == "SOFT_DELETED" {
			page[i].Partial = true // what it had is gone with it, and Nova shows none of it
		}
	}
	return page, next, err
}

// CellsUp fails when the database of one of Nova's cells does not answer. projectID as in ChangedServers.
//
// It asks for the usage in a time before there was any server: that reads every cell in turn, finds nothing, and fails
// with the first that is away.
func (s *Session) CellsUp(ctx context.Context, projectID string) error {
	nova, err := s.compute(ctx, computeUsagePaging)
	if err != nil {
		return err
	}
	path := nova.ServiceURL("os-simple-tenant-usage")
	if projectID != "" {
		path = nova.ServiceURL("os-simple-tenant-usage", url.PathEscape(projectID))
	}
	query := url.Values{"limit": {"1"}, "start": {"1970-01-01T00:00:00"}, "end": {"1970-01-02T00:00:00"}}
	var body struct{}
	return classify("nova", getPage(ctx, nova, path+"?"+query.Encode(), &body))
}
