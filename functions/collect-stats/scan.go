package collectstats

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/domain"
)

// currentServers are the servers as they were from a moment of the database's clock on.
type currentServers struct {
	at      time.Time
	servers []domain.CurrentServer
}

// listed keeps the current servers of the whole cloud from one event to the next when one event has no time for a
// scan: reading them is most of what a scan costs, and what changed since is read anyway.
type listed struct {
	mu sync.Mutex
	*currentServers
}

// listedFor is how long they are good for. A server that is deleted, and purged from Nova's database, within that
// time would be counted in hours that it did not see.
const listedFor = 30 * time.Minute

func (l *listed) get(now time.Time) *currentServers {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.currentServers != nil && now.Sub(l.at) < listedFor && !now.Before(l.at) {
		return l.currentServers
	}
	return nil
}

func (l *listed) set(s *currentServers) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.currentServers = s
}

// readCurrent reads the servers, those of the whole cloud (projectID "") or of one project.
func readCurrent(ctx context.Context, cloud serverReader, projectID string, now time.Time) (*currentServers, error) {
	found := &currentServers{at: now}
	at := map[string]int{} // a server that is launched while they are read is given twice
	err := cloud.CurrentServers(ctx, projectID, func(s domain.CurrentServer) {
		if i, twice := at[s.ServerID]; twice {
			found.servers[i] = s
			return
		}
		at[s.ServerID] = len(found.servers)
		found.servers = append(found.servers, s)
	})
	return found, err
}

// scan fills in the hours that projects lack.
type scan struct {
	service
	cloud    session
	projects []domain.Project
	known    map[string]map[time.Time]bool
	now      time.Time
	began    time.Time
	each     bool // Nova lets the account read project by project only
}

// count finds the hours that projects lack, up to slot, and fills them in: the newest hour of all projects first,
// because that is what users look at. unread says why projects could not be read.
func (s service) count(ctx context.Context, now, slot time.Time) (unread, err error) {
	w := scan{service: s, now: now, began: time.Now()}
	if w.cloud, err = s.login(ctx); err != nil {
		return nil, err
	}
	if w.projects, err = s.projects(ctx, w.cloud); err != nil {
		return nil, err
	}
	hours := s.window(slot)
	if err := s.stats.RecordProjects(ctx, w.projects, hours[0], slot); err != nil {
		return nil, err
	}
	if err := s.excuseGone(ctx, w.cloud, w.projects, hours[0], slot); err != nil {
		return nil, err
	}
	if w.known, err = s.stats.Known(ctx, hours[0]); err != nil {
		return nil, err
	}
	newest := len(hours) - 1
	unreadNewest, err := w.fill(ctx, w.due(hours[newest:]))
	if err != nil {
		return nil, err
	}
	unreadOlder, err := w.fill(ctx, w.due(hours[:newest]))
	if err != nil {
		return nil, err
	}
	s.listed.set(nil)
	return joined(unreadNewest, unreadOlder), nil
}

// clock is the database's clock, by what has passed since it was read.
func (w *scan) clock() time.Time { return w.now.Add(time.Since(w.began)) }

// due is what projects lack of the hours.
func (w *scan) due(hours []time.Time) *counter {
	t := newCounter(w.clock(), w.insert)
	for _, p := range w.projects {
		for _, h := range hours {
			if !w.known[p.ID][h] {
				count := domain.HourCount{
					ProjectID: p.ID, DomainID: p.DomainID, Hour: h, Source: domain.SourceAt(h, t.now),
				}
				t.add(&entry{HourCount: count})
			}
		}
	}
	return t
}

func (w *scan) insert(ctx context.Context, rows []*entry) error {
	counts := make([]domain.HourCount, len(rows))
	for i, r := range rows {
		counts[i] = r.HourCount
	}
	return w.stats.Insert(ctx, counts)
}

// fill counts the whole cloud together when Nova lets the account do that, else project by project.
func (w *scan) fill(ctx context.Context, due *counter) (unread, err error) {
	if due.empty() {
		return nil, nil
	}
	if w.each {
		return w.fillEach(ctx, due), nil
	}
	all := w.listed.get(due.now)
	if all == nil {
		all, err = readCurrent(ctx, w.cloud, "", due.now)
		if apperr.CodeOf(err) == apperr.Forbidden {
			w.each = true
			return w.fillEach(ctx, due), nil
		}
		if err != nil {
			return nil, err
		}
		w.listed.set(all)
	}
	return nil, due.count(ctx, w.cloud, "", all)
}

