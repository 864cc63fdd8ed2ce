package pollinstances

import (
	"context"
	"errors"
	"log/slog"
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
	overlap     = 2 * time.Minute // Nova's clock may differ from the database's
	cellTimeout = 10 * time.Second
	// Reading all servers of a large cloud takes minutes: each event does this much of it, so that it reads changes as
	// often as ever.
	scanTime = 45 * time.Second
)

// reader reads the servers of one project, or of the whole cloud.
type reader struct {
	*event
	list     domain.Poll // what is read; its ProjectID is "" for the whole cloud
	in       string      // the project of the session; "" is the account's own
	projects map[string]domain.Poll
	cloud    session

	requestedAt time.Time // by this process's clock
	responded   bool      // a page came
	changed     bool      // what changed was read
	start       time.Time // what changed before is read, but of stale projects
	broken      bool      // Nova fails over what changed
	up          bool      // all cells responded
	hasScanned  bool      // all servers were read
	since       time.Time // what changed before is known when all servers were read
	err         error
}

func newReader(e *event, list domain.Poll, in string, projects []domain.Poll) *reader {
	r := &reader{event: e, list: list, in: in, projects: map[string]domain.Poll{}}
	for _, p := range projects {
		r.projects[p.ProjectID] = p
	}
	return r
}

// use calls do with a session.
func (r *reader) use(ctx context.Context, do func() error) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if r.requestedAt.IsZero() {
		r.requestedAt = time.Now()
	}
	return r.event.cloud.use(ctx, r.in, func(cloud session) error {
		r.cloud = cloud
		return do()
	})
}

// spared reports whether an attempt that ended with the event says nothing of Nova: it responded, or had little time
// to. An end of ours says nothing either.
func (r *reader) spared(ended error) bool {
	return errors.Is(ended, context.Canceled) || r.responded || r.requestedAt.IsZero() ||
		time.Since(r.requestedAt) < r.leastWait
}

// stale reports whether the project's changes were not read for so long that reading all of its servers takes less.
func (r *reader) stale(p domain.Poll) bool { return p.Since.Before(r.start.Add(-r.full)) }

// begin reads what changed since the last time. A project over whose changes Nova fails is read as a whole: it has
// deleted servers in it, and one that was deleted in the middle of its creation may lack its flavor, over which
// the list is a 500 for as long as that server is new.
func (r *reader) begin(ctx context.Context) (err error) {
	if r.start, err = r.db.Now(ctx); err != nil {
		return err
	}
	var since time.Time
	for _, p := range r.projects {
		if !r.stale(p) && (since.IsZero() || p.Since.Before(since)) {
			since = p.Since
		}
	}
	if since.IsZero() {
		return nil
	}
	err = r.changes(ctx, since)
	r.changed = err == nil
	if r.broken = apperr.CodeOf(err) == apperr.BadGateway && r.list.ProjectID != ""; r.broken {
		slog.WarnContext(ctx, "nova cannot say what changed: all servers are read",
			"project_id", r.list.ProjectID, "error", err)
		return nil
	}
	return err
}

// complete reads all servers when that is due. While a cell of Nova is down all servers are read each time, and
// what changes there meanwhile when it is back.
func (r *reader) complete(ctx context.Context, up bool) error {
	r.up = up // it was read after the changes: the cells were up while they were read
	if !r.broken && up && r.list.ScanMarker == "" && !r.fullDue() {
		return r.lookUpUncertain(ctx)
	}
	err := r.scan(ctx)
	if err != nil && ctx.Err() != nil && r.responded {
		return nil // what changed was read, and the next event continues with the rest
	}
	return err
}

func (r *reader) fullDue() bool {
	uncertain := 0
	for _, p := range r.projects {
		if uncertain += p.Uncertain; uncertain > mostLookUps || p.FullAt.Before(r.start.Add(-r.full)) || r.stale(p) {
			return true
		}
	}
	return false
}

func (r *reader) cellsUp(ctx context.Context) bool {
	ctx, cancel := context.WithTimeout(ctx, cellTimeout)
	defer cancel()
	err := r.cloud.CellsUp(ctx, r.list.ProjectID)
	if err != nil {
		slog.WarnContext(ctx, "the cells of nova could not be checked: no server counts as deleted",
			"project_id", r.list.ProjectID, "error", err)
	}
	return err == nil
}

