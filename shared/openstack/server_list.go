package openstack

import (
	"bytes"
	"context"
	"encoding/json"
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
//
// A server whose creation broke off in Nova's conductor stays in both: as a marker it makes the list begin again with
// the instances. Once it is deleted it stays in its cell, where no request finds it (404), and Nova rejects it as a
// marker (400) while it lists it. pagePast reads on after both.

// serverPage reads one page of detail. linked reports whether Nova gave a link to the next page.
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
// the marker's server is in the list no more, because it was purged meanwhile, the list begins again.
func (s *Session) pageAfter(
	ctx context.Context, microversion string, query url.Values, marker string,
) (page []server, next string, err error) {
	for try := 1; ; try++ {
		query.Del("marker")
		if marker != "" {
			query.Set("marker", marker)
		}
		page, err = s.patientPage(ctx, microversion, query)
		if isRejected(err, marker) {
			var isListed bool
			if page, isListed, err = s.pagePast(ctx, microversion, query, marker); !isListed && err == nil {
				marker = ""
				continue
			}
		}
		if err != nil || len(page) == 0 {
			return page, "", err
		}
		last := page[len(page)-1]
		switch {
		case last.Status == "UNKNOWN":
			// servers of a down cell come first, so there are no others, and Nova cannot go on after one
			return page, "", nil
		case last.ID != marker && (marker == "" || !s.isTwice(ctx, microversion, query, page)):
			return page, last.ID, nil
		case !isBuilding(&last):
			return nil, "", errCircle()
		case try == maxTries: // it stays a build request and an instance
			page, _, err = s.pagePast(ctx, microversion, query, marker)
			if err != nil || len(page) == 0 {
				return page, "", err
			}
			return page, page[len(page)-1].ID, nil
		}
		// Nova lists all instances after a build request. The marker is still one, and already an instance.
		if !flow.Sleep(ctx, firstPause<<try) {
			return nil, "", classify("nova", ctx.Err())
		}
	}
}

// isTwice reports whether the last server of a page is both a build request and an instance.
func (s *Session) isTwice(ctx context.Context, microversion string, query url.Values, page []server) bool {
	last := page[len(page)-1]
	if !isBuilding(&last) {
		return false
	}
	rest, _, err := s.following(ctx, microversion, query, page)
	return err == nil && beginsAgain(rest, &last)
}

// The bounds of pagePast: pages that it reads, and servers of a page that it tries as a marker.
const (
	mostPages   = 100
	mostMarkers = 8
)

// pagePast reads what follows a server that is no use as a marker: it reads the list from its beginning, in large
// pages, until one has more behind that server, or any with the id "". isListed is false when no page has the server.
func (s *Session) pagePast(
	ctx context.Context, microversion string, query url.Values, id string,
) (page []server, isListed bool, err error) {
	query = maps.Clone(query)
	query.Set("limit", strconv.Itoa(watchPage))
	seen, markers := map[string]bool{}, []string{""}
	isListed = id == ""
	for range mostPages {
		found, err := s.pageAfterAny(ctx, microversion, query, markers)
		isNew := false
		for _, one := range found {
			if seen[one.ID] {
				continue
			}
			seen[one.ID], isNew = true, true
			if isListed {
				page = append(page, one)
			}
			isListed = isListed || one.ID == id
		}
		if err != nil || len(page) > 0 || !isNew {
			return page, isListed, err
		}
		markers = markersOf(found)
	}
	return nil, isListed, errCircle()
}

// pageAfterAny reads the page after the first of the markers that Nova takes. If it takes none, the list has ended.
func (s *Session) pageAfterAny(
	ctx context.Context, microversion string, query url.Values, markers []string,
) (page []server, err error) {
	for _, marker := range markers {
		query.Del("marker")
		if marker != "" {
			query.Set("marker", marker)
		}
		if page, err = s.patientPage(ctx, microversion, query); !isRejected(err, marker) {
			return page, err
		}
	}
	return nil, nil
}

// markersOf are the servers after which a list may go on, best first: the last one that does not build, and others.
func markersOf(page []server) (ids []string) {
	for _, isFirst := range []bool{true, false} {
		for i := len(page) - 1; i >= 0 && len(ids) < mostMarkers; i-- {
			if isFirst != isBuilding(&page[i]) {
				ids = append(ids, page[i].ID)
			}
		}
	}
	return ids
}

func errCircle() error {
	return apperr.New(apperr.BadGateway, "nova returned the same page twice (marker ignored)")
}

// isRejected reports whether Nova rejected a page because of its marker.
func isRejected(err error, marker string) bool {
	return marker != "" && apperr.CodeOf(err) == apperr.Invalid && strings.Contains(err.Error(), "marker") &&
		strings.Contains(err.Error(), marker)
}

// pageTries is how often a page is requested that Nova fails: with watchPage the last one has one server.
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
	found, more, err := s.pageOrPast(ctx, query, q)
	page = make([]domain.Server, len(found))
	for i := range found {
		page[i] = found[i].domain()
	}
	return page, more, err
}