// fillEach counts every project with a session of its own. One that fails stays missing, the others do not.
func (w *scan) fillEach(ctx context.Context, due *counter) (unread error) {
	return w.eachProject(ctx, w.cloud, due, func(ctx context.Context, scoped session, id string, one *counter) error {
		found, err := readCurrent(ctx, scoped, id, w.clock())
		if err != nil {
			return err
		}
		return one.count(ctx, scoped, id, found)
	})
}

// eachProject runs work for each project of the counter, with a session in it. It returns why projects failed.
func (s service) eachProject(
	ctx context.Context, cloud session, due *counter, work func(context.Context, session, string, *counter) error,
) error {
	var mu sync.Mutex
	var errs []error
	var group errgroup.Group
	group.SetLimit(parallel)
	for id := range due.rows {
		group.Go(func() error {
			scoped, err := cloud.In(ctx, id)
			if err == nil {
				err = work(ctx, scoped, id, due.of(id))
			}
			if err != nil {
				err = s.excuseUnread(ctx, cloud, id, due.rows[id], err)
				mu.Lock()
				defer mu.Unlock()
				errs = append(errs, err)
			}
			return nil
		})
	}
	_ = group.Wait() // the functions above never fail
	return joined(errs...)
}

// window lists the hours that may still be filled in, the oldest first.
func (s service) window(slot time.Time) []time.Time {
	return domain.Hours(slot, int(s.backfill/time.Hour))
}

// projects are those of the domains that are served, as far as the allow lists let them in.
func (s service) projects(ctx context.Context, cloud session) ([]domain.Project, error) {
	domains := s.domains
	if len(domains) == 0 {
		domains = []string{""} // all
	}
	var out []domain.Project
	for _, id := range domains {
		found, err := cloud.Projects(ctx, id)
		if err != nil {
			return nil, err
		}
		for _, p := range found {
			if s.allows(p.ID, p.DomainID) {
				out = append(out, p)
			}
		}
	}
	return out, nil
}

// mostGone is how many projects one event looks up in Keystone; the next hour's event continues.
const mostGone = 100

// excuseGone stops expecting hours of projects that were deleted before these were counted: no one can count them any
// more, and the cloud's sum would lack them forever. A project that Keystone still has, such as a disabled one, stays
// expected.
func (s service) excuseGone(ctx context.Context, cloud session, listed []domain.Project, first, last time.Time) error {
	lacking, err := s.stats.ListMissing(ctx, first, last)
	if err != nil {
		return err
	}
	unlisted := slices.DeleteFunc(lacking, func(id string) bool {
		return slices.ContainsFunc(listed, func(p domain.Project) bool { return p.ID == id })
	})
	for _, id := range unlisted[:min(len(unlisted), mostGone)] {
		if _, err := s.excuse(ctx, cloud, id, first, last); err != nil {
			return err
		}
	}
	return nil
}

// excuse stops expecting those hours of a project that it was not counted for, if Keystone reports that it is deleted.
func (s service) excuse(ctx context.Context, cloud session, id string, first, last time.Time) (isGone bool, err error) {
	if err := cloud.CheckProject(ctx, id); apperr.CodeOf(err) != apperr.NotFound {
		return false, nil // Keystone has it, is unavailable, or does not let the account read it
	}
	if err := s.stats.StopExpecting(ctx, id, first, last); err != nil {
		return false, err
	}
	slog.InfoContext(ctx, "a deleted project is not expected in hours that it was not counted for", "project_id", id)
	return true, nil
}

// excuseUnread does that for a project that was deleted after it was listed. Other projects stay unread: err is why.
func (s service) excuseUnread(ctx context.Context, cloud session, id string, due []*entry, err error) error {
	byHour := func(a, b *entry) int { return a.Hour.Compare(b.Hour) }
	isGone, failed := s.excuse(ctx, cloud, id, slices.MinFunc(due, byHour).Hour, slices.MaxFunc(due, byHour).Hour)
	if isGone {
		return nil
	}
	slog.ErrorContext(ctx, "a project cannot be counted: its hours stay missing", "project_id", id, "error", err)
	return errors.Join(err, failed)
}