// result is how far each project was read.
func (r *reader) result() []domain.Poll {
	var read []domain.Poll
	for _, id := range slices.Sorted(maps.Keys(r.projects)) {
		p := r.projects[id]
		if r.err == nil {
			p = r.advanced(p)
		}
		if r.list.ProjectID == p.ProjectID {
			p.ScanAt, p.ScanMarker = r.list.ScanAt, r.list.ScanMarker
		}
		read = append(read, p)
	}
	if r.list.ProjectID == "" {
		if r.err == nil {
			r.list.Succeeded()
		}
		read = append(read, r.list)
	}
	return read
}

func (r *reader) advanced(p domain.Poll) domain.Poll {
	switch {
	case r.up && !r.broken && !r.stale(p):
		p.Since = r.start
	case r.up && r.hasScanned:
		p.Since = r.since
	}
	if r.hasScanned {
		p.FullAt = r.list.FullAt
	}
	p.Succeeded()
	return p
}

// changes reads the servers that changed since the moment, page by page.
func (r *reader) changes(ctx context.Context, since time.Time) error {
	marker := ""
	for at := r.start; ; {
		page, next, err := r.cloud.ChangedServers(ctx, r.list.ProjectID, since.Add(-overlap), marker)
		if err != nil {
			return err
		}
		r.responded = true
		if _, err := r.apply(ctx, at, page); err != nil || next == "" {
			return err
		}
		marker = next
		if at, err = r.db.Now(ctx); err != nil {
			return err
		}
	}
}

// scan reads all servers, and by id those of tracked instances that are not among them. It stores
// its marker after each page, so that the next event resumes there.
func (r *reader) scan(ctx context.Context) error {
	if r.list.ScanMarker == "" {
		r.list.ScanAt = r.start
	}
	for end := time.Now().Add(scanTime); ; {
		more, err := r.scanPage(ctx)
		if apperr.CodeOf(err) == apperr.Invalid && r.list.ScanMarker != "" { // the server that it names is deleted
			r.list.ScanAt, r.list.ScanMarker, more, err = r.start, "", true, nil
		}
		if err != nil {
			return err
		}
		if !more {
			break
		}
		if err := r.polls.RecordScan(ctx, r.claim, r.list); err != nil || r.changed && time.Now().After(end) {
			return err
		}
	}
	missing, err := r.polls.ListMissing(ctx, slices.Sorted(maps.Keys(r.projects)), r.list.ScanAt)
	if err != nil {
		return err
	}
	if err := r.lookUp(ctx, missing, r.up); err != nil {
		return err
	}
	r.hasScanned, r.since, r.list.FullAt, r.list.ScanAt = true, r.list.ScanAt, r.list.ScanAt, time.Time{}
	return r.catchUp(ctx)
}

// catchUp reads what changed while all servers were read, when that took so long that they would be read again
// instead.
func (r *reader) catchUp(ctx context.Context) error {
	if !r.stale(domain.Poll{Since: r.since}) {
		return nil
	}
	if err := r.changes(ctx, r.since); err != nil {
		return err
	}
	if r.cellsUp(ctx) {
		r.since = r.start
	}
	return nil
}

func (r *reader) scanPage(ctx context.Context) (more bool, err error) {
	at, err := r.db.Now(ctx)
	if err != nil {
		return false, err
	}
	page, next, err := r.cloud.AllServers(ctx, r.list.ProjectID, r.list.ScanMarker)
	if err != nil {
		return false, err
	}
	r.responded = true
	unchanged, err := r.apply(ctx, at, page)
	if err != nil {
		return false, err
	}
	if len(unchanged) > 0 {
		err = r.polls.RecordUnchanged(ctx, unchanged, at)
	}
	if err != nil {
		return false, err
	}
	r.list.ScanMarker = next
	return next != "", nil
}

