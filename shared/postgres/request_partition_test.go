package postgres_test

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/postgres"
	"github.com/cloudfn/cloudfn/shared/testkit"
)

const retention = 90 * 24 * time.Hour

func request(path string) domain.Request {
	return domain.Request{
		ID: uuid.Must(uuid.NewV7()), Method: "GET", Path: path, Status: 200, ProjectID: "p1",
		DomainID: "d1",
	}
}

func insert(t *testing.T, store postgres.Requests, rows ...domain.Request) {
	t.Helper()
	noError(t, store.Insert(t.Context(), rows))
}

// partitions gives each partition's rows.
func partitions(t *testing.T, conn *pgx.Conn) map[string]int {
	t.Helper()
	got := map[string]int{}
	rows, _ := conn.Query(t.Context(),
		"select inhrelid::regclass::text from pg_inherits where inhparent = 'requests'::regclass")
	names := must(pgx.CollectRows(rows, pgx.RowTo[string]))(t)
	for _, name := range names {
		got[name] = testkit.Scalar[int](t, conn, "select count(*)::int from "+name)
	}
	return got
}

func exec(t *testing.T, conn *pgx.Conn, sql string) {
	t.Helper()
	must(conn.Exec(t.Context(), sql))(t)
}

// TestMaintainUsesDatabaseClock goes through the months; each time rows have come before it was called.
func TestMaintainUsesDatabaseClock(t *testing.T) {
	t.Parallel()
	url := testkit.Database(t)
	for _, step := range []struct {
		now  string
		want map[string]int
	}{
		{"2027-12-31T23:30:00Z", map[string]int{"requests_default": 0, "requests_202712": 2, "requests_202801": 0}},
		{"2028-01-01T00:10:00Z", map[string]int{
			"requests_default": 0, "requests_202712": 2, "requests_202801": 2,
			"requests_202802": 0,
		}},
		// No one came for two months: the rows of one of them wait in the default partition.
		{"2028-03-01T12:00:00Z", map[string]int{
			"requests_default": 0, "requests_202712": 2, "requests_202801": 2,
			"requests_202802": 0, "requests_202803": 2, "requests_202804": 0,
		}},
		// December ended on January 1st: 90 days later, on March 31st, it goes.
		{"2028-03-30T23:59:00Z", map[string]int{
			"requests_default": 0, "requests_202712": 2, "requests_202801": 2,
			"requests_202802": 0, "requests_202803": 4, "requests_202804": 0,
		}},
		{"2028-03-31T00:00:10Z", map[string]int{
			"requests_default": 0, "requests_202801": 2, "requests_202802": 0,
			"requests_202803": 6, "requests_202804": 0,
		}},
		{"2030-01-15T00:00:00Z", map[string]int{"requests_default": 0, "requests_203001": 2, "requests_203002": 0}},
	} {
		now := must(time.Parse(time.RFC3339, step.now))(t)
		testkit.SetClock(t, url, now)
		// The column's default was bound to the real clock when the table was made.
		conn := testkit.Connect(t, url)
		exec(t, conn, "alter table requests alter at set default moved.clock_timestamp()")
		for name := range partitions(t, conn) {
			exec(t, conn, "alter table "+name+" alter at set default moved.clock_timestamp()")
		}
		store := postgres.Requests{DB: open(t, url)}
		insert(t, store, request("/1"), request("/2"))
		for range 2 { // the second time there is nothing to do
			noError(t, store.Maintain(t.Context(), retention))
			if diff := cmp.Diff(step.want, partitions(t, conn)); diff != "" {
				t.Fatalf("%s: %s", step.now, diff)
			}
		}
	}
}

