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

// TestCapabilitiesMigration makes expressions of what was stored by attribute, and back.
func TestCapabilitiesMigration(t *testing.T) {
	t.Parallel()
	database := testkit.Database(t)
	conn := testkit.Connect(t, database)
	addNodes(t, conn, 1)
	made := create(t, postgres.Leases{DB: open(t, database)}, newLease(time.Hour, 1))
	const before = `{"cpu_info:arch": "x86_64", "capabilities:vcpus": ">= 4", "x": "<or> a <or> b"}`
	write(t, conn, "update reservations set want = want || jsonb_build_object('capabilities', '"+before+"'::jsonb)")
	up, down := migrationsFrom(t, "036")
	write(t, conn, up[0])
	stored, err := postgres.Leases{DB: open(t, database)}.Get(t.Context(), made.ProjectID, made.ID)
	if err != nil {
		t.Fatal(err)
	}
	got := stored.Reservations[0].Want.Capabilities
	slices.Sort(got)
	if !slices.Equal(got, []string{"capabilities:vcpus >= 4", "cpu_info:arch s== x86_64", "x <or> a <or> b"}) {
		t.Errorf("up makes %q", got)
	}
	write(t, conn, down[len(down)-1])
	if !testkit.Scalar[bool](t, conn, "select want->'capabilities' = '"+before+"'::jsonb from reservations") {
		t.Error("down makes something else")
	}
}