// apply stores the changes of instances by the servers that Nova listed at a moment, and returns the unchanged
// instances.
func (r *reader) apply(
	ctx context.Context, at time.Time, servers []domain.Server,
) (unchanged []domain.Instance, err error) {
	servers = slices.DeleteFunc(servers, func(s domain.Server) bool {
		_, ok := r.projects[s.ProjectID]
		return !ok
	})
	if len(servers) == 0 {
		return nil, nil
	}
	found, err := r.polls.ListByServers(ctx, servers)
	if err != nil {
		return nil, err
	}
	passed := r.passed(ctx, found, servers)
	var news []domain.Instance
	for _, i := range found {
		s, ok := serverOf(i, servers)
		if !ok || !r.mayAdopt(ctx, i, s) {
			continue
		}
		known := i.NovaAt
		if !i.Found(s) && i.NovaAt.Equal(known) {
			unchanged = append(unchanged, i)
			continue
		}
		i.SeenAt = at
		news = append(news, i)
	}
	lookup.Explain(ctx, r.cloud, news)
	return unchanged, errors.Join(r.changeAfter(ctx, news, passed), r.removeUnwanted(ctx, servers))
}

const (
	lookUps     = 8   // servers that are read by id concurrently
	mostLookUps = 100 // instances that are read by id at each event; when more are in doubt, all are read
)

// lookUpUncertain reads by id the servers of instances that Nova did not know last time, or that are unknown.
func (r *reader) lookUpUncertain(ctx context.Context) error {
	hasUncertain := func(p domain.Poll) bool { return p.Uncertain > 0 }
	if !slices.ContainsFunc(slices.Collect(maps.Values(r.projects)), hasUncertain) {
		return nil
	}
	uncertain, err := r.polls.ListUncertain(ctx, slices.Sorted(maps.Keys(r.projects)), mostLookUps)
	if err != nil {
		return err
	}
	return r.lookUp(ctx, uncertain, true)
}

// lookUp reads servers by id, and stores what Nova says of each. An error leaves the instance as it is.
func (r *reader) lookUp(ctx context.Context, uncertain []domain.Instance, up bool) error {
	for some := range slices.Chunk(uncertain, mostLookUps) {
		at, err := r.db.Now(ctx)
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
	return errors.Join(retryable(errs), r.change(ctx, news))
}

// lookUpOne reads one server; known is false when nothing can be said of it.
func (r *reader) lookUpOne(ctx context.Context, at time.Time, i *domain.Instance, up bool) (known bool, err error) {
	server, err := r.cloud.Server(ctx, i.ServerID)
	switch {
	case err == nil:
		i.Found(server)
		return true, nil
	case apperr.CodeOf(err) != apperr.NotFound:
		slog.WarnContext(ctx, "a server could not be looked up", "project_id", i.ProjectID, "instance_id", i.ID,
			"error", err)
		return false, err
	case !up:
		return false, nil // it may be in the cell that is down
	}
	return i.Missed(at), nil
}

// serverOf finds the instance's server: the stored one, or the one that OfServers chose for an instance without any.
func serverOf(i domain.Instance, servers []domain.Server) (found domain.Server, ok bool) {
	n := slices.IndexFunc(servers, func(s domain.Server) bool {
		return s.ProjectID == i.ProjectID && s.ID == i.ServerID
	})
	if n < 0 {
		return found, false
	}
	return servers[n], true
}

// Bounds for reading action logs. Each log is a call.
const (
	mostLogs     = 100 // at each event; beyond that, states in between are passed over
	parallelLogs = 8
)

// passed reads the action logs of servers that changed, and derives the states that their instances passed through
// since they were last observed, by the server's id. A log that cannot be read hides them: what Nova shows now is
// written all the same.
func (r *reader) passed(
	ctx context.Context, found []domain.Instance, servers []domain.Server,
) map[string][]domain.PassedState {
	var mu sync.Mutex
	passed, beyond := map[string][]domain.PassedState{}, 0
	var group errgroup.Group
	group.SetLimit(parallelLogs)
	for _, i := range found {
		s, ok := serverOf(i, servers)
		if !ok || !i.MayHavePassed(s) {
			continue
		}
		if r.logs.Add(1) > mostLogs {
			beyond++
			continue
		}
		group.Go(func() error {
			log, err := r.cloud.Actions(ctx, s.ID)
			if err != nil && apperr.CodeOf(err) != apperr.NotFound {
				slog.WarnContext(ctx, "an action log could not be read: states in between are passed over",
					"project_id", i.ProjectID, "instance_id", i.ID, "error", err)
			}
			mu.Lock()
			defer mu.Unlock()
			passed[s.ID] = i.PassedStates(s, log)
			return nil
		})
	}
	_ = group.Wait() // the functions above never fail
	if beyond > 0 {
		slog.WarnContext(ctx, "too many servers changed to read their action logs: states in between are passed over",
			"servers", beyond)
	}
	return passed
}
