package postgres_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/url"
	"os"
	"regexp"
	"slices"
	"strings"
	"sync"
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

// refusedByPgBouncer finds parameters of the start that PgBouncer does not take. Only tests use them.
var refusedByPgBouncer = regexp.MustCompile(`[?&](role|\w+_timeout)=`)

// open gives a pool on a database.
func open(t *testing.T, url string) *postgres.DB {
	t.Helper()
	if os.Getenv(pooled) != "" && !refusedByPgBouncer.MatchString(url) {
		url = behindPgBouncer(t, url)
	}
	db := must(postgres.Open(postgres.Config{URL: domain.Secret(url), MaxConns: 8}, nil))(t)
	t.Cleanup(db.Close)
	return db
}

func TestConfigHidesPassword(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		cfg  postgres.Config
		want string // part of the error, "" = good
	}{
		"a URL":          {postgres.Config{URL: "postgres://u:canary@db:5432/x?sslmode=require", MaxConns: 4}, ""},
		"words":          {postgres.Config{URL: "host=db user=u password=canary dbname=x", MaxConns: 4}, ""},
		"nothing":        {postgres.Config{MaxConns: 4}, "DATABASE_URL"},
		"a bad port":     {postgres.Config{URL: "postgres://u:canary@db:x/x", MaxConns: 4}, "DATABASE_URL"},
		"a bad password": {postgres.Config{URL: "postgres://u:canary%zz@db/x", MaxConns: 4}, "DATABASE_URL"},
		"another scheme": {postgres.Config{URL: "mysql://u:canary@db/x", MaxConns: 4}, "DATABASE_URL"},
		"bad words":      {postgres.Config{URL: "host=db password='canary", MaxConns: 4}, "DATABASE_URL"},
		"a bad sslmode": {
			postgres.Config{URL: "postgres://u:canary@db/x?sslmode=maybe", MaxConns: 4}, "DATABASE_URL",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			err := tc.cfg.Validate()
			if (err == nil) != (tc.want == "") || err != nil && !strings.Contains(err.Error(), tc.want) {
				t.Errorf("got %v", err)
			}
			text := fmt.Sprintf("%v %+v %#v %v", err, tc.cfg, tc.cfg, errors.Unwrap(err))
			if strings.Contains(text, "canary") {
				t.Errorf("it shows the password: %s", text)
			}
			if _, err := postgres.Migrate(t.Context(), postgres.Config{URL: tc.cfg.URL}); err == nil ||
				strings.Contains(err.Error(), "canary") {
				t.Errorf("migrate: %v", err)
			}
		})
	}
}

// TestMigrateConcurrently: each migration is applied once.
func TestMigrateConcurrently(t *testing.T) {
	t.Parallel()
	cfg := postgres.Config{URL: domain.Secret(testkit.EmptyDatabase(t)), MaxConns: 1}
	db := open(t, cfg.URL.Reveal())
	err := db.Check(t.Context())
	if e := apperr.As(err); e.Code != apperr.Unavailable || !strings.Contains(e.Message, "run migrate") {
		t.Errorf("an empty database: got %v", err)
	}
	var mu sync.Mutex
	times := map[string]int{}
	concurrently(3, func(int) {
		applied, err := postgres.Migrate(t.Context(), cfg)
		if err != nil {
			t.Error(err)
		}
		mu.Lock()
		defer mu.Unlock()
		for _, name := range applied {
			times[name]++
		}
	})
	for name, n := range times {
		if n != 1 {
			t.Errorf("%s was applied %d times", name, n)
		}
	}
	newest := slices.Max(slices.Collect(maps.Keys(times)))
	if !strings.HasPrefix(newest, fmt.Sprintf("%03d_", postgres.SchemaVersion)) {
		t.Errorf("applied were %v, the newest is %d", times, postgres.SchemaVersion)
	}
	if err := db.Check(t.Context()); err != nil {
		t.Errorf("afterwards: %v", err)
	}
	conn := testkit.Connect(t, cfg.URL.Reveal())
	must(conn.Exec(t.Context(), "delete from schema_versions where version_id = $1",
		postgres.SchemaVersion))(t)
	if err := db.Check(t.Context()); apperr.CodeOf(err) != apperr.Unavailable ||
		!strings.Contains(apperr.As(err).Message, "run migrate") {
		t.Errorf("an older schema: got %v", err)
	}
	must(conn.Exec(t.Context(), "insert into schema_versions (version_id, is_applied) values ($1, true)",
		postgres.SchemaVersion+1))(t)
	if err := db.Check(t.Context()); err != nil {
		t.Errorf("a newer schema, during an update: got %v", err)
	}
}

