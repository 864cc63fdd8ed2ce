package collectstats

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/due"
)

// serverReader is how servers are counted: as they stand, what changed, and how.
type serverReader interface {
	CurrentServers(ctx context.Context, projectID string, see func(domain.CurrentServer)) error
	Changes(ctx context.Context, projectID string, since time.Time, see func(domain.History)) error
	CellsUp(ctx context.Context, projectID string) error
	Actions(ctx context.Context, serverID string) ([]domain.LoggedAction, error)
}

// counter holds the hours that projects lack, or have with undecided servers.
//
// All of them are counted from one reading of the cloud: a server that has not changed since an hour was then as
// it stands now, and for the few that did change, Nova's action log is replayed. So an hour is counted as it
// was at its full hour, also when the tick comes minutes or days late.
type counter struct {
	now     time.Time
	began   time.Time
	rows    map[string][]*entry // by project
	changed map[string]bool     // the servers that changed since the oldest hour
	waiting []*change
	ready   []*entry
	save    func(context.Context, []*entry) error
}

// entry is one hour of a project while it is counted.
type entry struct {
	domain.HourCount
	// the undecided servers of the stored row; nil when the hour has no row yet, and all servers are counted
	before  map[string]bool
	pending int  // servers whose log has not been read yet
	skipped bool // some logs were not read
}

// change is a server whose log decides rows.
type change struct {
	domain.History
	rows    []*entry // newest first
	skipped bool     // its log was not read
}

const (
	overlap        = 2 * time.Minute     // Nova's clock may differ from the database's
	actionRequests = 8                   // concurrently
	savedEach      = 32 * actionRequests // logs
	rowsPerSave    = 500                 // rows
	// Of an event's time this much is kept for storing what was counted, or half of what is left.
	reserve = 20 * time.Second
)

func newCounter(now time.Time, save func(context.Context, []*entry) error) *counter {
	return &counter{now: now, began: time.Now(), rows: map[string][]*entry{}, changed: map[string]bool{}, save: save}
}

func (t *counter) add(r *entry) { t.rows[r.ProjectID] = append(t.rows[r.ProjectID], r) }

func (t *counter) empty() bool { return len(t.rows) == 0 }

// of is the part of the counter that is one project's.
func (t *counter) of(projectID string) *counter {
	one := newCounter(t.now, t.save)
	one.rows[projectID] = t.rows[projectID]
	return one
}

func (t *counter) oldest() time.Time {
	oldest := t.now
	for _, rows := range t.rows {
		for _, r := range rows {
			if r.Hour.Before(oldest) {
				oldest = r.Hour
			}
		}
	}
	return oldest
}

// count counts every row from the current servers, those of the whole cloud (projectID "") or of one project, and
// stores each as soon as it is complete. It fails when a part of the cloud does not answer.
func (t *counter) count(ctx context.Context, cloud serverReader, projectID string, current *currentServers) error {
	since := t.oldest().Add(-time.Hour) // what was launched in the oldest hour has changed since
	if current.at.Before(since) {
		since = current.at
	}
	if err := t.read(ctx, cloud, projectID, since); err != nil {
		return err
	}
	t.addUnchanged(current)
	return t.resolve(ctx, cloud)
}

// read reads the servers that changed, after the current ones, so that one that changed while they were read is among
// these.
func (t *counter) read(ctx context.Context, cloud serverReader, projectID string, since time.Time) error {
	for _, rows := range t.rows {
		slices.SortFunc(rows, func(a, b *entry) int { return b.Hour.Compare(a.Hour) })
	}
	if err := cloud.Changes(ctx, projectID, since.Add(-overlap), t.addChanged); err != nil {
		return err
	}
	// A list leaves out the servers of a cell that is down, without saying so; one may have gone down meanwhile.
	return cloud.CellsUp(ctx, projectID)
}

// addChanged counts a server that changed in the rows that need no log for it, and has it wait for its log for the
// others.
func (t *counter) addChanged(h domain.History) {
	if t.rows[h.ProjectID] == nil || t.changed[h.ServerID] {
		return
	}
	t.changed[h.ServerID] = true
	c := &change{History: h}
	for _, r := range t.rows[h.ProjectID] {
		if r.before == nil { // a check for undecided servers leaves launched as it is stored
			r.AddCreated(h.Created)
		}
		switch {
		case r.before != nil && !r.before[h.ServerID]: // it was decided before
		case h.NeedsLog(r.Hour):
			c.rows = append(c.rows, r)
			r.pending++
		default:
			state, _ := h.StateAt(r.Hour)
			r.Add(state)
		}
	}
	if len(c.rows) > 0 {
		t.waiting = append(t.waiting, c)
	}
}

