package postgres_test

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/postgres"
	"github.com/cloudfn/cloudfn/shared/testkit"
)

var (
	sqlComment  = regexp.MustCompile(`--.*`)
	createTable = regexp.MustCompile(`(?i)\bcreate\s+table\s+(?:if\s+not\s+exists\s+)?(\w+)`)
	createIndex = regexp.MustCompile(`(?i)\bcreate\s+(?:unique\s+)?index\s+(concurrently\s+)?` +
		`(?:if\s+not\s+exists\s+)?(\w+)\s+on\s+(only\s+)?(\w+)`)
	constraints = regexp.MustCompile(`(?i)\badd\s+(?:constraint\s+\w+\s+)?` +
		`(?:unique|primary\s+key)\b(\s+using\s+index)?`) // an exclusion cannot use an index: only on small tables
)

// blocking lists the statements of a migration that block writes to a table that may be large.
func blocking(migration string) (wrong []string) {
	up, _, _ := strings.Cut(migration, "-- +goose Down")
	outside := strings.Contains(up, "-- +goose NO TRANSACTION")
	up = sqlComment.ReplaceAllString(up, "")
	var own []string
	for _, m := range createTable.FindAllStringSubmatch(up, -1) {
		own = append(own, m[1])
	}
	for _, m := range createIndex.FindAllStringSubmatch(up, -1) {
		concurrently, index, table := m[1] != "", m[2], m[4]
		if m[3] != "" && table == "requests" { // only on partitions is an index built, and migrate does that
			continue
		}
		again := regexp.MustCompile(`(?i)drop\s+index\s+concurrently\s+if\s+exists\s+` + index + `\s*;`).MatchString(up)
		switch {
		case !concurrently && !slices.Contains(own, table):
			wrong = append(wrong, fmt.Sprintf("index %s blocks writes to %s: "+
				"create it concurrently, in a file with -- +goose NO TRANSACTION", index, table))
		case concurrently && !outside:
			wrong = append(wrong, fmt.Sprintf("index %s cannot be created concurrently in a transaction: "+
				"add -- +goose NO TRANSACTION", index))
		case concurrently && !again:
			wrong = append(wrong, fmt.Sprintf("index %s stays invalid when its creation fails: "+
				"put drop index concurrently if exists %s before it", index, index))
		}
	}
	for _, m := range constraints.FindAllStringSubmatch(up, -1) {
		if m[1] == "" {
			wrong = append(wrong, "a constraint builds its index while nobody can write: "+
				"create the index concurrently, and add the constraint using index")
		}
	}
	return wrong
}

// TestMigrationsBlockNoWriter: from 006 on, tables of earlier migrations may be large.
func TestMigrationsBlockNoWriter(t *testing.T) {
	t.Parallel()
	files, err := filepath.Glob("migrations/*.sql")
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if filepath.Base(file) < "006" {
			continue
		}
		for _, wrong := range blocking(string(text)) {
			t.Errorf("%s: %s", file, wrong)
		}
	}
}

// TestBlocking checks which statements blocking finds, and which it passes.
func TestBlocking(t *testing.T) {
	t.Parallel()
	blocks := []string{
		"-- +goose Up\ncreate index i on a (id);",
		"create UNIQUE index\n    i on only a (id);",
		"create index i on requests (id);",
		"create index concurrently i on a (id);",
		"-- +goose NO TRANSACTION\ncreate index concurrently i on a (id);",
		"alter table a add constraint c unique (id);",
		"-- +goose NO TRANSACTION\n" +
			"drop index concurrently if exists other;\ncreate index concurrently if not exists i on a (id);",
	}
	passes := []string{
		"create table a (id int); create index i on a (id);",
		"create index i on only requests (id);",
		"-- +goose NO TRANSACTION\n" +
			"drop index concurrently if exists i;\ncreate index concurrently i on a (id);",
		"-- create index i on a (id);",
		"alter table a add constraint c primary key using index i;",
		"alter table a add constraint c check (id > 0) not valid;\n" +
			"-- +goose Down\ncreate index i on a (id);",
	}
	for n, sql := range slices.Concat(blocks, passes) {
		if got := blocking(sql); (len(got) > 0) != (n < len(blocks)) {
			t.Errorf("%s: got %v", sql, got)
		}
	}
}

// TestIndexesAreValid: one that was built concurrently and broke off is there, and is not used.
func TestIndexesAreValid(t *testing.T) {
	t.Parallel()
	conn := testkit.Connect(t, testkit.Database(t))
	if n := testkit.Scalar[int](t, conn, "select count(*)::int from pg_index where not indisvalid"); n != 0 {
		t.Errorf("%d indexes are invalid", n)
	}
}

