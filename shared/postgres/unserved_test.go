package postgres_test

import (
	"context"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"

	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/postgres"
	"github.com/cloudfn/cloudfn/shared/testkit"
)

const unservedRows = `
insert into orders (project_id, id, domain_id, user_id, body_sha256, spec, status)
values ('p1', gen_random_uuid(), 'd', 'u', '', '{"on_failure": "rollback"}', 'running');
insert into instances (project_id, id, position, name, state, origin, server_id)
values ('p1', gen_random_uuid(), 0, 'x', 'building', 'connected', gen_random_uuid()::text);
insert into polls (project_id, since, full_at) values ('p1', now(), now());
insert into callbacks (project_id, id, user_id, url, status, secret)
values ('p1', gen_random_uuid(), 'u', 'https://a.example.com', 'pending', 's');
insert into connections (project_id, id, domain_id, user_id, kind, delegation_id, acts_as, actions, usable_by, status,
                         expires_at)
values ('p1', gen_random_uuid(), 'd', 'u', 'trust', 't', '{}', '{start}', '{}', 'active', now() + interval '1 day');
insert into leases (project_id, id, domain_id, user_id, name, status, starts_at, ends_at, on_end, due_at)
values ('p1', gen_random_uuid(), 'd', 'u', 'x', 'pending', now(), now() + interval '2 hours', 'shelve', now()),
       ('p1', gen_random_uuid(), 'd', 'u', 'x', 'ending', now(), now() + interval '2 hours', 'shelve', now());
insert into managed_projects (project_id, domain_id, due_at) values ('p1', 'd', now());
insert into managed (project_id, id, kind, name, user_id, provider, repair, max_revisions, revision, request, status)
values ('p1', gen_random_uuid(), 'VirtualMachineDeployment', 'x', 'u', 'nova', 'manual', 10, 1, 'create', 'pending')`

// TestUnserved: nothing of a project that is not served is claimed, except the ends of leases; and what it has left can
// be ended.
func TestUnserved(t *testing.T) {
	t.Parallel()
	database := testkit.Database(t)
	conn, db := testkit.Connect(t, database), open(t, database)
	must(conn.Exec(t.Context(), unservedRows))(t)
	unserved, ctx := postgres.Unserved{DB: db}, t.Context()
	all, err := unserved.ListRemains(ctx)
	want := []domain.Remains{{ProjectID: "p1", DomainID: "d", Counts: map[string]int{
		"callbacks": 1, "connections": 1, "instances": 1, "leases": 2, "managed": 1, "orders": 1,
	}}}
	if diff := cmp.Diff(want, all); err != nil || diff != "" {
		t.Fatalf("%v %s", err, diff)
	}
	claimed := func() (n [6]int) {
		t.Helper()
		polls, leases := postgres.Polls{DB: db}, postgres.Leases{DB: db}
		followed, err := polls.ListFollowed(ctx)
		moving, err2 := polls.ListMoving(ctx, time.Hour)
		due, err3 := polls.ClaimDue(ctx, domain.NewClaim(), time.Hour, time.Now().Add(time.Hour), 10)
		running, err4 := polls.ListRunningOrders(ctx, domain.RunningOrder{}, 10)
		claimedLeases, _, err5 := take(ctx, leases.Queue(), time.Hour, 10)
		managed, _, err6 := take(ctx, postgres.Managed{DB: db}.Queue(), time.Hour, 10)
		for _, err := range []error{err, err2, err3, err4, err5, err6} {
			if err != nil {
				t.Fatal(err)
			}
		}
		if _, err := conn.Exec(ctx, `update polls set claim_id = null, claimed_until = null;
update leases set claim_id = null, claimed_until = null, due_at = now();
update managed_projects set claim_id = null, claimed_until = null, due_at = now()`); err != nil {
			t.Fatal(err)
		}
		return [6]int{len(followed), len(moving), len(due), len(running), len(claimedLeases), len(managed)}
	}
	if ended, resumed, err := unserved.Set(ctx, all); err != nil || len(ended) != 1 || len(resumed) != 0 {
		t.Fatalf("ended %v, resumed %v, %v", ended, resumed, err)
	}
	if got := claimed(); got != [6]int{4: 1} {
		t.Errorf("of a project that is not served: claimed %v, want the end of a lease only", got)
	}
	if is, err := isDue(ctx, postgres.Managed{DB: db}.Queue(), time.Hour); is || err != nil {
		t.Errorf("its managed resources are due: %t %v", is, err)
	}
	if ended, resumed, err := unserved.Set(ctx, nil); err != nil || len(ended) != 0 || len(resumed) != 1 {
		t.Fatalf("ended %v, resumed %v, %v", ended, resumed, err)
	}
	if got := claimed(); got != [6]int{1, 1, 1, 1, 2, 1} {
		t.Errorf("of a project that is served again: claimed %v", got)
	}
	noError(t, unserved.End(ctx, "p1", false))
	all, err = unserved.ListRemains(ctx)
	// run-leases ends the lease; the order waits until the project is served again.
	want[0].Counts = map[string]int{"leases": 1, "orders": 1}
	if diff := cmp.Diff(want, all); err != nil || diff != "" {
		t.Errorf("left is: %v %s", err, diff)
	}
}