func (s *Session) pageOrPast(
	ctx context.Context, query url.Values, q domain.ServerQuery,
) (found []server, more bool, err error) {
	for try := 1; ; try++ {
		found, more, err = s.serverPage(ctx, computeFlavorInside, query)
		if isRejected(err, q.Marker) || q.Marker != "" && hasServer(found, q.Marker) {
			return s.past(ctx, query, q, found, err)
		}
		if err != nil || len(found) == 0 {
			return found, more, err
		}
		last := &found[len(found)-1]
		if !mayHideMore(found, q.Limit) || more && !isBuilding(last) {
			return found, more, nil
		}
		rest, linked, unknown := s.following(ctx, computeFlavorInside, query, found)
		switch {
		case isRejected(unknown, last.ID) && try < maxTries:
			// its last server was deleted before it reached a cell: the page is another one now
		case isRejected(unknown, last.ID): // it stays in the list
			rest, _, unknown = s.pagePast(ctx, computeFlavorInside, query, last.ID)
			return found, more || unknown != nil || len(rest) > 0, nil //nolint:nilerr // more: it is unknown
		case isBuilding(last) && beginsAgain(rest, last):
			return s.past(ctx, query, q, found, nil)
		default:
			more = more || linked || !isWithin(rest, found)
			return found, more || unknown != nil, nil
		}
	}
}

// past is a page of a list in which its marker or its last server is no use as a marker. found and cause are what Nova
// has replied to the page's own query.
func (s *Session) past(
	ctx context.Context, query url.Values, q domain.ServerQuery, found []server, cause error,
) (page []server, more bool, err error) {
	page, isListed, err := s.pagePast(ctx, computeFlavorInside, query, q.Marker)
	if err == nil && !isListed {
		return found, false, cause
	}
	return page[:min(len(page), q.Limit)], len(page) > 0, err
}

// beginsAgain reports whether a page after a build request has that server again, or one that is newer: instances are
// listed newest first.
func beginsAgain(rest []server, request *server) bool {
	return slices.ContainsFunc(rest, func(s server) bool {
		return s.ID == request.ID || s.Created.After(request.Created)
	})
}

func hasServer(page []server, id string) bool {
	return slices.ContainsFunc(page, func(s server) bool { return s.ID == id })
}

// isWithin reports whether a page has all servers of another one.
func isWithin(rest, page []server) bool {
	return !slices.ContainsFunc(rest, func(r server) bool { return !hasServer(page, r.ID) })
}

// mayHideMore reports whether servers may follow a page without a link. The check costs each caller a call, so it is
// done only where it can make a difference: some server of the page may be listed twice, or the page is at least half
// full.
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

// following reads what follows the last server of a page. After an instance one server tells. After a build request
// Nova lists all instances, so those of the page may come first, each twice.
func (s *Session) following(
	ctx context.Context, microversion string, query url.Values, page []server,
) (rest []server, linked bool, err error) {
	after := maps.Clone(query)
	last := &page[len(page)-1]
	after.Set("marker", last.ID)
	limit := 1
	if isBuilding(last) {
		limit = watchPage
	}
	after.Set("limit", strconv.Itoa(limit))
	return s.serverPage(ctx, microversion, after)
}

// How servers are followed, and what Nova keeps to itself meanwhile:
//
// A list with any filter, limit or marker leaves out the servers of a cell that is down, without a word: changes-since
// too. Only a list without all of these shows them, as UNKNOWN, and no more of them than fit its one page. So any
// client that reads changes has to check by other means whether all cells answer (CellsUp), and what a list does not
// show is no deleted server before it was read by its id.

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
		if bytes.Contains(found[i].Metadata, []byte(`"`+domain.LeaseEndKey+`"`)) {
			_ = json.Unmarshal(found[i].Metadata, &page[i].Metadata) // Nova gives texts by names
		}
		if page[i].Status == "DELETED" || page[i].Status == "SOFT_DELETED" {
			page[i].Partial = true // what it had is lost with it, and Nova shows none of it
		}
	}
	return page, next, err
}

// CellsUp fails when the database of one of Nova's cells does not answer. projectID as in ChangedServers.
//
// It reads the usage in a time before there was any server: that reads every cell in turn, finds nothing, and fails
// with the first that is unavailable.
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

// MarkedServers lists all servers of the session's project that carry a tag, with their metadata and volumes.
func (s *Session) MarkedServers(ctx context.Context, tag string) ([]domain.Server, error) {
	query := url.Values{"tags": {tag}, "limit": {strconv.Itoa(watchPage)}}
	var all []domain.Server
	err := s.eachServer(ctx, computeFlavorInside, query, func(found *server) {
		d := found.domain()
		_ = json.Unmarshal(found.Metadata, &d.Metadata) // Nova gives texts by names
		for _, v := range found.Volumes {
			d.VolumeIDs = append(d.VolumeIDs, v.ID)
		}
		all = append(all, d)
	})
	return all, err
}

// TaggedServers lists a project's servers with a tag. Another project than the session's takes the admin role.
func (s *Session) TaggedServers(ctx context.Context, projectID, tag string) ([]domain.Server, error) {
	return s.serversOf(ctx, projectID, "tags", tag)
}

// UnplacedServers lists a project's servers in the statuses in which a server may have no host: being built, in ERROR
// or shelved. Another project than the session's takes the admin role.
func (s *Session) UnplacedServers(ctx context.Context, projectID string) ([]domain.Server, error) {
	return s.serversOf(ctx, projectID, "status", "BUILD", "ERROR", "SHELVED_OFFLOADED")
}

func (s *Session) serversOf(ctx context.Context, projectID, filter string, values ...string) ([]domain.Server, error) {
	query := url.Values{
		"limit": {strconv.Itoa(watchPage)}, "all_tenants": {"1"}, "project_id": {projectID}, filter: values,
	}
	out := []domain.Server{}
	err := s.eachServer(ctx, computeFlavorInside, query, func(found *server) { out = append(out, found.domain()) })
	return out, err
}
