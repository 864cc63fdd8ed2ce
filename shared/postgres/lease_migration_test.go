package postgres_test

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cloudfn/cloudfn/shared/postgres"
	"github.com/cloudfn/cloudfn/shared/testkit"
)

// migrationsFrom are the migrations from one of a number on, each up and down.
func migrationsFrom(t *testing.T, first string) (up, down []string) {
	t.Helper()
	files, err := filepath.Glob("migrations/*.sql")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range files {
		text, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		if filepath.Base(name) >= first {
			// A text of several statements is a transaction.
			forth, back, _ := strings.Cut(strings.ReplaceAll(string(text), " concurrently", ""), "-- +goose Down")
			up, down = append(up, forth), append(down, back)
		}
	}
	slices.Reverse(down)
	return up, down
}

// TestLeasesMigration goes down while leases and nodes are stored, and up again to the same schema. Later migrations go
// down before it.
func TestLeasesMigration(t *testing.T) {
	t.Parallel()
	up, down := migrationsFrom(t, "019")
	database := testkit.Database(t)
	conn := testkit.Connect(t, database)
	const columnsSQL = `
select string_agg(table_name || '.' || column_name || ' ' || data_type, ', ' order by table_name, column_name)
from information_schema.columns where table_schema = 'public'`
	before := testkit.Scalar[string](t, conn, columnsSQL)
	addNodes(t, conn, 1)
	made, delegated := newLease(time.Hour, 1), newConnection()
	made.Connection = &delegated
	create(t, postgres.Leases{DB: open(t, database)}, made)
	write(t, conn, "insert into nodes (name) values ('in no pool')")
	for _, sql := range down {
		write(t, conn, sql)
	}
	if status := testkit.Scalar[string](t, conn, "select status from connections"); status != "deleted" {
		t.Errorf("the connection of a lease is %s", status)
	}
	if left := testkit.Scalar[string](t, conn, columnsSQL); strings.Contains(left, "lease_id") ||
		strings.Contains(left, "nodes.") {
		t.Errorf("down leaves %s", left)
	}
	for _, sql := range up {
		write(t, conn, sql)
	}
	if after := testkit.Scalar[string](t, conn, columnsSQL); after != before {
		t.Errorf("up again makes %s, not %s", after, before)
	}
	addNodes(t, conn, 1)
	create(t, postgres.Leases{DB: open(t, database)}, newLease(time.Hour, 1))
}