// TestEndLeavesServers: when the operator ends what a project has left, servers on reserved hosts stay, unless he says
// otherwise.
func TestEndLeavesServers(t *testing.T) {
	t.Parallel()
	for withServers, want := range map[bool]string{false: "ending none", true: "ending delete"} {
		database := testkit.Database(t)
		conn, db := testkit.Connect(t, database), open(t, database)
		addNodes(t, conn, 1)
		lease := newLease(0, 1)
		lease.Lease.OnEnd = domain.OnEndDelete
		must(postgres.Leases{DB: db}.Create(t.Context(), lease))(t)
		_, err := conn.Exec(t.Context(), `update leases set status = 'active', start_result = 'done';
update allocations set prepared_at = now()`)
		if err == nil {
			err = postgres.Unserved{DB: db}.End(t.Context(), "p1", withServers)
		}
		if got := testkit.Scalar[string](t, conn, "select status || ' ' || on_end from leases"); err != nil || got != want {
			t.Errorf("with servers %t: the lease is %s, want %s: %v", withServers, got, want, err)
		}
	}
}

// TestResumedStreamsKeepNoPause: what waits for a callback that is resumed is due, also when another transaction had
// locked its stream meanwhile.
func TestResumedStreamsKeepNoPause(t *testing.T) {
	t.Parallel()
	for name, resume := range map[string]func(context.Context, *postgres.DB, uuid.UUID) error{
		"served again": func(ctx context.Context, db *postgres.DB, _ uuid.UUID) error {
			_, _, err := postgres.Unserved{DB: db}.Set(ctx, nil)
			return err
		},
		"resumed": func(ctx context.Context, db *postgres.DB, id uuid.UUID) error {
			verified := domain.CallbackVerified
			_, _, err := postgres.Callbacks{DB: db}.Change(ctx, "p1", id, domain.CallbackChange{Status: &verified})
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			database := testkit.Database(t)
			conn, holder, db := testkit.Connect(t, database), testkit.Connect(t, database), open(t, database)
			id := testkit.AddCallback(t, conn, "p1", "https://a.example.com", domain.CallbackVerified, "s", "")
			testkit.AddEvents(t, conn, "p1", []string{"free", "locked"}, 1)
			const paused = `update streams set attempts = 9, failing_since = now(), next_at = now() + interval '1 hour';
update callbacks set status = 'suspended', reason = '` + domain.UnservedReason + "'"
			must(conn.Exec(t.Context(), paused))(t)
			held := must(holder.Begin(t.Context()))(t)
			const locks = "select from streams where stream like '%locked' for update"
			must(held.Exec(t.Context(), locks))(t)
			done := make(chan error, 1)
			go func() { done <- resume(t.Context(), db, id) }()
			testkit.Eventually(t, 10*time.Second, "it waits or is done", func() bool {
				return len(done) == 1 || testkit.Scalar[bool](t, conn, `select exists (select from pg_stat_activity
where datname = current_database() and wait_event_type = 'Lock')`)
			})
			noError(t, held.Commit(t.Context()))
			noError(t, <-done)
			due := testkit.Scalar[int](t, conn, `select count(*)::int from streams join callbacks on id = callback_id
where next_at <= now() and attempts = 0 and streams.failing_since is null and status = 'pending'`)
			if due != 2 {
				t.Errorf("%d streams of 2 are due", due)
			}
		})
	}
}