// TestPostgresAway: whatever the reason, the error is a 503 with a Retry-After.
func TestPostgresAway(t *testing.T) {
	t.Parallel()
	here := testkit.Database(t)
	silent, err := net.Listen("tcp", "127.0.0.1:0") // takes connections, and says nothing
	if err != nil {
		t.Fatal(err)
	}
	defer silent.Close()
	absent := must(url.Parse(here))(t)
	absent.Path = "/no_such_database"
	for name, db := range map[string]*postgres.DB{
		"no one listens":   open(t, "postgres://u:canary@127.0.0.1:1/x"),
		"no such socket":   open(t, "postgres:///x?host=/nowhere"),
		"no such host":     open(t, "postgres://u:canary@no-such-host.invalid/x"),
		"it is silent":     open(t, "postgres://u:canary@"+silent.Addr().String()+"/x?sslmode=disable"),
		"no such database": open(t, absent.String()),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
			defer cancel()
			err := db.Check(ctx)
			if e := apperr.As(err); e.Code != apperr.Unavailable || e.RetryAfter <= 0 ||
				e.Message != "the database is not available" {
				t.Errorf("got %s %q, again in %s: %v", e.Code, e.Message, e.RetryAfter, err)
			}
			if strings.Contains(err.Error(), "canary") {
				t.Errorf("the log shows the password: %v", err)
			}
			if ctx.Err() != nil {
				t.Error("only the caller's deadline ended it")
			}
		})
	}
}

// TestBackendKilled while it works and while it is idle: the one call fails with 503, the next is fine.
func TestBackendKilled(t *testing.T) {
	t.Parallel()
	url := testkit.Database(t)
	db := must(postgres.Open(postgres.Config{URL: domain.Secret(url), MaxConns: 1}, nil))(t)
	t.Cleanup(db.Close)
	conn := testkit.Connect(t, url)
	kill := func() {
		t.Helper()
		testkit.Eventually(t, 10*time.Second, "there is a backend to kill", func() bool {
			return testkit.Scalar[int](t, conn, `select count(pg_terminate_backend(pid))::int from pg_stat_activity
				where datname = current_database() and pid <> pg_backend_pid() and backend_type = 'client backend'`) > 0
		})
	}
	if _, err := conn.Exec(t.Context(),
		"create function slow() returns trigger language plpgsql as $$ begin perform pg_sleep(30); return new; end $$; create trigger slow before insert on jobs for each row execute function slow()"); err != nil {
		t.Fatal(err)
	}
	failed := make(chan error, 1)
	go func() {
		_, err := postgres.Jobs{DB: db}.Claim(t.Context(), "kind", "key", time.Minute)
		failed <- err
	}()
	testkit.Eventually(t, 10*time.Second, "the statement runs", func() bool {
		return testkit.Scalar[int](t, conn,
			"select count(*)::int from pg_stat_activity where datname = current_database() and wait_event = 'PgSleep'") == 1
	})
	kill()
	if err := <-failed; apperr.CodeOf(err) != apperr.Unavailable || apperr.As(err).RetryAfter <= 0 {
		t.Errorf("killed at work: got %v", err)
	}
	if err := db.Check(t.Context()); err != nil {
		t.Errorf("afterwards: %v", err)
	}
	kill()
	var err error
	for range 2 { // the dead connection may be noticed by the pool or by the call
		if err = db.Check(t.Context()); apperr.CodeOf(err) != apperr.Unavailable && err != nil {
			t.Errorf("killed while idle: got %v", err)
		}
	}
	if err != nil {
		t.Errorf("it does not recover: %v", err)
	}
}

// TestContextEnds: an exceeded deadline means that Postgres is unavailable; a client that hung up does not.
func TestContextEnds(t *testing.T) {
	t.Parallel()
	db := open(t, testkit.Database(t))
	late, cancel := context.WithDeadline(t.Context(), time.Now().Add(-time.Second))
	defer cancel()
	gone, hangUp := context.WithCancel(t.Context())
	hangUp()
	got := map[string]apperr.Code{"late": apperr.CodeOf(db.Check(late)), "gone": apperr.CodeOf(db.Check(gone))}
	if diff := cmp.Diff(map[string]apperr.Code{"late": apperr.Unavailable, "gone": apperr.ClientGone}, got); diff != "" {
		t.Error(diff)
	}
	if now, err := db.Now(t.Context()); err != nil || now.Location() != time.UTC ||
		time.Since(now).Abs() > time.Minute {
		t.Errorf("now is %s, %v", now, err)
	}
}

