package collectstats

import (
	"context"
	"log/slog"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/cloudfn/cloudfn/shared/domain"
)

// census is how servers are counted: as they stand, what changed, and how.
type census interface {
	Standings(ctx context.Context, projectID string, see func(domain.Standing)) error
	Changes(ctx context.Context, projectID string, since time.Time, see func(domain.History)) error
	Actions(ctx context.Context, serverID string) ([]domain.Action, error)
}

// tally is the hours that projects lack.
//
// All of them are counted from one look at the cloud: a server that has not changed since an hour was then as
// it stands now, and for the few that did change, Nova's action log is replayed. So an hour is counted as it
// was at its full hour, also when the tick comes minutes or days late.
type tally struct {
	now time.Time
	due map[string]wanted
}

type wanted struct {
	project domain.Project
	hours   []time.Time // oldest first
}

const (
	overlap        = 2 * time.Minute // Nova's clock may differ from the database's
	actionRequests = 8               // at once
)

func newTally(now time.Time) *tally { return &tally{now: now, due: map[string]wanted{}} }

func (t *tally) want(p domain.Project, hour time.Time) {
	w := t.due[p.ID]
	w.project, w.hours = p, append(w.hours, hour)
	t.due[p.ID] = w
}

func (t *tally) empty() bool { return len(t.due) == 0 }

func (t *tally) projects() []domain.Project {
	out := make([]domain.Project, 0, len(t.due))
	for _, w := range t.due {
		out = append(out, w.project)
	}
	return out
}

// only is the part of the tally that is one project's.
func (t *tally) only(p domain.Project) *tally {
	return &tally{now: t.now, due: map[string]wanted{p.ID: t.due[p.ID]}}
}

func (t *tally) oldest() time.Time {
	var oldest time.Time
	for _, w := range t.due {
		if oldest.IsZero() || w.hours[0].Before(oldest) {
			oldest = w.hours[0]
		}
	}
	return oldest
}

// count reads the cloud (projectID "") or one project, and counts every hour that is due. It gives all counts
// of a project's hour or none: a part of the cloud that does not answer makes the whole fail.
func (t *tally) count(ctx context.Context, cloud census, projectID string) ([]domain.HourCount, error) {
	standing := map[string]domain.Standing{}
	err := cloud.Standings(ctx, projectID, func(s domain.Standing) {
		if _, ok := t.due[s.ProjectID]; ok {
			standing[s.ServerID] = s
		}
	})
	if err != nil {
		return nil, err
	}
	// Asked for after the standings, so that a server that changed while they were read is among these.
	changed, err := t.changes(ctx, cloud, projectID)
	if err != nil {
		return nil, err
	}
	for _, list := range changed {
		for _, h := range list {
			delete(standing, h.ServerID)
		}
	}
	steady := map[string]map[domain.VMState]int{}
	for _, s := range standing {
		if steady[s.ProjectID] == nil {
			steady[s.ProjectID] = map[domain.VMState]int{}
		}
		steady[s.ProjectID][s.State]++
	}
	return t.sum(ctx, steady, changed), nil
}

// changes lists, by project, the servers that changed since the oldest hour that is due, with their actions.
func (t *tally) changes(ctx context.Context, cloud census, projectID string) (map[string][]*domain.History, error) {
	oldest := t.oldest()
	changed := map[string][]*domain.History{}
	var replayed []*domain.History
	err := cloud.Changes(ctx, projectID, oldest.Add(-overlap), func(h domain.History) {
		if _, ok := t.due[h.ProjectID]; !ok {
			return
		}
		changed[h.ProjectID] = append(changed[h.ProjectID], &h)
		if h.Deleted.IsZero() || h.Deleted.After(oldest) {
			replayed = append(replayed, &h)
		}
	})
	if err != nil {
		return nil, err
	}
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(actionRequests)
	for _, h := range replayed {
		group.Go(func() (err error) {
			h.Actions, err = cloud.Actions(ctx, h.ServerID)
			return err
		})
	}
	return changed, group.Wait()
}

func (t *tally) sum(ctx context.Context, steady map[string]map[domain.VMState]int, changed map[string][]*domain.History) []domain.HourCount {
	var counts []domain.HourCount
	for id, w := range t.due {
		for _, hour := range w.hours {
			c := domain.HourCount{ProjectID: id, DomainID: w.project.DomainID, Hour: hour, Source: domain.SourceAt(hour, t.now)}
			for state, n := range steady[id] {
				c.AddMany(state, n)
			}
			unclear := slices.IndexFunc(changed[id], func(h *domain.History) bool {
				state, known := h.StateAt(hour)
				c.Add(state)
				return !known
			})
			if unclear >= 0 {
				slog.WarnContext(ctx, "an hour cannot be known: it stays missing", "project_id", id, "hour", hour,
					"server_id", changed[id][unclear].ServerID)
				continue
			}
			counts = append(counts, c)
		}
	}
	return counts
}
