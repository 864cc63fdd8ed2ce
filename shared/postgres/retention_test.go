package postgres_test

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/postgres"
	"github.com/cloudfn/cloudfn/shared/testkit"
)

var kept = postgres.RetentionConfig{
	Orders: 90 * 24 * time.Hour, Instances: 90 * 24 * time.Hour,
	Stats: 366 * 24 * time.Hour,
}

const (
	tooOld = "90 days 1 second"
	notYet = "89 days 23 hours 59 minutes"
	anOld  = `insert into orders (project_id, id, domain_id, user_id, body_sha256, spec, status, updated_at, seq,
  claimed_until) values ('p1', $1, 'd', 'u', '', '{}', $2, now() - $3::interval, 1, $4)`
	anServer = `
insert into instances (project_id, id, order_id, position, name, server_id, state, problem, origin, connection_id,
  disconnected_at, updated_at, seq)
values ('p1', $1, $2, 0, 'n', $3, $4, $5, 'launched', $6, $7, now() - $8::interval, 1)`
)

// TestRetention: each row is deleted after its time and not before. Rows that must stay have a name that says why.
func TestRetention(t *testing.T) {
	t.Parallel()
	database := testkit.Database(t)
	a := aged{t, testkit.Connect(t, database), map[uuid.UUID]string{}}
	deleted, lone := domain.InstanceDeleted, uuid.NullUUID{}
	a.order("all deleted", "done", tooOld, nil, a.instance("deleted 1", deleted, tooOld, ""),
		a.instance("deleted 2", deleted, tooOld, ""))
	a.order("all refused", "failed", tooOld, nil, a.instance("refused", domain.InstanceError, tooOld, "refused"))
	a.order("its instances were taken by another", "done", tooOld, time.Now().Add(-time.Hour))
	a.order("disconnected", "done", tooOld, nil, a.instance("disconnected 1", domain.InstanceActive, tooOld,
		"disconnected"))
	a.instance("deleted 3", deleted, tooOld, "")(lone)
	a.instance("deleted after it was disconnected", deleted, tooOld, "through")(lone)
	a.instance("disconnected 2", domain.InstanceActive, tooOld, "disconnected")(lone)

	a.order("keep: not final", "running", tooOld, nil, a.instance("keep: its order is not final", deleted, tooOld, ""))
	a.order("keep: young", "done", notYet, nil, a.instance("keep: its order is young", deleted, tooOld, ""))
	a.order("keep: one was deleted later", "done", tooOld, nil, a.instance("keep: young 1", deleted, notYet, ""),
		a.instance("keep: its order stays", deleted, tooOld, ""))
	a.order("keep: one is there", "partial", tooOld, nil,
		a.instance("keep: stopped", domain.InstanceStopped, tooOld, ""),
		a.instance("keep: listed", deleted, tooOld, ""))
	a.order("keep: claimed", "done", tooOld, time.Now().Add(time.Hour),
		a.instance("keep: its order is claimed", deleted, tooOld, ""))
	a.order("keep: undecided", "done", tooOld, nil,
		a.instance("keep: Nova may have it", domain.InstanceRequested, tooOld, "undecided"))
	a.order("keep: counts", "done", tooOld, nil,
		a.instance("keep: counts for a quota 1", domain.InstanceActive, tooOld, "through"))
	a.instance("keep: young 2", deleted, notYet, "")(lone)
	a.instance("keep: unknown is not deleted", domain.InstanceUnknown, tooOld, "")(lone)
	a.instance("keep: counts for a quota 2", domain.InstanceActive, tooOld, "through")(lone)
	a.instance("keep: an action runs", deleted, tooOld, "")(lone)
	a.runs("keep: an action runs")

	store := postgres.Retention{DB: open(t, database), Config: kept}
	if done, err := store.DeleteUntil(t.Context(), time.Now()); done || err != nil || len(a.left()) != len(a.names) {
		t.Errorf("without time: done %v with %d of %d left: %v", done, len(a.left()), len(a.names), err)
	}
	noError(t, store.Run(t.Context()))
	want, got := map[string]bool{}, map[string]bool{}
	for _, name := range a.names {
		if strings.HasPrefix(name, "keep: ") {
			want[name] = true
		}
	}
	for _, name := range a.left() {
		got[name] = true
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	// Once an hour is often enough.
	a.instance("later", deleted, tooOld, "")(lone)
	if err := store.Run(t.Context()); err != nil || testkit.Scalar[int](t, a.conn,
		"select count(*)::int from jobs where kind = 'retention' and done_at is not null") != 1 {
		t.Errorf("a second time: %v", err)
	}
	if n := len(a.left()); n != len(want)+1 {
		t.Errorf("%d are left after the second time, want %d", n, len(want)+1)
	}
}

// TestRetentionDeletesDependents: with an order go its events, deliveries, streams, actions, deployments and callbacks.
// Then their ids are free, and a new resource with such an id has events from the first one on.
func TestRetentionDeletesDependents(t *testing.T) {
	t.Parallel()
	database := testkit.Database(t)
	db, conn := open(t, database), testkit.Connect(t, database)
	project := testkit.AddCallback(t, conn, "p1", "https://a.example", domain.CallbackVerified, "whsec_x", "")
	store, o, other := postgres.Orders{DB: db}, newOrder(2), newOrder(1)
	o.Callback = &domain.Callback{
		Most:      100,
		ProjectID: "p1", ID: uuid.New(), UserID: "u", URL: "https://b.example", OrderID: o.ID,
		Secret: []byte("x"),
	}
	for _, order := range []domain.Order{o, other} {
		place(t, store, order, long)
		i := order.Instances[0]
		gone := []domain.Instance{with(i, "s"+i.ID.String(), domain.InstanceDeleted)}
		if len(order.Instances) > 1 {
			gone = append(gone, refusedAs(order.Instances[1], "quota_exceeded"))
		}
		noError(t, change(t, store, gone))
		final := order
		final.Instances = gone
		noError(t, store.Finalize(t.Context(), finalStatus(final)))
		exec(t, conn, fmt.Sprintf(`
insert into deployments (id, project_id, instance_id, image, token_sha256, expires_at) values (gen_random_uuid(), 'p1',
  '%[1]s', 'i', '', now());
insert into connections (id, project_id, domain_id, user_id, kind, delegation_id, acts_as, actions, usable_by, status,
  expires_at)
values ('%[2]s', 'p1', 'd', 'u', 'trust', 'x', '{}', '{}', '{}', 'active', now());
insert into actions (project_id, id, connection_id, instance_id, user_id, verb, status) values ('p1', '%[3]s', '%[2]s',
  '%[1]s', 'u', 'stop', 'done');
insert into events (project_id, subject, seq, type, at, data) values ('p1', '%[3]s', 1, 'cloudfn.action.state.v1',
  now(), '{}')`, i.ID, uuid.New(), uuid.New()))
	}
	const rows = `
select 'orders', count(*) from orders union all select 'instances', count(*) from instances union all select 'events',
  count(*) from events
union all select 'deliveries', count(*) from deliveries union all select 'streams', count(*) from streams
  union all select 'actions', count(*) from actions
union all select 'deployments', count(*) from deployments union all select 'callbacks', count(*) from callbacks`
	exec(t, conn, fmt.Sprintf(`update orders set updated_at = now() - interval '91 days', claimed_until = null
  where id = '%[1]s'; update instances set updated_at = now() - interval '91 days' where order_id = '%[1]s'`, o.ID))
	before := testkit.Pairs(t, conn, rows)
	noError(t, postgres.Retention{DB: db, Config: kept}.Run(t.Context()))
	// What is left is the other order's, and the project's callback.
	want := map[string]int{
		"orders": 1, "instances": 1, "events": 5, "deliveries": 5, "streams": 3, "actions": 1,
		"deployments": 1, "callbacks": 1,
	}
	if diff := cmp.Diff(want, testkit.Pairs(t, conn, rows)); diff != "" {
		t.Errorf("before there were %v: %s", before, diff)
	}
	if claim, err := store.Place(t.Context(), other, long); err != nil || claim.Fresh {
		t.Errorf("the order that is kept is placed again: %+v %v", claim, err)
	}
	if claim, err := store.Place(t.Context(), o, long); err != nil || !claim.Fresh {
		t.Errorf("the id is not free: %+v %v", claim, err)
	}
	due := testkit.Scalar[int](t, conn, `
select count(*)::int from streams s where callback_id = $1 and s.stream = 'p1/' || $2 and head = 0 and tail = 1`, project, o.Instances[0].ID)
	if due != 1 {
		t.Error("the new instance with the same id has no event to deliver")
	}
}

// TestStatsRetention: hours go after their time, and projects that were last counted before it.
func TestStatsRetention(t *testing.T) {
	t.Parallel()
	database := testkit.Database(t)
	conn := testkit.Connect(t, database)
	exec(t, conn, `
insert into stats_hourly (project_id, hour, domain_id, running, total, by_status, source)
select p, date_trunc('hour', now() - interval '366 days', 'UTC') + n * interval '1 hour', 'd', 0, 0, '{}', 'sampled'
from generate_series(-3000, 2) n, unnest(array['gone', 'there']) p where p = 'there' or n <= 0;
insert into stats_projects (project_id, domain_id, first_hour, last_hour)
select project_id, 'd', min(hour), max(hour) from stats_hourly group by 1`)
	noError(t, (postgres.Retention{DB: open(t, database), Config: kept}).Run(t.Context()))
	if diff := cmp.Diff(map[string]int{"there": 2}, testkit.Pairs(t, conn,
		"select project_id, count(*) from stats_hourly group by 1")); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff(map[string]int{"there": 1}, testkit.Pairs(t, conn,
		"select project_id, count(*) from stats_projects group by 1")); diff != "" {
		t.Error(diff)
	}
}

// TestUnscannedObjectsAreForgotten: unexpected objects of a project, provider or region that nothing is declared in are
// forgotten a day after that was found, and those that a deletion has left when instances would be.
func TestUnscannedObjectsAreForgotten(t *testing.T) {
	t.Parallel()
	database := testkit.Database(t)
	conn, db := testkit.Connect(t, database), open(t, database)
	m := declare(t, postgres.Managed{DB: db}, newManaged("web")) // of p1
	for _, o := range []struct {
		project, name, provider, region string
		missed                          any
		isOrphan                        bool
	}{
		{"p1", "keep: it is scanned", m.Provider, "", "25 hours", false},
		{"p1", "of another provider", "other", "", "25 hours", false},
		{"p1", "of another region", m.Provider, "other", "25 hours", false},
		{"p2", "of a project without resources", m.Provider, "", "25 hours", false},
		{"p2", "keep: for less than a day", m.Provider, "", "23 hours", false},
		{"p2", "keep: since now", m.Provider, "", nil, false},
		{"p2", "keep: left by a deletion", m.Provider, "", "25 hours", true},
		{"p2", "left by a deletion long ago", m.Provider, "", tooOld, true},
	} {
		must(conn.Exec(t.Context(), `
insert into unexpected_objects (project_id, object_id, provider, region, name, is_orphan, found_at, missed_at)
values ($1, $2, $3, $4, '', $5, now() - interval '100 days', now() - $6::interval)`, o.project, o.name, o.provider,
			o.region, o.isOrphan, o.missed))(t)
	}
	store := postgres.Retention{DB: db, Config: kept}
	if done, err := store.DeleteUntil(t.Context(), time.Now().Add(time.Hour)); !done || err != nil {
		t.Fatalf("done %t, %v", done, err)
	}
	if diff := cmp.Diff(map[string]int{
		"keep: it is scanned": 1, "keep: for less than a day": 1, "keep: since now": 1, "keep: left by a deletion": 1,
	}, testkit.Pairs(t, conn, "select object_id, count(missed_at) from unexpected_objects group by 1")); diff != "" {
		t.Error(diff)
	}
}

// TestRetentionConcurrently: two run concurrently after one was killed in the middle. No order ever exists without its
// instances, and in the end all are deleted.
func TestRetentionConcurrently(t *testing.T) {
	t.Parallel()
	database := testkit.Database(t)
	conn, watch := testkit.Connect(t, database), testkit.Connect(t, database)
	exec(t, conn, `
insert into orders (project_id, id, domain_id, user_id, body_sha256, spec, status, updated_at)
select 'p' || n % 3, gen_random_uuid(), 'd', 'u', '', '{}', 'done', now() - interval '91 days' from generate_series(1,
  1500) n;
insert into instances (project_id, id, order_id, position, name, state, origin, updated_at)
select project_id, gen_random_uuid(), id, n, 'n', 'deleted', 'launched', now() - interval '91 days' from orders,
  generate_series(1, 4) n`)
	exec(t, conn, `begin; lock table actions in share mode`) // so that it stops in the middle of its first transaction
	r := postgres.Retention{DB: open(t, database), Config: kept}
	killed := make(chan error, 1)
	go func() { killed <- r.Run(t.Context()) }()
	testkit.Eventually(t, 5*time.Second, "it is in the middle, and is killed", func() bool {
		return testkit.Scalar[int](t, watch, `select count(pg_terminate_backend(pid))::int from pg_stat_activity
where datname = current_database() and wait_event_type = 'Lock'`) > 0
	})
	if err := <-killed; err == nil {
		t.Error("Run does not report that its connection was killed")
	}
	exec(t, conn, "rollback")
	wantValue(t, watch, 6000, "%d instances are left, want all", "select count(*)::int from instances")
	var both sync.WaitGroup
	for range 2 {
		both.Go(func() {
			// as two whose claims overlap
			if done, err := r.DeleteUntil(t.Context(), time.Now().Add(time.Minute)); err != nil || !done {
				t.Error(done, err)
			}
		})
	}
	both.Wait()
	if err := r.Run(t.Context()); err != nil { // what both passed over because the other had it
		t.Error(err)
	}
	wantValue(t, watch, 0, "%d are left",
		"select (select count(*) from orders)::int + (select count(*) from instances)::int")
}

// aged writes rows that are old, under names.
type aged struct {
	t     *testing.T
	conn  *pgx.Conn
	names map[uuid.UUID]string
}

func (a aged) exec(sql string, args ...any) {
	a.t.Helper()
	if _, err := a.conn.Exec(a.t.Context(), sql, args...); err != nil {
		a.t.Fatal(err)
	}
}

func (a aged) order(name, status, age string, claimed any, instances ...func(uuid.NullUUID)) {
	a.t.Helper()
	id := uuid.New()
	a.names[id] = name
	a.exec(anOld, id, status, age, claimed)
	for _, add := range instances {
		add(uuid.NullUUID{UUID: id, Valid: true})
	}
}

// instance gives what adds one to an order, or to none. more is one of "", "refused", "undecided", "disconnected",
// "through".
func (a aged) instance(name string, state domain.InstanceState, age, more string) func(uuid.NullUUID) {
	return func(order uuid.NullUUID) {
		a.t.Helper()
		id := uuid.New()
		a.names[id] = name
		var server, problem, connection, disconnected any = uuid.NewString(), nil, nil, nil
		switch more {
		case "refused":
			server, problem = nil, &domain.Problem{Code: "quota"}
		case "undecided":
			server = nil
		case "disconnected":
			disconnected = time.Now().Add(-time.Hour)
		case "through": // a connection, whose quota it counts for
			disconnected, connection = time.Now().Add(-time.Hour), uuid.New()
		}
		a.exec(anServer, id, order, server, state, problem, connection, disconnected, age)
	}
}

func (a aged) runs(name string) {
	a.t.Helper()
	a.exec(`
with c as (insert into connections (id, project_id, domain_id, user_id, kind, delegation_id, acts_as, actions,
  usable_by, status, expires_at)
           values (gen_random_uuid(), 'p1', 'd', 'u', 'trust', 'x', '{}', '{}', '{}', 'active', now()) returning id)
insert into actions (project_id, id, connection_id, instance_id, user_id, verb) select 'p1', gen_random_uuid(), id, $1,
  'u', 'stop' from c`, a.id(name))
}

func (a aged) id(name string) uuid.UUID {
	a.t.Helper()
	for id, n := range a.names {
		if n == name {
			return id
		}
	}
	a.t.Fatalf("nothing has the name %q", name)
	return uuid.Nil
}

func (a aged) left() (names []string) {
	a.t.Helper()
	rows, _ := a.conn.Query(a.t.Context(), "select id from orders union all select id from instances")
	ids, err := pgx.CollectRows(rows, pgx.RowTo[uuid.UUID])
	if err != nil {
		a.t.Fatal(err)
	}
	for _, id := range ids {
		names = append(names, a.names[id])
	}
	return names
}

// TestRetentionResumes: a walk over the final orders continues where the last one stopped, and begins again after its
// end. The orders before are those whose instances live.
func TestRetentionResumes(t *testing.T) {
	t.Parallel()
	database := testkit.Database(t)
	a := aged{t, testkit.Connect(t, database), map[uuid.UUID]string{}}
	a.order("before", "done", "100 days", nil, a.instance("deleted 1", domain.InstanceDeleted, tooOld, ""))
	a.order("after", "done", "95 days", nil, a.instance("deleted 2", domain.InstanceDeleted, tooOld, ""))
	a.exec(`insert into retention_markers (one, updated_at, project_id, order_id)
values (true, now() - interval '96 days', '', gen_random_uuid())`)
	store := postgres.Retention{DB: open(t, database), Config: kept}
	for _, want := range [][]string{{"before", "deleted 1"}, nil} {
		done, err := store.DeleteUntil(t.Context(), time.Now().Add(time.Hour))
		left := a.left()
		slices.Sort(left)
		if !done || err != nil || !slices.Equal(left, want) {
			t.Errorf("done %t, left %q, want %q: %v", done, left, want, err)
		}
	}
}

// TestRetentionStopsBetweenPages: what a walk has read is recorded, also when nothing of it could be deleted.
func TestRetentionStopsBetweenPages(t *testing.T) {
	t.Parallel()
	database := testkit.Database(t)
	conn := testkit.Connect(t, database)
	exec(t, conn, `
insert into orders (project_id, id, domain_id, user_id, body_sha256, spec, status, updated_at)
select 'p1', gen_random_uuid(), 'd', 'u', '', '{}', 'done', now() - interval '100 days' + n * interval '1 second'
from generate_series(1, 2001) n;
insert into instances (project_id, id, order_id, position, name, server_id, state, origin)
select project_id, gen_random_uuid(), id, 0, 'x', id, 'active', 'launched' from orders;
create table saved as select * from retention_markers;
create function save() returns trigger language plpgsql as $$ begin insert into saved select new.*; return new; end $$;
create trigger save before insert on retention_markers for each row execute function save()`)
	store := postgres.Retention{DB: open(t, database), Config: kept}
	if done, err := store.DeleteUntil(t.Context(), time.Now().Add(time.Hour)); !done || err != nil {
		t.Errorf("done %t: %v", done, err)
	}
	got := testkit.Scalar[int](t, conn, `select count(*)::int from orders o
where exists (select from saved s where (o.updated_at, o.project_id, o.id) <= (s.updated_at, s.project_id, s.order_id))`)
	if left := testkit.Scalar[int](t, conn, "select count(*)::int from retention_markers"); got != 2000 || left != 0 {
		t.Errorf("the marker was after %d orders, and %d are left", got, left)
	}
}
