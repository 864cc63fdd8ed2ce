package pollinstances

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/domain"
)

const (
	// Projects that are read one by one are claimed in shards. Each shard checks once whether all cells answer.
	shards    = 2  // concurrently
	shardSize = 32 // projects
	parallel  = 4  // projects of a shard that are read concurrently

	leastWait    = 70 * time.Second // Nova waits 60 s for a cell that hangs
	deletedAfter = time.Minute      // between the two lookups of a project that Keystone does not know
)

// round reads all that is due: the whole cloud together when Nova lets the account do that, else project by
// project, those first that were not read for the longest. When Nova fails over the list of the whole cloud, for
// which one broken server suffices, each project is read separately, too.
func (e *event) round(ctx context.Context) error {
	if err := e.polls.Prepare(ctx); err != nil {
		return err
	}
	alone, err := e.readCloud(ctx, nil)
	if !alone {
		return err
	}
	errs := make([]error, shards)
	var group errgroup.Group
	for n := range errs {
		group.Go(func() error {
			errs[n] = e.readDue(ctx)
			return nil
		})
	}
	_ = group.Wait() // the functions above never fail
	return errors.Join(errs...)
}

// readDue reads one shard after the other, until no project is due or the time is up; the next event continues then.
func (e *event) readDue(ctx context.Context) (first error) {
	for ctx.Err() == nil {
		due, err := e.polls.ClaimDue(ctx, e.claim, claimFor, e.began, shardSize)
		if err != nil || len(due) == 0 {
			return errors.Join(first, err)
		}
		e.held.add(due...)
		if err := e.readEach(ctx, due, false); first == nil {
			first = err
		}
	}
	return first
}

// readMoving reads what changed in the projects, but for those that are being read by someone.
func (e *event) readMoving(ctx context.Context, moving []string) error {
	alone, err := e.readCloud(ctx, moving)
	if !alone {
		return err
	}
	free, err := e.polls.ClaimSome(ctx, e.claim, claimFor, moving)
	if err != nil {
		return err
	}
	e.held.add(free...)
	return e.readEach(ctx, free, true)
}

// readCloud reads the list of the whole cloud. When only names projects, the others are skipped. alone reports whether
// each project has to be read separately.
func (e *event) readCloud(ctx context.Context, only []string) (alone bool, err error) {
	if e.each.has("") {
		return true, nil
	}
	cloud, mine, err := e.polls.ClaimCloud(ctx, e.claim, claimFor)
	if err != nil || !mine {
		return false, err
	}
	e.held.add(cloud)
	projects, err := e.polls.ListFollowed(ctx)
	if only != nil {
		projects = slices.DeleteFunc(projects, func(p domain.Poll) bool { return !slices.Contains(only, p.ProjectID) })
	}
	if err != nil || len(projects) == 0 {
		return false, errors.Join(err, e.release(ctx, ""))
	}
	r := newReader(e, cloud, "", projects)
	e.read(ctx, []*reader{r}, only != nil)
	switch apperr.CodeOf(r.err) {
	case apperr.Forbidden:
		slog.InfoContext(ctx, "the service account may not see the whole cloud: each project is read separately")
		e.each.add("")
	case apperr.BadGateway:
		slog.WarnContext(ctx, "nova cannot list the whole cloud: each project is read separately", "error", r.err)
	default:
		return false, e.finish(ctx, []*reader{r}, only != nil)
	}
	return true, e.release(ctx, "")
}

// readEach reads projects that are claimed, each separately: in a session of its own when the account may not see
// others'.
func (e *event) readEach(ctx context.Context, claimed []domain.Poll, quick bool) error {
	readers := make([]*reader, len(claimed))
	own := e.each.has("")
	for n, p := range claimed {
		in := ""
		if own {
			in = p.ProjectID
		}
		readers[n] = newReader(e, p, in, claimed[n:n+1])
	}
	e.read(ctx, readers, quick)
	return e.finish(ctx, readers, quick)
}

// read has the readers read what changed, checks whether all cells responded meanwhile, and has them do what follows
// from that, unless it is to be quick. A reader that fails keeps none of the others from reading.
func (e *event) read(ctx context.Context, readers []*reader, quick bool) {
	side := func(do func(*reader) error) {
		var group errgroup.Group
		group.SetLimit(parallel)
		for _, r := range readers {
			if r.err != nil {
				continue
			}
			group.Go(func() error {
				r.err = r.use(ctx, func() error { return do(r) })
				return nil
			})
		}
		_ = group.Wait() // the functions above never fail
	}
	side(func(r *reader) error { return r.begin(ctx) })
	if quick {
		return
	}
	up := cellsUp(ctx, readers)
	if ctx.Err() != nil {
		return // what changed was read, and the next event continues
	}
	side(func(r *reader) error { return r.complete(ctx, up) })
}

// cellsUp reports whether all cells of Nova answer; any project's session can read that. Nova's lists silently leave
// out a cell that does not.
func cellsUp(ctx context.Context, readers []*reader) bool {
	good := slices.DeleteFunc(slices.Clone(readers), func(r *reader) bool { return r.err != nil })
	for _, r := range good[:min(2, len(good))] {
		if r.cellsUp(ctx) {
			return true
		}
	}
	return false
}