// TestMaintainConcurrently: the partitions are made once, and no caller fails.
func TestMaintainConcurrently(t *testing.T) {
	t.Parallel()
	url := testkit.Database(t)
	store := postgres.Requests{DB: open(t, url)}
	insert(t, store, request("/"))
	concurrently(6, func(int) {
		if err := store.Maintain(t.Context(), retention); err != nil {
			t.Error(err)
		}
	})
	conn := testkit.Connect(t, url)
	got := partitions(t, conn)
	if len(got) != 3 || got["requests_default"] != 0 ||
		testkit.Scalar[int](t, conn, "select count(*)::int from requests") != 1 {
		t.Errorf("got %v", got)
	}
}

// TestMaintainDuringInserts is the turn of a month under load, many times: partitions are made, and old ones
// dropped, while COPYs and listings run. No row is lost, and no one fails.
func TestMaintainDuringInserts(t *testing.T) {
	t.Parallel()
	url := testkit.Database(t)
	store := postgres.Requests{DB: open(t, url)}
	conn := testkit.Connect(t, url)
	ctx, stop := context.WithCancel(t.Context())
	var inserted atomic.Int64
	var all sync.WaitGroup
	for range 4 {
		all.Go(func() {
			for ctx.Err() == nil {
				if err := store.Insert(t.Context(), []domain.Request{
					request("/1"), request("/2"), request("/3"),
				}); err != nil {
					t.Errorf("insert: %v", err)
					return
				}
				inserted.Add(3)
			}
		})
	}
	all.Go(func() {
		q := domain.RequestQuery{View: domain.View{Scope: domain.ScopeProject, ProjectID: "p1"}, Limit: 10}
		for ctx.Err() == nil {
			if _, err := store.List(t.Context(), q); err != nil {
				t.Errorf("list: %v", err)
				return
			}
		}
	})
	month := testkit.Scalar[time.Time](t, conn, "select date_trunc('month', now(), 'UTC')").UTC()
	const rounds = 15
	for range rounds {
		exec(t, conn, "create table requests_202001 partition of requests for values from ('2020-01-01Z') to ('2020-02-01Z')")
		if err := store.Maintain(t.Context(), retention); err != nil {
			t.Errorf("maintain: %v", err)
			break
		}
		if got := partitions(t, conn); len(got) != 3 || got["requests_202001"] != 0 {
			t.Errorf("the partitions are %v", got)
		}
		// Back to how it was before: this month has no partition, and its rows are in the default one.
		const undo = `alter table requests detach partition %[1]s; insert into requests select *
  from %[1]s; drop table %[1]s;`
		exec(t, conn, fmt.Sprintf(undo, month.Format("requests_200601"))+fmt.Sprintf(undo,
			month.AddDate(0, 1, 0).Format("requests_200601")))
	}
	stop()
	all.Wait()
	got := testkit.Scalar[int64](t, conn, "select count(*) from requests")
	different := testkit.Scalar[int64](t, conn, "select count(distinct id) from requests")
	if got != inserted.Load() || different != got {
		t.Errorf("%d rows were taken, there are %d, %d of them different", inserted.Load(), got, different)
	}
	t.Logf("%d rows in %d rounds", got, rounds)
}

// TestMaintainHidesNoRow: a reader that waits while rows move from the default partition into a new one sees them
// afterwards.
func TestMaintainHidesNoRow(t *testing.T) {
	t.Parallel()
	url := testkit.Database(t)
	store := postgres.Requests{DB: open(t, url)}
	insert(t, store, request("/1"), request("/2"))
	reader, watch := testkit.Connect(t, url), testkit.Connect(t, url)
	exec(t, reader, "begin; lock table requests_default in access share mode") // a long read: Maintain has to wait
	var all sync.WaitGroup
	all.Go(func() {
		if err := store.Maintain(t.Context(), retention); err != nil {
			t.Error(err)
		}
	})
	const waiting = `select count(*)::int from pg_locks l join pg_stat_activity a using (pid) where not granted
  and a.datname = current_database()`
	waits := func(n int) func() bool {
		return func() bool { return testkit.Scalar[int](t, watch, waiting) == n }
	}
	testkit.Eventually(t, 10*time.Second, "Maintain waits for the reader", waits(1))
	var found []string
	var isListed atomic.Bool
	all.Go(func() {
		defer isListed.Store(true)
		found = paths(t, store, domain.RequestQuery{
			View:  domain.View{Scope: domain.ScopeProject, ProjectID: "p1"},
			Limit: 10,
		})
	})
	testkit.Eventually(t, time.Minute, "the listing waits behind Maintain, or has ended",
		func() bool { return isListed.Load() || waits(2)() })
	exec(t, reader, "commit")
	all.Wait()
	if len(found) != 2 {
		t.Errorf("while rows moved, the listing had %q", found)
	}
}

