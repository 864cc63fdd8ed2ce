package contract_test

import (
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cloudfn/cloudfn/functions/clock"
	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/due"
	"github.com/cloudfn/cloudfn/shared/postgres"
	"github.com/cloudfn/cloudfn/shared/run"
	"github.com/cloudfn/cloudfn/shared/testkit"
)

// columns are those of a right to read.
var columns = regexp.MustCompile(`^select \(([^)]*)\)$`)

// TestClockReadsWhatIsDeclared: the clock's statement is made of what every event function declares, and runs with the
// rights of the clock. Of other functions' tables it may read the columns that the statement needs, and no more.
func TestClockReadsWhatIsDeclared(t *testing.T) {
	t.Parallel()
	var declared []due.Declared
	for _, f := range testkit.Describe(t).Functions {
		if isDue := len(f.Due) > 0; isDue != (f.Kind == "event" && f.Name != "clock") {
			t.Errorf("%s of kind %s declares %d conditions", f.Name, f.Kind, len(f.Due))
		} else if isDue {
			declared = append(declared, due.Declared{Function: f.Name, SQL: f.Due})
		}
	}
	database := testkit.Database(t)
	url := testkit.As(t, database, clock.Function)
	_, role, _ := strings.Cut(url, "role=")
	role, _, _ = strings.Cut(role, "&")
	db, err := postgres.Open(postgres.Config{URL: domain.Secret(url), MaxConns: 1}, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(db.Close)
	read := func() error {
		_, err := postgres.NewClock(db, declared).NextDue(t.Context(), time.Minute)
		return err
	}
	if err := read(); err != nil {
		t.Fatal(err)
	}
	conn := testkit.Connect(t, database)
	tables := run.Describe(clock.Function).Reach.Tables
	for _, table := range slices.Sorted(maps.Keys(tables)) {
		match := columns.FindStringSubmatch(tables[table])
		if match == nil {
			if !slices.Contains([]string{"events", "monitors", "wake_failures"}, table) {
				t.Errorf("the right on %s is %q", table, tables[table])
			}
			continue
		}
		for column := range strings.SplitSeq(match[1], ", ") {
			for n, sql := range []string{"revoke select (%s) on %s from %s", "grant select (%s) on %s to %s"} {
				if _, err := conn.Exec(t.Context(), fmt.Sprintf(sql, column, table, role)); err != nil {
					t.Fatal(err)
				}
				if err := read(); (err != nil) != (n == 0) {
					t.Errorf("%s.%s: after %q the statement ends with %v", table, column, sql, err)
				}
			}
		}
	}
}
