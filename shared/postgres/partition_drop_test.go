package postgres_test

import (
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/postgres"
	"github.com/cloudfn/cloudfn/shared/testkit"
)

const oldMonthSQL = `create table requests_202001 partition of requests for values
  from ('2020-01-01Z') to ('2020-02-01Z')`

// TestDropPartitionBlocksNoWriter: while somebody reads the whole request log for long, the partition that is to be
// dropped stays, and rows are written. When the reader has ended it goes.
func TestDropPartitionBlocksNoWriter(t *testing.T) {
	t.Parallel()
	url := testkit.Database(t)
	store, conn := postgres.Requests{DB: open(t, url)}, testkit.Connect(t, url)
	if err := store.Maintain(t.Context(), retention); err != nil {
		t.Fatal(err)
	}
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
	if err := reader.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := store.Maintain(t.Context(), retention); err != nil {
		t.Fatal(err)
	}
	if got := partitions(t, conn); len(got) != 3 {
		t.Errorf("the reader has ended, and the partitions are %v", got)
	}
}

// readLog begins to read the request log, and has not ended.
func readLog(t *testing.T, url string) pgx.Tx {
	t.Helper()
	tx, err := testkit.Connect(t, url).Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := tx.Exec(t.Context(), "select count(*) from requests"); err != nil {
		t.Fatal(err)
	}
	return tx
}

// TestDropPartitionResumes: whoever is killed while it waits for a partition leaves it whole, attached, and to the next
// one.
func TestDropPartitionResumes(t *testing.T) {
	t.Parallel()
	url := testkit.Database(t)
	store, conn := postgres.Requests{DB: open(t, url)}, testkit.Connect(t, url)
	if err := store.Maintain(t.Context(), retention); err != nil {
		t.Fatal(err)
	}
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
	if err := reader.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := store.Maintain(t.Context(), retention); err != nil {
		t.Fatal(err)
	}
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