// addUnchanged counts the servers that have not changed since the oldest hour.
func (t *counter) addUnchanged(current *currentServers) {
	type kind struct {
		project string
		state   domain.VMState
	}
	unchanged := map[kind]int{}
	for _, s := range current.servers {
		switch {
		case t.changed[s.ServerID]:
		case s.Created.IsZero():
			unchanged[kind{s.ProjectID, s.State}]++
		default: // Nova does not list it as changed before it has written to it once
			t.addChanged(domain.History{
				ServerID: s.ServerID, ProjectID: s.ProjectID, Created: s.Created, Updated: s.Created, State: s.State,
			})
		}
	}
	for k, n := range unchanged {
		for _, r := range t.rows[k.project] {
			r.AddMany(k.state, n)
		}
	}
}

// resolve reads the logs that rows wait for, those for the newest hours first, and stores rows as they are complete.
// When the event's time is nearly up, or Nova does not answer, it stores the other rows with their undecided servers.
func (t *counter) resolve(ctx context.Context, cloud serverReader) error {
	for _, rows := range t.rows {
		for _, r := range rows {
			t.complete(r)
		}
	}
	if err := t.flush(ctx); err != nil {
		return err
	}
	slices.SortStableFunc(t.waiting, func(a, b *change) int {
		return cmp.Or(b.rows[0].Hour.Compare(a.rows[0].Hour), cmp.Compare(a.ProjectID, b.ProjectID))
	})
	reading, cancel := keepReserve(ctx)
	defer cancel()
	var failed error
	for chunk := range slices.Chunk(t.waiting, savedEach) {
		if failed == nil {
			failed = readLogs(reading, cloud, chunk)
		} else {
			skip(chunk)
		}
		for _, c := range chunk {
			t.decide(c)
		}
		if err := t.flush(ctx); err != nil {
			return err
		}
	}
	if reading.Err() != nil && ctx.Err() == nil {
		slog.InfoContext(ctx, "the time is up before all logs are read; the next event continues",
			"servers", len(t.waiting))
		return nil
	}
	return failed
}

// keepReserve ends before ctx does, by what storing the rest may take.
func keepReserve(ctx context.Context) (context.Context, context.CancelFunc) {
	deadline, ok := ctx.Deadline()
	if !ok {
		return context.WithCancel(ctx)
	}
	return context.WithDeadline(ctx, deadline.Add(-min(reserve, time.Until(deadline)/2)))
}

// readLogs reads the logs of servers. A server whose log cannot be read stays undecided. It fails when the time is up,
// or Nova answers for none of several; then the servers without an answer are skipped.
func readLogs(ctx context.Context, cloud serverReader, changes []*change) error {
	errs := make([]error, len(changes))
	var group errgroup.Group
	group.SetLimit(actionRequests)
	for i, c := range changes {
		group.Go(func() error {
			if errs[i] = ctx.Err(); errs[i] == nil {
				c.Actions, errs[i] = cloud.Actions(ctx, c.ServerID)
			}
			return nil
		})
	}
	_ = group.Wait() // the functions above never fail
	i := slices.IndexFunc(errs, func(err error) bool { return err != nil })
	if i < 0 {
		return nil
	}
	answered := slices.ContainsFunc(errs, func(err error) bool { return !apperr.Retryable(err) })
	if ctx.Err() == nil && (answered || len(changes) < actionRequests) {
		slog.WarnContext(ctx, "a server's log cannot be read", "server_id", changes[i].ServerID, "error", errs[i])
		return nil
	}
	for i, c := range changes {
		c.skipped = errs[i] != nil
	}
	return errs[i]
}

func skip(changes []*change) {
	for _, c := range changes {
		c.skipped = true
	}
}

// decide counts a server in the rows that waited for its log.
func (t *counter) decide(c *change) {
	for _, r := range c.rows {
		state, known := c.StateAt(r.Hour)
		switch {
		case len(c.Actions) == 0: // also of a server that Nova has not handed to a cell yet
			r.Undecided = append(r.Undecided, c.ServerID)
		case known:
			r.Add(state)
		default:
			r.Undecided = append(r.Undecided, c.ServerID)
		}
		r.skipped = r.skipped || c.skipped
		r.pending--
		t.complete(r)
	}
	c.Actions, c.rows = nil, nil
}

func (t *counter) complete(r *entry) {
	if r.pending == 0 {
		t.ready = append(t.ready, r)
	}
}

// flush stores the rows that are complete.
func (t *counter) flush(ctx context.Context) error {
	now := t.now.Add(time.Since(t.began))
	for _, r := range t.ready {
		r.Schedule(now)
		if r.skipped {
			r.Recheck, r.Settled = 0, false
		}
		if n := len(r.Undecided); n > 0 && r.Settled {
			slog.WarnContext(ctx, "Nova's log does not decide the state of servers at an hour",
				"project_id", r.ProjectID,
				"hour", r.Hour, "servers", n, "server_id", r.Undecided[0])
		}
	}
	ready := t.ready
	t.ready = nil
	for part := range slices.Chunk(ready, rowsPerSave) { // what is stored stays so, should the time be up
		if err := t.save(ctx, part); err != nil {
			return err
		}
	}
	return nil
}