const logRowsSQL = `insert into requests
select gen_random_uuid(), at, '', '', '', 200, 1, '', 'p1', '', '', '', '' from unnest($1::timestamptz[]) at`

// TestMaintainMovesNoRows: the default partition itself becomes the month's, so that the lock does not last as long as
// moving its rows. Rows of the months before go with them, and are deleted as their own months would be.
func TestMaintainMovesNoRows(t *testing.T) {
	t.Parallel()
	url := testkit.Database(t)
	conn := testkit.Connect(t, url)
	at := func(now string) time.Time {
		return must(time.Parse(time.RFC3339, now))(t)
	}
	maintain := func(now string, want map[string]int) {
		t.Helper()
		testkit.SetClock(t, url, at(now))
		store := postgres.Requests{DB: open(t, url)}
		conn = testkit.Connect(t, url)
		noError(t, store.Maintain(t.Context(), retention))
		if diff := cmp.Diff(want, partitions(t, conn)); diff != "" {
			t.Fatalf("%s: %s", now, diff)
		}
	}
	oid := func(table string) uint32 {
		return testkit.Scalar[uint32](t, conn, "select '"+table+"'::regclass::oid")
	}
	log := func(rows ...time.Time) {
		t.Helper()
		must(conn.Exec(t.Context(), logRowsSQL, rows))(t)
	}
	// The first tick comes late.
	first := oid("requests_default")
	log(at("2028-01-20T00:00:00Z"), at("2028-02-03T00:00:00Z"))
	maintain("2028-02-03T12:00:00Z", map[string]int{"requests_default": 0, "requests_202802": 2, "requests_202803": 0})
	if got := oid("requests_202802"); got != first {
		t.Error("the first rows were moved")
	}
	// No tick came for months.
	second := oid("requests_default")
	log(at("2028-04-02T00:00:00Z"), at("2028-05-31T23:59:59Z"), at("2028-06-10T00:00:00Z"))
	maintain("2028-06-10T12:00:00Z", map[string]int{
		"requests_default": 0, "requests_202803": 0, "requests_202806": 3, "requests_202807": 0,
	})
	if got := oid("requests_202806"); got != second {
		t.Error("the rows of several months were moved")
	}
	log(at("2028-04-15T00:00:00Z")) // a late row
	// April ended more than 90 days ago.
	maintain("2028-08-02T00:00:00Z", map[string]int{
		"requests_default": 0, "requests_202806": 2, "requests_202807": 0, "requests_202808": 0, "requests_202809": 0,
	})
}

const oldMonthSQL = `create table requests_202001 partition of requests for values
  from ('2020-01-01Z') to ('2020-02-01Z')`

