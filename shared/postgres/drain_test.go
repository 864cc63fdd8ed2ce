package postgres_test

import (
	"errors"
	"testing"
	"time"

	"github.com/google/uuid"
	"golang.org/x/sync/errgroup"

	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/postgres"
)

func newDrain(node string) domain.Drain {
	return domain.Drain{
		ID: uuid.Must(uuid.NewV7()), Node: node, RequestedBy: "boss", Actor: &domain.Actor{UserID: "boss"},
		Parallel: 3, ServerTimeout: time.Minute,
	}
}

// TestDrains takes a drain from its start to its end, as watch-nodes does.
func TestDrains(t *testing.T) {
	t.Parallel()
	w, ctx := watch(t, "a"), t.Context()
	drains := postgres.Drains{DB: w.DB, EventProject: "ops"}
	made, created, err := drains.Create(ctx, newDrain("a"))
	if err != nil || !created || made.Status != domain.DrainRunning || made.Parallel != 3 || made.DueAt.IsZero() ||
		made.ServerTimeout != time.Minute || made.Actor.UserID != "boss" {
		t.Fatalf("%+v: %v", made, err)
	}
	if again, created, err := drains.Create(ctx, newDrain("a")); err != nil || created || again.ID != made.ID {
		t.Errorf("a second one: %+v %t: %v", again, created, err)
	}
	w.events("a", "running")
	if due, err := isDue(ctx, drains.Queue(), 0); err != nil || !due {
		t.Errorf("due: %t %v", due, err)
	}
	claimed, claim, err := take(ctx, drains.Queue(), long, 10)
	if err != nil || len(claimed) != 1 || !claim.Acquired || len(claimed[0].Servers) != 0 {
		t.Fatalf("%+v: %v", claimed, err)
	}
	if more, _, err := take(ctx, drains.Queue(), long, 10); err != nil || len(more) != 0 {
		t.Errorf("claimed twice: %+v: %v", more, err)
	}
	d := &claimed[0]
	begun := time.Now().UTC().Truncate(time.Microsecond)
	servers := []domain.DrainServer{
		{ServerID: "1", Name: "x", ProjectID: "p", Status: domain.DrainPending},
		{
			ServerID: "2", Name: "y", ProjectID: "q", Method: domain.LiveMigration, Status: domain.DrainMigrating,
			Attempts: 1, BegunAt: begun,
		},
	}
	noError(t, drains.SetServers(ctx, claim, *d, servers...))
	if started, err := drains.StartServer(ctx, claim, *d, servers[1]); err != nil || !started {
		t.Errorf("a server of a running drain: %t %v", started, err)
	}
	servers[1].Status, servers[1].Target, servers[1].EndedAt = domain.DrainMoved, "b", begun
	noError(t, drains.SetServers(ctx, claim, *d, servers[1]))
	if stored, err := drains.Get(ctx, d.ID); err != nil || len(stored.Servers) != 2 ||
		stored.Servers[0] != servers[0] || stored.Servers[1] != servers[1] {
		t.Errorf("stored: %+v: %v", stored, err)
	}
	if open, err := drains.Open(ctx); err != nil || len(open) != 1 ||
		open[0] != (domain.DrainProgress{Node: "a", Moved: 1, Unmoved: 1}) {
		t.Errorf("open: %+v: %v", open, err)
	}
	d.Attempts = 2
	if err := drains.Save(ctx, claim, d, long); err != nil || d.Attempts != 2 || d.Status != domain.DrainRunning {
		t.Fatalf("%+v: %v", d, err)
	}
	other := domain.NewClaim()
	if err := errors.Join(drains.SetServers(ctx, other, *d, servers...)); !errors.Is(err, domain.ErrFenced) {
		t.Errorf("servers under another claim: %v", err)
	}
	wantError(t, "saved under another claim", drains.Save(ctx, other, d, 0), domain.ErrFenced)
	w.events("a")
	d.Status, d.Reason, d.DueAt = domain.DrainDone, "one is locked", time.Time{}
	if err := drains.Save(ctx, claim, d, long); err != nil || d.EndedAt.IsZero() {
		t.Fatalf("%+v: %v", d, err)
	}
	wantValue(t, w.conn, "1 1 0 one is locked boss", "the event at the end: %q", `
select concat_ws(' ', data->>'moved', data->>'left', data->>'skipped', data->>'reason', data->'actor'->>'user_id')
from events where type = $1 and data->>'status' = 'done'`, domain.DrainEvent)
	w.events("a", "done")
	wantError(t, "saved after its end", drains.Save(ctx, claim, d, long), domain.ErrFenced)
	if due, err := isDue(ctx, drains.Queue(), time.Hour); err != nil || due {
		t.Errorf("due after its end: %t %v", due, err)
	}
}

