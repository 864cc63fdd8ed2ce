package postgres_test

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/cloudfn/cloudfn/shared/testkit"
)

var (
	sqlComment  = regexp.MustCompile(`--.*`)
	createTable = regexp.MustCompile(`(?i)\bcreate\s+table\s+(?:if\s+not\s+exists\s+)?(\w+)`)
	createIndex = regexp.MustCompile(`(?i)\bcreate\s+(?:unique\s+)?index\s+(concurrently\s+)?` +
		`(?:if\s+not\s+exists\s+)?(\w+)\s+on\s+(?:only\s+)?(\w+)`)
	constraints = regexp.MustCompile(`(?i)\badd\s+(?:constraint\s+\w+\s+)?` +
		`(?:unique|primary\s+key)\b(\s+using\s+index)?`) // an exclusion cannot use an index: only on small tables
)

// blocking lists the statements of a migration that block writes to a table that may be large.
func blocking(migration string) (wrong []string) {
	outside := strings.Contains(migration, "-- +goose NO TRANSACTION")
	up := sqlComment.ReplaceAllString(migration, "")
	var own []string
	for _, m := range createTable.FindAllStringSubmatch(up, -1) {
		own = append(own, m[1])
	}
	for _, m := range createIndex.FindAllStringSubmatch(up, -1) {
		concurrently, index, table := m[1] != "", m[2], m[3]
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
			wrong = append(wrong, "a constraint builds its index while no one can write: "+
				"create the index concurrently, and add the constraint using index")
		}
	}
	return wrong
}

// TestMigrationsBlockNoWriter: tables of earlier migrations may be large.
func TestMigrationsBlockNoWriter(t *testing.T) {
	t.Parallel()
	files := must(filepath.Glob("migrations/*.sql"))(t)
	for _, file := range files {
		text := must(os.ReadFile(file))(t)
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
		"create index concurrently i on a (id);",
		"-- +goose NO TRANSACTION\ncreate index concurrently i on a (id);",
		"alter table a add constraint c unique (id);",
		"-- +goose NO TRANSACTION\n" +
			"drop index concurrently if exists other;\ncreate index concurrently if not exists i on a (id);",
	}
	passes := []string{
		"create table a (id int); create index i on a (id);",
		"-- +goose NO TRANSACTION\n" +
			"drop index concurrently if exists i;\ncreate index concurrently i on a (id);",
		"-- create index i on a (id);",
		"alter table a add constraint c primary key using index i;",
		"alter table a add constraint c check (id > 0) not valid;",
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
	wantValue(t, conn, 0, "%d indexes are invalid", "select count(*)::int from pg_index where not indisvalid")
}
