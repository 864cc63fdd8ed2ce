package openstack

import (
	"context"
	"net/url"
	"strconv"
	"time"

	"github.com/cloudfn/cloudfn/shared/domain"
)

// How servers are followed, and what Nova keeps to itself meanwhile:
//
// A list with any filter, limit or marker leaves out the servers of a cell that is down, without a word: changes-since
// too. Only a list without all of these shows them, as UNKNOWN, and no more of them than fit its one page. So whoever
// reads changes has to ask by other means whether all cells answer (CellsUp), and what a list does not show is no
// deleted server before it was asked for by its id.

// watchPage is how many servers a page has at most: Nova's own max_limit.
const watchPage = 1000

// ChangedServers reads a page of the servers that changed since the moment, deleted ones included, newest first: of the
// whole cloud when projectID is "", else of that project. All but the session's own project takes the admin role. next is
// the marker of the page after it, "" at the end.
func (s *Session) ChangedServers(ctx context.Context, projectID string, since time.Time, marker string) (page []domain.Server, next string, err error) {
	query := url.Values{"changes-since": {since.UTC().Format(time.RFC3339)}, "limit": {strconv.Itoa(watchPage)}}
	return s.watched(ctx, computeTags, projectID, query, marker)
}

// AllServers reads a page of all servers that are not deleted. projectID and next as in ChangedServers. The first page
// shows servers of cells that are down, with Partial set and the status UNKNOWN, as far as they fit.
func (s *Session) AllServers(ctx context.Context, projectID, marker string) (page []domain.Server, next string, err error) {
	query := url.Values{}
	if marker != "" {
		query.Set("limit", strconv.Itoa(watchPage))
	}
	return s.watched(ctx, computeDownCells, projectID, query, marker)
}

func (s *Session) watched(ctx context.Context, microversion, projectID string, query url.Values, marker string) (page []domain.Server, next string, err error) {
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
