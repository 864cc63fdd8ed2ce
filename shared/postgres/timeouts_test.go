package postgres_test

import (
	"context"
	"fmt"
	"net/url"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/postgres"
	"github.com/cloudfn/cloudfn/shared/testkit"
)

// withParameter is a database's URL with one parameter more.
func withParameter(t *testing.T, database, name, value string) string {
	t.Helper()
	u, err := url.Parse(database)
	if err != nil {
		t.Fatal(err)
	}
	query := u.Query()
	query.Set(name, value)
	u.RawQuery = query.Encode()
	return u.String()
}

// timeoutsOf is what the server keeps to on one of the database's connections.
func timeoutsOf(t *testing.T, database string) map[string]string {
	t.Helper()
	got := map[string]string{}
	rows, err := open(t, database).Pool().Query(t.Context(),
		"select name, current_setting(name) from unnest($1::text[]) name",
		[]string{"statement_timeout", "lock_timeout", "idle_in_transaction_session_timeout"})
	if err != nil {
		t.Fatal(err)
	}
	var name, value string
	if _, err := pgx.ForEachRow(rows, []any{&name, &value},
		func() error { got[name] = value; return nil }); err != nil {
		t.Fatal(err)
	}
	return got
}

// TestTimeoutsOfConnections: each of our connections has them. What the URL or the role says goes first, so that
// through PgBouncer, whose connections are not ours, nothing is set at all once the role has them.
func TestTimeoutsOfConnections(t *testing.T) {
	t.Parallel()
	database := testkit.Database(t)
	ours := map[string]string{
		"statement_timeout": "1min", "lock_timeout": "10s",
		"idle_in_transaction_session_timeout": "1min",
	}
	if diff := cmp.Diff(ours, timeoutsOf(t, database)); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff(ours, timeoutsOf(t, withParameter(t, database, "default_query_exec_mode",
		"exec"))); diff != "" {
		t.Errorf("with PgBouncer's mode: %s", diff)
	}
	if got := timeoutsOf(t, withParameter(t, database, "statement_timeout", "7s")); got["statement_timeout"] != "7s" ||
		got["lock_timeout"] != "10s" {
		t.Errorf("the URL's goes first: got %v", got)
	}
	conn, role := testkit.Connect(t, database), "role_"+strings.ReplaceAll(uuid.NewString(), "-", "")
	exec(t, conn, fmt.Sprintf("create role %[1]s login; alter role %[1]s set lock_timeout = '3s'", role))
	t.Cleanup(func() {
		if _, err := conn.Exec(context.Background(), "drop role "+role); err != nil {
			t.Error(err)
		}
	})
	if got := timeoutsOf(t, withParameter(t, database, "user", role)); got["statement_timeout"] != "1min" ||
		got["lock_timeout"] != "3s" {
		t.Errorf("the role's goes first: got %v", got)
	}
}

// TestRolesHaveTheTimeouts: roles.sql gives the functions' roles the same ones.
func TestRolesHaveTheTimeouts(t *testing.T) {
	t.Parallel()
	sql, err := os.ReadFile("../../knative/roles.sql")
	if err != nil {
		t.Fatal(err)
	}
	for name, value := range timeoutsOf(t, testkit.Database(t)) {
		if !strings.Contains(string(sql), fmt.Sprintf("('%s', '%s')", name, value)) {
			t.Errorf("knative/roles.sql does not set %s = '%s'", name, value)
		}
	}
}

// TestIdleTransactionIsEnded: Postgres ends the idle transaction of a frozen or disconnected replica, which releases
// its locks. A statement that runs into a timeout reports that the database is unavailable.
func TestIdleTransactionIsEnded(t *testing.T) {
	t.Parallel()
	database := testkit.Database(t)
	frozen := open(t, withParameter(t, database, "idle_in_transaction_session_timeout", "200ms"))
	tx, err := frozen.Pool().Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tx.Rollback(t.Context()) }() // gives the connection back
	if _, err := tx.Exec(t.Context(), "lock table orders"); err != nil {
		t.Fatal(err)
	}
	if _, err := (postgres.Orders{DB: open(t, database)}).Place(t.Context(), newOrder(1), long); err != nil {
		t.Errorf("the lock was not released: %v", err)
	}
	_, err = tx.Exec(t.Context(), "select 1")
	if err = postgres.Classify(err); apperr.CodeOf(err) != apperr.Unavailable {
		t.Errorf("its own statement: %v", err)
	}
	_, err = open(t, withParameter(t, database, "statement_timeout", "100ms")).Pool().Exec(t.Context(),
		"select pg_sleep(5)")
	if err = postgres.Classify(err); apperr.CodeOf(err) != apperr.Unavailable {
		t.Errorf("a statement without end: %v", err)
	}
}

// TestMigrateHasNoTimeouts but for locks, whatever its role or URL says: a migration may take its time.
func TestMigrateHasNoTimeouts(t *testing.T) {
	t.Parallel()
	slow := withParameter(t, testkit.EmptyDatabase(t), "statement_timeout", "5ms")
	if _, err := postgres.Migrate(t.Context(), postgres.Config{URL: domain.Secret(slow), MaxConns: 1}); err != nil {
		t.Error(err)
	}
}

// TestGrantsWaitForALock: what a migration defines anew each time is retried as the migrations are.
func TestGrantsWaitForALock(t *testing.T) {
	t.Parallel()
	database := testkit.Database(t)
	conn := testkit.Connect(t, database)
	exec(t, conn, "begin; select pg_advisory_xact_lock(7166736203)") // as another migrate
	released := make(chan struct{})
	time.AfterFunc(1500*time.Millisecond, func() {
		defer close(released)
		exec(t, conn, "rollback")
	})
	_, err := postgres.Migrate(t.Context(), postgres.Config{URL: domain.Secret(database), MaxConns: 1})
	if <-released; err != nil {
		t.Error(err)
	}
}

// TestMigrateWaitsForALock in short tries: it lets whoever queues behind it go, and each migration is applied once.
func TestMigrateWaitsForALock(t *testing.T) {
	t.Parallel()
	database := testkit.EmptyDatabase(t)
	conn := testkit.Connect(t, database)
	exec(t, conn, "begin; create table sessions (id int)") // migration 004 waits for the name
	released := make(chan struct{})
	time.AfterFunc(2500*time.Millisecond, func() {
		defer close(released)
		exec(t, conn, "rollback")
	})
	applied, err := postgres.Migrate(t.Context(), postgres.Config{URL: domain.Secret(database), MaxConns: 1})
	<-released
	if slices.Sort(applied); err != nil || len(applied) != len(slices.Compact(slices.Clone(applied))) ||
		!slices.Contains(applied, "004_sessions.sql") {
		t.Errorf("applied %v: %v", applied, err)
	}
}
