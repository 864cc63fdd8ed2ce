package pollinstances

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"time"

	"github.com/google/uuid"
	"golang.org/x/sync/errgroup"

	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/ordering"
)

const (
	overlap     = 2 * time.Minute // Nova's clock may differ from the database's
	lookUps     = 8               // servers at once that are asked for by id
	mostLookUps = 100             // instances that are asked for by id at each event; when more are in doubt, all are read
	cellTimeout = 10 * time.Second
	// Two looks at a server that Nova does not know have to be independent, also when an event comes twice.
	patience = 30 * time.Second
)

// reader reads the servers of projects with one session.
type reader struct {
	*service
	cloud     session
	projectID string                 // whose servers are read; "" reads the whole cloud
	projects  map[string]domain.Poll // those that are followed
}

func newReader(s *service, cloud session, projectID string, projects []domain.Poll) *reader {
	r := &reader{service: s, cloud: cloud, projectID: projectID, projects: map[string]domain.Poll{}}
	for _, p := range projects {
		r.projects[p.ProjectID] = p
	}
	return r
}

func (r *reader) ids() []string {
	var ids []string
	for id := range r.projects {
		ids = append(ids, id)
	}
	slices.Sort(ids)
	return ids
}

// read reads what changed, and all servers when that is due; then it notes how far it came. While a cell of Nova is down
// all servers are read each time, and what changes there meanwhile when it is back. All are read, too, when Nova fails over
// what changed in a project: that has deleted servers in it, and one that was deleted in the middle of its creation may lack
// its flavor, over which the list is a 500 for as long as that server is new.
func (r *reader) read(ctx context.Context) error {
	start, err := r.clock.Now(ctx)
	if err != nil {
		return err
	}
	err = r.changes(ctx)
	broken := apperr.CodeOf(err) == apperr.BadGateway
	if err != nil && (!broken || r.projectID == "") {
		return err
	}
	if broken {
		slog.WarnContext(ctx, "nova cannot say what changed: all servers are read", "project_id", r.projectID, "error", err)
	}
	up := r.cellsUp(ctx) // asked for after the changes: it was up while they were read
	full := broken || !up || r.fullDue(start)
	if full {
		err = r.sweep(ctx, start, up)
	} else {
		err = r.lookUpDoubtful(ctx)
	}
	if err != nil {
		return err
	}
	return r.note(ctx, start, full, up)
}

// note writes down that all before start is known, and that all servers were read.
func (r *reader) note(ctx context.Context, start time.Time, full, up bool) error {
	var read []domain.Poll
	for _, p := range r.projects {
		if up {
			p.Since = start
		}
		if full {
			p.FullAt = start
		}
		read = append(read, p)
	}
	return r.polls.Read(ctx, read)
}

func (r *reader) fullDue(now time.Time) bool {
	unknown := 0
	for _, p := range r.projects {
		if unknown += p.Unknown; unknown > mostLookUps || p.FullAt.Before(now.Add(-r.full)) {
			return true
		}
	}
	return false
}

// cellsUp says whether all cells of Nova answer. One that does not is left out of Nova's lists in silence.
func (r *reader) cellsUp(ctx context.Context) bool {
	ctx, cancel := context.WithTimeout(ctx, cellTimeout)
	defer cancel()
	err := r.cloud.CellsUp(ctx, r.projectID)
	if err != nil {
		slog.WarnContext(ctx, "it cannot be told whether all cells of nova answer: nothing counts as gone", "project_id", r.projectID, "error", err)
	}
	return err == nil
}

// changes reads the servers that changed since the last time, page by page.
func (r *reader) changes(ctx context.Context) error {
	var since time.Time
	for _, p := range r.projects {
		if since.IsZero() || p.Since.Before(since) {
			since = p.Since
		}
	}
	_, err := r.pages(ctx, func(marker string) ([]domain.Server, string, error) {
		return r.cloud.ChangedServers(ctx, r.projectID, since.Add(-overlap), marker)
	})
	return err
}

// sweep reads all servers, and asks by id for those of tracked instances that are not among them.
func (r *reader) sweep(ctx context.Context, start time.Time, up bool) error {
	seen, err := r.pages(ctx, func(marker string) ([]domain.Server, string, error) {
		return r.cloud.AllServers(ctx, r.projectID, marker)
	})
	if err != nil {
		return err
	}
	unseen, err := r.polls.Unseen(ctx, r.ids(), start, seen)
	if err != nil {
		return err
	}
	return r.lookUp(ctx, unseen, up)
}