// withParameter is a database's URL with one parameter more.
func withParameter(t *testing.T, database, name, value string) string {
	t.Helper()
	u := must(url.Parse(database))(t)
	query := u.Query()
	query.Set(name, value)
	u.RawQuery = query.Encode()
	return u.String()
}

// timeoutsOf is what the server keeps to on one of the database's connections.
func timeoutsOf(t *testing.T, database string) map[string]string {
	t.Helper()
	got := map[string]string{}
	rows := must(open(t, database).Pool().Query(t.Context(),
		"select name, current_setting(name) from unnest($1::text[]) name",
		[]string{"statement_timeout", "lock_timeout", "idle_in_transaction_session_timeout"}))(t)
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
	sql := must(os.ReadFile("../../knative/roles.sql"))(t)
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
	tx := must(frozen.Pool().Begin(t.Context()))(t)
	defer func() { _ = tx.Rollback(t.Context()) }() // gives the connection back
	must(tx.Exec(t.Context(), "lock table orders"))(t)
	if _, err := (postgres.Orders{DB: open(t, database)}).Place(t.Context(), newOrder(1), long); err != nil {
		t.Errorf("the lock was not released: %v", err)
	}
	_, err := tx.Exec(t.Context(), "select 1")
	if err = postgres.Classify(err); apperr.CodeOf(err) != apperr.Unavailable {
		t.Errorf("its own statement: %v", err)
	}
	_, err = open(t, withParameter(t, database, "statement_timeout", "100ms")).Pool().Exec(t.Context(),
		"select pg_sleep(5)")
	if err = postgres.Classify(err); apperr.CodeOf(err) != apperr.Unavailable {
		t.Errorf("a statement without end: %v", err)
	}
}

// TestMigrateRejectsUnreleased databases, whose schema no migration changes, with the remedy in one line.
func TestMigrateRejectsUnreleased(t *testing.T) {
	t.Parallel()
	database := testkit.EmptyDatabase(t)
	conn := testkit.Connect(t, database)
	exec(t, conn, "create table goose_db_version (version_id bigint)")
	applied, err := postgres.Migrate(t.Context(), postgres.Config{URL: domain.Secret(database), MaxConns: 1})
	if err == nil || !strings.Contains(err.Error(), "drop it, create it again") ||
		strings.Contains(err.Error(), "\n") || len(applied) != 0 {
		t.Errorf("applied %v: %v", applied, err)
	}
	if testkit.Scalar[bool](t, conn, "select to_regclass('requests') is not null") {
		t.Error("it has changed the schema")
	}
}

// TestMigrateHasNoTimeouts but for locks, whatever its role or URL says: a migration may take its time.
func TestMigrateHasNoTimeouts(t *testing.T) {
	t.Parallel()
	slow := withParameter(t, testkit.EmptyDatabase(t), "statement_timeout", "5ms")
	must(postgres.Migrate(t.Context(), postgres.Config{URL: domain.Secret(slow), MaxConns: 1}))(t)
}

// TestGrantsWaitForALock: what a migration defines again each time is retried as the migrations are.
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

// TestMigrateWaitsForALock in short tries: it lets those that queue behind it go, and each migration is applied once.
func TestMigrateWaitsForALock(t *testing.T) {
	t.Parallel()
	database := testkit.EmptyDatabase(t)
	conn := testkit.Connect(t, database)
	exec(t, conn, "begin; create table sessions (id int)") // the first migration waits for the name
	released := make(chan struct{})
	time.AfterFunc(2500*time.Millisecond, func() {
		defer close(released)
		exec(t, conn, "rollback")
	})
	applied, err := postgres.Migrate(t.Context(), postgres.Config{URL: domain.Secret(database), MaxConns: 1})
	<-released
	if slices.Sort(applied); err != nil || len(applied) != len(slices.Compact(slices.Clone(applied))) ||
		!slices.Contains(applied, "001_requests.sql") {
		t.Errorf("applied %v: %v", applied, err)
	}
}