// TestCancelDrain: a cancelled drain is due until what moves has moved, and no other begins before that.
func TestCancelDrain(t *testing.T) {
	t.Parallel()
	w, ctx := watch(t), t.Context()
	drains := postgres.Drains{DB: w.DB}
	if ok, err := drains.Cancel(ctx, "a"); err != nil || ok {
		t.Errorf("none runs: %t %v", ok, err)
	}
	first, _ := must2(drains.Create(ctx, newDrain("a")))(t)
	claimed, claim, err := take(ctx, drains.Queue(), long, 1)
	if err != nil || len(claimed) != 1 {
		t.Fatal(claimed, err)
	}
	if ok, err := drains.Cancel(ctx, "a"); err != nil || !ok {
		t.Errorf("%t %v", ok, err)
	}
	d := &claimed[0]
	moving := domain.DrainServer{ServerID: "1", Status: domain.DrainMigrating}
	if started, err := drains.StartServer(ctx, claim, *d, moving); err != nil || started {
		t.Errorf("a server of a cancelled drain: %t %v", started, err)
	}
	if stored, err := drains.Get(ctx, d.ID); err != nil || len(stored.Servers) != 0 {
		t.Errorf("it is stored: %+v: %v", stored.Servers, err)
	}
	wantError(t, "under another claim", errOf(drains.StartServer(ctx, domain.NewClaim(), *d, moving)), domain.ErrFenced)
	d.DueAt = d.DueAt.Add(time.Hour)
	if err := drains.Save(ctx, claim, d, 0); err != nil || d.Status != domain.DrainCancelled ||
		d.DueAt.After(d.UpdatedAt.Add(time.Minute)) {
		t.Errorf("saved by who did not know of it: %+v: %v", d, err)
	}
	wantCode(t, "another one meanwhile", errOf2(drains.Create(ctx, newDrain("a"))), apperr.Conflict)
	claimed, claim, err = take(ctx, drains.Queue(), long, 1)
	if err != nil || len(claimed) != 1 || claimed[0].Status != domain.DrainCancelled {
		t.Fatal(claimed, err)
	}
	claimed[0].DueAt = time.Time{}
	if err := drains.Save(ctx, claim, &claimed[0], 0); err != nil || claimed[0].Status != domain.DrainCancelled {
		t.Errorf("%+v: %v", claimed[0], err)
	}
	second, created, err := drains.Create(ctx, newDrain("a"))
	if err != nil || !created {
		t.Fatal(err)
	}
	must2(drains.Create(ctx, newDrain("b")))(t)
	last, err := drains.Last(ctx)
	if err != nil || len(last) != 2 || last["a"].ID != second.ID {
		t.Errorf("%+v: %v", last, err)
	}
	if last, err := drains.Last(ctx, "b", "c"); err != nil || len(last) != 1 || last["b"].Node != "b" {
		t.Errorf("%+v: %v", last, err)
	}
	w.exec("update drains set ended_at = now() - interval '1 year' where ended_at is not null")
	noError(t, drains.Retire(ctx, time.Hour))
	wantCode(t, "the old one", errOf(drains.Get(ctx, first.ID)), apperr.NotFound)
	noError(t, w.Delete(ctx, "a"))
	wantCode(t, "of a deleted host", errOf(drains.Get(ctx, second.ID)), apperr.NotFound)
}

// TestOneAutomaticDrain: of automatic drains one runs at a time, however many replicas begin some concurrently. Those
// of admins do not count.
func TestOneAutomaticDrain(t *testing.T) {
	t.Parallel()
	w, ctx := watch(t, "a", "b", "c", "d"), t.Context()
	drains := postgres.Drains{DB: w.DB, EventProject: "ops"}
	must2(drains.Create(ctx, newDrain("d")))(t)
	errs := make([]error, 3)
	var all errgroup.Group
	for i, node := range []string{"a", "b", "c"} {
		all.Go(func() error {
			one := newDrain(node)
			one.IsAutomatic = true
			_, _, errs[i] = drains.Create(ctx, one)
			return nil
		})
	}
	_ = all.Wait()
	refused := 0
	for _, err := range errs {
		if apperr.CodeOf(err) == apperr.Conflict {
			refused++
		} else if err != nil {
			t.Error(err)
		}
	}
	open, err := drains.Open(ctx)
	if refused != 2 || err != nil || len(open) != 2 || !open[0].IsAutomatic || open[1].IsAutomatic {
		t.Errorf("%d are refused, open are %+v: %v", refused, open, err)
	}
}