// pages reads a list to its end and writes what is new of each page. tracked are the ids of the servers that are.
func (r *reader) pages(ctx context.Context, read func(marker string) ([]domain.Server, string, error)) (tracked []string, err error) {
	marker := ""
	for {
		at, err := r.clock.Now(ctx)
		if err != nil {
			return nil, err
		}
		page, next, err := read(marker)
		if err != nil {
			return nil, err
		}
		found, err := r.apply(ctx, at, page)
		if err != nil {
			return nil, err
		}
		tracked = append(tracked, found...)
		if next == "" {
			return tracked, nil
		}
		marker = next
	}
}

// apply writes what is new of instances whose servers Nova showed when it was asked at a moment.
func (r *reader) apply(ctx context.Context, at time.Time, servers []domain.Server) (tracked []string, err error) {
	servers = slices.DeleteFunc(servers, func(s domain.Server) bool {
		_, ok := r.projects[s.ProjectID]
		return !ok
	})
	if len(servers) == 0 {
		return nil, nil
	}
	found, err := r.polls.OfServers(ctx, servers)
	if err != nil {
		return nil, err
	}
	var news []domain.Instance
	for _, i := range found {
		s, ok := serverOf(i, servers)
		if !ok {
			continue
		}
		tracked = append(tracked, s.ID)
		i.SeenAt = at
		if i.Found(s) {
			news = append(news, i)
		}
	}
	ordering.Explain(ctx, r.cloud, news)
	return tracked, errors.Join(r.change(ctx, news), r.removeUnwanted(ctx, servers))
}

// lookUpDoubtful asks by id for the servers of instances that Nova did not know last time, or that are unknown.
func (r *reader) lookUpDoubtful(ctx context.Context) error {
	doubtful, err := r.polls.Doubtful(ctx, r.ids(), mostLookUps)
	if err != nil {
		return err
	}
	return r.lookUp(ctx, doubtful, true)
}

// lookUp asks for servers by id, and writes down what is said of each. An error says nothing of a server.
func (r *reader) lookUp(ctx context.Context, doubtful []domain.Instance, up bool) error {
	for some := range slices.Chunk(doubtful, mostLookUps) {
		at, err := r.clock.Now(ctx)
		if err != nil {
			return err
		}
		if err := r.lookUpSome(ctx, at, some, up); err != nil {
			return err
		}
	}
	return nil
}

func (r *reader) lookUpSome(ctx context.Context, at time.Time, some []domain.Instance, up bool) error {
	known := make([]bool, len(some))
	errs := make([]error, len(some))
	var group errgroup.Group
	group.SetLimit(lookUps)
	for n := range some {
		group.Go(func() error {
			known[n], errs[n] = r.lookUpOne(ctx, at, &some[n], up)
			return nil
		})
	}
	_ = group.Wait() // the functions above never fail
	var news []domain.Instance
	for n, i := range some {
		if known[n] {
			i.SeenAt = at
			news = append(news, i)
		}
	}
	return errors.Join(again(errs), r.change(ctx, news))
}

// lookUpOne asks for one server; known is false when nothing can be said of it.
func (r *reader) lookUpOne(ctx context.Context, at time.Time, i *domain.Instance, up bool) (known bool, err error) {
	server, err := r.cloud.Server(ctx, i.ServerID)
	switch {
	case err == nil:
		i.Found(server)
		return true, nil
	case apperr.CodeOf(err) != apperr.NotFound:
		slog.WarnContext(ctx, "a server could not be looked up", "project_id", i.ProjectID, "instance_id", i.ID, "error", err)
		return false, err
	case !up:
		return false, nil // it may be in the cell that is down
	}
	return i.Missed(at, patience), nil
}

// serverOf finds the instance's server: the one that is written down, else the oldest that carries its tag, as whoever
// goes on with its order would. A deleted one is no reason to give up an instance that has none yet.
func serverOf(i domain.Instance, servers []domain.Server) (found domain.Server, ok bool) {
	for _, s := range servers {
		switch {
		case s.ProjectID != i.ProjectID:
		case i.ServerID != "":
			if s.ID == i.ServerID {
				return s, true
			}
		case hasTag(s, i.ID) && domain.StateOf(s.Status, "") != domain.InstanceDeleted:
			if !ok || s.CreatedAt.Before(found.CreatedAt) {
				found, ok = s, true
			}
		}
	}
	return found, ok
}

func hasTag(s domain.Server, id uuid.UUID) bool { return slices.Contains(s.Tags, id.String()) }
