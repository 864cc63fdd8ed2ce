package servers

import (
	"context"

	"github.com/cloudfn/cloudfn/shared/domain"
)

// session is the part of OpenStack that this function needs.
type session interface {
	Servers(context.Context, domain.ServerQuery) (page []domain.Server, more bool, err error)
	Server(ctx context.Context, id string) (domain.Server, error)
}

// instanceStore is the part of the database that this function needs.
type instanceStore interface {
	Tracked(ctx context.Context, projectID string, serverIDs []string) (map[string]domain.Tracked, error)
}

type service struct {
	cloud interface {
		As(token domain.Secret, scope string) session
	}
	instances instanceStore
}

type query struct {
	domain.ServerQuery
	tracked *bool // nil = both
}

// List reads one page of servers, newest first. marker is what the next page starts after, "" at the end.
//
// Nova does not know which servers are tracked, so with that filter its pages are read until ours is full;
// a page may then be shorter than its limit although there are more.
func (s service) List(ctx context.Context, who domain.Identity, token domain.Secret, q query) (found []domain.Server, marker string, err error) {
	cloud := s.cloud.As(token, who.ProjectID)
	found = []domain.Server{}
	limit := q.Limit
	for {
		page, more, err := cloud.Servers(ctx, q.ServerQuery)
		if err != nil {
			return nil, "", err
		}
		if err := s.markTracked(ctx, who, page); err != nil {
			return nil, "", err
		}
		for i, server := range page {
			if q.tracked == nil || *q.tracked == (server.Instance != nil) {
				found = append(found, server)
			}
			if len(found) == limit && (more || i < len(page)-1) {
				return found, server.ID, nil
			}
		}
		if !more || len(page) == 0 {
			return found, "", nil
		}
		q.Marker = page[len(page)-1].ID
	}
}

// Get reads one server of the caller's project.
func (s service) Get(ctx context.Context, who domain.Identity, token domain.Secret, id string) (domain.Server, error) {
	server, err := s.cloud.As(token, who.ProjectID).Server(ctx, id)
	if err != nil {
		return domain.Server{}, err
	}
	one := []domain.Server{server}
	err = s.markTracked(ctx, who, one)
	return one[0], err
}

// markTracked fills in which of the servers are tracked.
func (s service) markTracked(ctx context.Context, who domain.Identity, page []domain.Server) error {
	if len(page) == 0 {
		return nil
	}
	ids := make([]string, len(page))
	for i, server := range page {
		ids[i] = server.ID
	}
	tracked, err := s.instances.Tracked(ctx, who.ProjectID, ids)
	if err != nil {
		return err
	}
	for i := range page {
		if t, ok := tracked[page[i].ID]; ok {
			// Nova has just said how the server is; what was stored may be older.
			t.State = domain.StateOf(page[i].Status, page[i].Task)
			page[i].Instance = &t
		}
	}
	return nil
}