// TestDropPartitionBlocksNoWriter: while someone reads the whole request log for long, the partition that is to be
// dropped stays, and rows are written. When the reader has ended it goes.
func TestDropPartitionBlocksNoWriter(t *testing.T) {
	t.Parallel()
	url := testkit.Database(t)
	store, conn := postgres.Requests{DB: open(t, url)}, testkit.Connect(t, url)
	noError(t, store.Maintain(t.Context(), retention))
	exec(t, conn, oldMonthSQL)
	reader := readLog(t, url)
	ended := make(chan error, 1)
	go func() { ended <- store.Maintain(t.Context(), retention) }()
	// The reader does not end. A row that waits behind the drop for longer than lock_timeout fails.
	for waits := true; waits; {
		insert(t, store, request("/"))
		select {
		case err := <-ended:
			if waits = false; err != nil {
				t.Errorf("a reader that takes long is no fault: %v", err)
			}
		default:
		}
	}
	if _, there := partitions(t, conn)["requests_202001"]; !there {
		t.Error("the partition was dropped under its reader")
	}
	noError(t, reader.Rollback(t.Context()))
	noError(t, store.Maintain(t.Context(), retention))
	if got := partitions(t, conn); len(got) != 3 {
		t.Errorf("the reader has ended, and the partitions are %v", got)
	}
}

// readLog begins to read the request log, and has not ended.
func readLog(t *testing.T, url string) pgx.Tx {
	t.Helper()
	tx := must(testkit.Connect(t, url).Begin(t.Context()))(t)
	must(tx.Exec(t.Context(), "select count(*) from requests"))(t)
	return tx
}

// TestDropPartitionResumes: a process that is killed while it waits for a partition leaves it whole, attached, and to
// the next one.
func TestDropPartitionResumes(t *testing.T) {
	t.Parallel()
	url := testkit.Database(t)
	store, conn := postgres.Requests{DB: open(t, url)}, testkit.Connect(t, url)
	noError(t, store.Maintain(t.Context(), retention))
	exec(t, conn, oldMonthSQL+`; insert into requests_202001 select gen_random_uuid(), '2020-01-02Z', '', '', '', 200, 1, '', 'p1', '', '', '', ''`)
	reader := readLog(t, url)
	ended := make(chan error, 1)
	go func() { ended <- store.Maintain(t.Context(), retention) }()
	const kill = `select count(pg_terminate_backend(pid))::int from pg_stat_activity
where datname = current_database() and wait_event_type = 'Lock' and query like 'select drop_requests_month%'`
	for testkit.Scalar[int](t, conn, kill) == 0 { // without a pause, because it waits only for moments
		select {
		case err := <-ended:
			t.Fatalf("it ended before it was killed: %v", err)
		default:
		}
	}
	<-ended
	if got := partitions(t, conn); got["requests_202001"] != 1 {
		t.Errorf("the partitions are %v", got)
	}
	noError(t, reader.Rollback(t.Context()))
	noError(t, store.Maintain(t.Context(), retention))
	if got := partitions(t, conn); len(got) != 3 {
		t.Errorf("the partitions are %v", got)
	}
}

// TestRowsInDefaultPartition: rows in the default partition are deleted as those of their month would be, some thousand
// at a time.
func TestRowsInDefaultPartition(t *testing.T) {
	t.Parallel()
	url := testkit.Database(t)
	store, conn := postgres.Requests{DB: open(t, url)}, testkit.Connect(t, url)
	// Their months ended 90 days and a second ago, and 89 days ago. The second was never made either.
	exec(t, conn, `
insert into requests_default
select gen_random_uuid(), case when n <= 12000 then ended - interval '1 second' else ended + interval '1 second' end,
  '', '', '', 200, 1, '', 'p1', '', '', '', ''
from generate_series(1, 12010) n, (select date_trunc('month', now() - interval '90 days', 'UTC') as ended) e`)
	var all []error
	for range 2 {
		all = append(all, store.Maintain(t.Context(), retention))
	}
	left := testkit.Scalar[int](t, conn, "select count(*)::int from requests_default")
	if left != 10 || all[0] != nil || all[1] != nil {
		t.Errorf("%d rows are left, want those 10 whose month ended later: %v", left, all)
	}
	q := domain.RequestQuery{View: domain.View{Scope: domain.ScopeProject, ProjectID: "p1"}, Limit: 100}
	if listed, err := store.List(t.Context(), q); err != nil || len(listed) != 10 {
		t.Errorf("%d are listed: %v", len(listed), err)
	}
}
