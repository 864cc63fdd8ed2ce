package postgres_test

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/cloudfn/cloudfn/shared/postgres"
	"github.com/cloudfn/cloudfn/shared/testkit"
)

const logRowsSQL = `insert into requests
select gen_random_uuid(), at, '', '', '', 200, 1, '', 'p1', '', '', '', '' from unnest($1::timestamptz[]) at`

// TestMaintainMovesNoRows: the default partition itself becomes the month's, so that the lock does not last as long as
// moving its rows. Rows of the months before go with them, and are deleted as their own months would be.
func TestMaintainMovesNoRows(t *testing.T) {
	t.Parallel()
	url := testkit.Database(t)
	conn := testkit.Connect(t, url)
	at := func(now string) time.Time {
		moment, err := time.Parse(time.RFC3339, now)
		if err != nil {
			t.Fatal(err)
		}
		return moment
	}
	maintain := func(now string, want map[string]int) {
		t.Helper()
		testkit.SetClock(t, url, at(now))
		store := postgres.Requests{DB: open(t, url)}
		conn = testkit.Connect(t, url)
		if err := store.Maintain(t.Context(), retention); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, partitions(t, conn)); diff != "" {
			t.Fatalf("%s: %s", now, diff)
		}
	}
	oid := func(table string) uint32 {
		return testkit.Scalar[uint32](t, conn, "select '"+table+"'::regclass::oid")
	}
	log := func(rows ...time.Time) {
		t.Helper()
		if _, err := conn.Exec(t.Context(), logRowsSQL, rows); err != nil {
			t.Fatal(err)
		}
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