// finish writes how far the readers came, and makes what they read free.
func (e *event) finish(ctx context.Context, readers []*reader, quick bool) error {
	ended := ctx.Err()
	ctx, cancel := domain.Detached(ctx)
	defer cancel()
	now, err := e.db.Now(ctx)
	if err != nil {
		return err
	}
	var read []domain.Poll
	var free []string
	errs := make([]error, len(readers))
	for n, r := range readers {
		e.held.remove(r.list.ProjectID)
		switch {
		case r.err != nil && ended != nil && r.spared(ended), r.err == nil && quick && r.list.FailingSince.IsZero():
			free = append(free, r.list.ProjectID)
		case r.err == nil:
			read = append(read, r.result()...)
		default:
			errs[n] = errors.Join(r.err, e.failed(ctx, now, r))
			read = append(read, r.result()...)
		}
	}
	if len(free) > 0 {
		err = e.polls.Release(ctx, e.claim, free...)
	}
	if len(read) > 0 {
		err = errors.Join(err, e.polls.RecordRead(ctx, e.claim, read))
	}
	return errors.Join(err, retryable(errs))
}

// failed notes that a list could not be read, and draws the conclusions: what could not be read for too long is
// unknown, and the instances of a project that is deleted are deleted.
func (e *event) failed(ctx context.Context, now time.Time, r *reader) error {
	level := slog.LevelError
	if !r.list.FailingSince.IsZero() {
		level = slog.LevelWarn // it was said at the first time
	}
	slog.Log(ctx, level, "servers could not be read",
		"project_id", r.list.ProjectID, "failing_since", r.list.FailingSince, "error", r.err)
	code := apperr.CodeOf(r.err)
	cannotEnter := r.in != "" && !errors.Is(r.err, errLogin) && (mayNotAct(r.err) || code == apperr.NotFound)
	r.list.Failed(now, cannotEnter)
	for id, p := range r.projects {
		p.Failed(now, cannotEnter)
		r.projects[id] = p
	}
	if cannotEnter {
		if isDeleted, err := e.deletedInKeystone(ctx, now, r); isDeleted || err != nil {
			return err
		}
	}
	return e.markUnknown(ctx, now, r.projects)
}

// deletedInKeystone deletes the instances of a project that Keystone does not know twice. An error of Keystone's, and
// that the account may not read projects, say nothing; nor does a project that is disabled.
func (e *event) deletedInKeystone(ctx context.Context, now time.Time, r *reader) (bool, error) {
	p := r.projects[r.in]
	defer func() { r.projects[r.in] = p }()
	err := e.cloud.use(ctx, "", func(cloud session) error { return cloud.CheckProject(ctx, p.ProjectID) })
	switch {
	case err == nil:
		p.GoneAt = time.Time{}
		return false, nil
	case apperr.CodeOf(err) != apperr.NotFound, errors.Is(err, errLogin):
		return false, nil
	case p.GoneAt.IsZero():
		p.GoneAt, p.NotBefore = now, now.Add(deletedAfter)
		return false, nil
	case now.Sub(p.GoneAt) < deletedAfter:
		return false, nil
	}
	living, err := e.polls.ListLiving(ctx, p.ProjectID)
	if err != nil {
		return true, err
	}
	slog.WarnContext(ctx, "a project was deleted in keystone: its instances count as deleted",
		"project_id", p.ProjectID, "instances", len(living))
	for n := range living {
		living[n].ProjectGone()
		living[n].SeenAt = now
	}
	return true, e.change(ctx, living)
}

// markUnknown marks instances as unknown whose projects could not be read for too long, and that no other function has
// observed meanwhile. Nova's last status is kept.
func (e *event) markUnknown(ctx context.Context, now time.Time, projects map[string]domain.Poll) error {
	long := now.Add(-e.unknownAfter)
	for _, id := range slices.Sorted(maps.Keys(projects)) {
		if !isUnreadable(projects[id], now, e.unknownAfter) {
			continue
		}
		stale, err := e.polls.ListStale(ctx, id, long)
		if err != nil {
			return err
		}
		for n := range stale {
			stale[n].State, stale[n].SeenAt = domain.InstanceUnknown, now
		}
		if err := e.change(ctx, stale); err != nil {
			return err
		}
	}
	return nil
}

// isUnreadable reports whether a project could not be read for so long that nothing is known of it. While a cell is
// down all is read, although not all is known.
func isUnreadable(p domain.Poll, now time.Time, after time.Duration) bool {
	long := now.Add(-after)
	return p.UnreachableFor(now, after) && !p.Since.After(long) && !p.FullAt.After(long)
}

// retryable returns the errors that make the sender retry the event: those that may not occur again, and that the
// service account cannot log in. The others were logged.
func retryable(errs []error) error {
	var list []error
	for _, err := range errs {
		// of thousands of projects three say enough
		if err != nil && (apperr.Retryable(err) || errors.Is(err, errLogin)) && len(list) < 3 {
			list = append(list, err)
		}
	}
	return errors.Join(list...)
}