// oldMemberSQL is how the release before 057 stores a member.
const oldMemberSQL = `
insert into managed_members as x (project_id, id, managed_id, ordinal, revision, object_id, status, reason,
                                  attempts, retry_at, missed_at, written, writes)
values ('p1', $1, $2, 0, $3, $4, $5, '', 0, null, null, '', 0)
on conflict (project_id, id) do update
set ordinal = 0, revision = $3, object_id = $4, status = $5, reason = '', attempts = 0, retry_at = null,
    missed_at = null, written = '', writes = 0, node = '', updated_at = clock_timestamp()`

// TestMembersOfOldReplicas: what a replica of an earlier release does not know of a member is not forgotten by what it
// writes, before and after the migration.
func TestMembersOfOldReplicas(t *testing.T) {
	t.Parallel()
	database := testkit.Database(t)
	store, conn := postgres.Managed{DB: open(t, database)}, testkit.Connect(t, database)
	m := declare(t, store, newManaged("web"))
	m = declare(t, store, changed(m, `{"flavor": "m1.small"}`)) // there are the revisions 1 and 2
	_, claim := claimProject(t, store)
	save := func(change func(*domain.Member)) uuid.UUID {
		member := newMember(m)
		member.Revision, member.WasReady, member.MayHaveData, member.UserData = 1, true, true, "digest"
		change(&member)
		if err := store.SaveMember(t.Context(), claim, "p1", member); err != nil {
			t.Fatal(err)
		}
		return member.ID
	}
	isNew := func(m *domain.Member) {
		m.ObjectID, m.Status, m.WasReady, m.MayHaveData, m.UserData = "", domain.MemberCreating, false, false, ""
	}
	old := func(id uuid.UUID, revision int, object string, status domain.MemberStatus) uuid.UUID {
		write(t, conn, oldMemberSQL, id, m.ID, revision, object, status)
		return id
	}
	check := func(name string, id uuid.UUID, want string) {
		t.Helper()
		loaded, err := store.Load(t.Context(), "p1")
		if err != nil {
			t.Fatal(err)
		}
		for _, x := range loaded[0].Members {
			got := fmt.Sprintf("ready %t, data %t, requested %t, %s", x.WasReady, x.MayHaveData, x.IsRequested,
				x.UserData)
			if x.ID == id && got != want {
				t.Errorf("%s: %s, want %s", name, got, want)
			}
		}
	}
	up, down := migrationsFrom(t, "065")
	for _, sql := range down {
		write(t, conn, sql)
	}
	requested, ready := old(uuid.New(), 1, "", domain.MemberCreating), old(uuid.New(), 1, "s", domain.MemberReady)
	var waiting uuid.UUID
	write(t, conn, `insert into managed_members (project_id, id, managed_id, ordinal, revision, status, is_waiting)
values ('p1', $1, $2, 0, 1, 'creating', true)`, waiting, m.ID)
	for _, sql := range up {
		write(t, conn, sql)
	}
	check("requested before", requested, "ready false, data false, requested true, ")
	check("waiting before", waiting, "ready false, data false, requested false, ")
	check("ready before", old(ready, 1, "s", domain.MemberError), "ready true, data true, requested false, ")

	check("requested", old(uuid.New(), 1, "", domain.MemberCreating), "ready false, data false, requested true, ")
	waits := save(func(m *domain.Member) { isNew(m); m.IsWaiting = true })
	check("waits", waits, "ready false, data false, requested false, ")
	check("requested later", old(waits, 1, "", domain.MemberCreating), "ready false, data false, requested true, ")
	was := old(old(uuid.New(), 1, "s", domain.MemberReady), 1, "s", domain.MemberError)
	check("was ready", was, "ready true, data true, requested false, ")
	check("failed", old(uuid.New(), 1, "s", domain.MemberError), "ready false, data false, requested false, ")

	const known = "ready true, data true, requested false, digest"
	check("in ERROR", old(save(func(*domain.Member) {}), 1, "s-web", domain.MemberError), known)
	check("rebuilt", old(save(func(*domain.Member) {}), 1, "s-web", domain.MemberUpdating),
		"ready true, data true, requested false, ")
	check("changed", old(save(func(*domain.Member) {}), 2, "s-web", domain.MemberReady),
		"ready true, data true, requested false, ")
	id := save(func(m *domain.Member) { m.Status = domain.MemberUpdating })
	check("updating, not by an old one", id, known)
	check("changed, not by an old one", save(func(m *domain.Member) { m.ID, m.Revision = id, 2 }), known)
	rebuilding := old(save(func(*domain.Member) {}), 1, "s-web", domain.MemberUpdating)
	write(t, conn, `update managed_members set status = 'updating', reason = 'its image is being changed to B'
		where id = $1`, rebuilding)
	if !testkit.Scalar[bool](t, conn, "select is_rebuilt from managed_members where id = '"+rebuilding.String()+"'") {
		t.Error("a rebuild by an old replica is not known")
	}
	if err := store.RecordNodes(t.Context(), map[string]string{"s-web": "compute"}); err != nil {
		t.Fatal(err)
	}
	check("its host is recorded", id, known)
}

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