// recheckDue checks undecided servers again: their logs may be whole now. claimed is false when another replica does
// it.
func (s service) recheckDue(ctx context.Context, now, slot time.Time) (claimed bool, err error) {
	claim, err := s.jobs.Claim(ctx, jobKind, recheckKey, s.claim)
	if err != nil || !claim.Acquired {
		return false, err
	}
	err = joined(s.recheck(ctx, now, slot), s.announce(ctx, slot))
	ctx, cancel := domain.Detached(ctx)
	defer cancel()
	if err != nil {
		return true, errors.Join(err, s.jobs.Fail(ctx, jobKind, recheckKey, claim, err))
	}
	return true, s.jobs.Release(ctx, jobKind, recheckKey, claim)
}

// recheck reads what changed since the oldest hour with undecided servers that is due, and the logs of these servers
// only. A server that Nova no longer has in its database is counted no more.
func (s service) recheck(ctx context.Context, now, slot time.Time) error {
	counts, err := s.stats.Undecided(ctx, s.window(slot)[0])
	if err != nil || len(counts) == 0 {
		return err
	}
	t := newCounter(now, s.refine(now))
	for _, c := range counts {
		t.add(undecided(c))
	}
	cloud, err := s.login(ctx)
	if err != nil {
		return err
	}
	if err = t.reread(ctx, cloud, ""); apperr.CodeOf(err) == apperr.Forbidden {
		return s.recheckEach(ctx, now, cloud, t, counts)
	}
	return err
}

// undecided is a stored row as it is counted again: only its undecided servers are.
func undecided(c domain.HourCount) *entry {
	r := &entry{HourCount: c, before: map[string]bool{}}
	for _, id := range c.Undecided {
		r.before[id] = true
	}
	r.Undecided = nil
	return r
}

// reread reads what changed and the logs that the rows wait for. A server of a cell that is down would pass for one
// that Nova no longer has, so all cells must answer before and after.
func (t *counter) reread(ctx context.Context, cloud serverReader, projectID string) error {
	if err := cloud.CellsUp(ctx, projectID); err != nil {
		return err
	}
	if err := t.read(ctx, cloud, projectID, t.oldest()); err != nil {
		return err
	}
	return t.resolve(ctx, cloud)
}

// recheckEach checks project by project. A project that cannot be read keeps its counts, and is tried with growing
// pauses.
func (s service) recheckEach(
	ctx context.Context, now time.Time, cloud session, t *counter, counts []domain.HourCount,
) error {
	var mu sync.Mutex
	read := map[string]bool{}
	err := s.eachProject(ctx, cloud, t, func(ctx context.Context, scoped session, id string, one *counter) error {
		err := one.reread(ctx, scoped, id)
		mu.Lock()
		defer mu.Unlock()
		read[id] = err == nil
		return err
	})
	if ctx.Err() != nil {
		return err // the next event continues
	}
	var kept []*entry
	for _, c := range counts {
		if r := undecided(c); !read[c.ProjectID] {
			r.Undecided = c.Undecided
			r.Schedule(now)
			kept = append(kept, r)
		}
	}
	return joined(err, s.refine(now)(ctx, kept))
}

// refine stores rows whose servers were checked again.
func (s service) refine(now time.Time) func(context.Context, []*entry) error {
	return func(ctx context.Context, rows []*entry) error {
		var refined []domain.Recount
		for _, r := range rows {
			if r.skipped && len(r.Undecided) == len(r.before) {
				continue // it stays due as it is
			}
			if len(r.Undecided) < len(r.before) && domain.SourceAt(r.Hour, now) == domain.Rebuilt {
				r.Source = domain.Rebuilt
			}
			refined = append(refined, domain.Recount{HourCount: r.HourCount, Before: len(r.before)})
		}
		if len(refined) == 0 {
			return nil
		}
		return s.stats.ReplaceCounts(ctx, refined)
	}
}

// scheduleRecheck has the clock wake this function when undecided servers are due for a check.
func (s service) scheduleRecheck(ctx context.Context) error {
	ctx, cancel := domain.Detached(ctx)
	defer cancel()
	now, err := s.db.Now(ctx)
	if err != nil {
		return err
	}
	slot := domain.Slot(now)
	_, at, err := s.stats.Due(ctx, jobKind, domain.HourKey(slot), s.window(slot)[0])
	if err != nil {
		return err
	}
	next := due.Next{In: at.Sub(now), Never: at.IsZero()}
	if next.In <= 0 { // nothing came of the check
		next.In = time.Minute
	}
	return s.jobs.Schedule(ctx, jobKind, recheckKey, next)
}
