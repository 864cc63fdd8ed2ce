package testkit

import (
	"context"
	"crypto/sha256"
	"fmt"
	"math/rand/v2"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/postgres"
)

// templateLock keeps parallel test processes from making the template at once.
const templateLock = 0x74656d706c

// Database makes a database of the test's own, cloned from a migrated template, and gives its URL. The cluster
// is TEST_DATABASE_URL's, else the checkout's.
func Database(t testing.TB) string {
	t.Helper()
	ctx := context.Background()
	base := clusterURL(t)
	conn, err := pgx.Connect(ctx, base)
	if err != nil {
		t.Fatalf("postgres: %v", err)
	}
	defer conn.Close(ctx)
	template := fmt.Sprintf("cloudfn_template_%x", sha256.Sum256(postgres.Migrations()))[:40]
	makeTemplate(t, conn, base, template)
	return create(t, conn, base, template)
}

// EmptyDatabase makes a database without a schema.
func EmptyDatabase(t testing.TB) string {
	t.Helper()
	base := clusterURL(t)
	conn := Connect(t, base)
	return create(t, conn, base, "template0")
}

func create(t testing.TB, conn *pgx.Conn, base, template string) string {
	t.Helper()
	name := fmt.Sprintf("cloudfn_test_%x", rand.Uint64())
	if _, err := conn.Exec(context.Background(), "create database "+name+" template "+template); err != nil {
		t.Fatal(err)
	}
	at := withDatabase(t, base, name)
	t.Cleanup(func() { // what works with it was started later, and so has ended
		NoSecrets(t, at)
		drop(t, base, name)
	})
	return at
}

var clusterOnce sync.Mutex

// clusterURL is the URL of the cluster's own database, brought up once per test process.
func clusterURL(t testing.TB) string {
	t.Helper()
	clusterOnce.Lock()
	defer clusterOnce.Unlock()
	if knownCluster == "" {
		if knownCluster = os.Getenv("TEST_DATABASE_URL"); knownCluster == "" {
			knownCluster = script(t, "postgres", "up")
		}
	}
	return knownCluster
}

var knownCluster string

func makeTemplate(t testing.TB, conn *pgx.Conn, base, template string) {
	t.Helper()
	ctx := context.Background()
	if _, err := conn.Exec(ctx, "select pg_advisory_lock($1)", templateLock); err != nil {
		t.Fatal(err)
	}
	defer func() { _, _ = conn.Exec(ctx, "select pg_advisory_unlock($1)", templateLock) }()
	var ready bool
	if err := conn.QueryRow(ctx, "select exists (select from pg_database where datname = $1 and datistemplate)", template).Scan(&ready); err != nil {
		t.Fatal(err)
	}
	if ready {
		return
	}
	for _, sql := range []string{"drop database if exists " + template, "create database " + template} {
		if _, err := conn.Exec(ctx, sql); err != nil {
			t.Fatal(err)
		}
	}
	cfg := postgres.Config{URL: domain.Secret(withDatabase(t, base, template)), MaxConns: 1}
	if _, err := postgres.Migrate(ctx, cfg); err != nil {
		t.Fatal(err)
	}
	// Only a finished one is marked: a test process that dies before this leaves no half template behind.
	if _, err := conn.Exec(ctx, "alter database "+template+" is_template true"); err != nil {
		t.Fatal(err)
	}
}

func drop(t testing.TB, base, name string) {
	ctx := context.Background()
	conn, err := pgx.Connect(ctx, base)
	if err != nil {
		t.Errorf("postgres: %v", err)
		return
	}
	defer conn.Close(ctx)
	if _, err := conn.Exec(ctx, "drop database "+name+" with (force)"); err != nil {
		t.Errorf("postgres: %v", err)
	}
}

func withDatabase(t testing.TB, base, name string) string {
	t.Helper()
	u, err := url.Parse(base)
	if err != nil {
		t.Fatal(err)
	}
	u.Path = "/" + name
	return u.String()
}

// Connect opens a connection to a database of the test, for what needs a session.
func Connect(t testing.TB, databaseURL string) *pgx.Conn {
	t.Helper()
	conn, err := pgx.Connect(context.Background(), databaseURL)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close(context.Background()) })
	return conn
}

// Pool gives the test's connections to a database of its own, to look at rows: the same ones however often it is called, so
// that a test that waits for a row does not use up the server's connections.
func Pool(t testing.TB, databaseURL string) *pgxpool.Pool {
	t.Helper()
	poolsLock.Lock()
	defer poolsLock.Unlock()
	of := poolOf{t, databaseURL}
	if pool, ok := pools[of]; ok {
		return pool
	}
	pool, err := pgxpool.New(context.Background(), databaseURL)
	if err != nil {
		t.Fatal(err)
	}
	pools[of] = pool
	t.Cleanup(func() {
		poolsLock.Lock()
		delete(pools, of)
		poolsLock.Unlock()
		pool.Close()
	})
	return pool
}

type poolOf struct {
	t   testing.TB
	url string
}

var (
	poolsLock sync.Mutex
	pools     = map[poolOf]*pgxpool.Pool{}
)

// Querier is a connection, or several.
type Querier interface {
	Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error)
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
}

// Scalar reads one value.
func Scalar[T any](t testing.TB, conn Querier, sql string, args ...any) T {
	t.Helper()
	rows, _ := conn.Query(context.Background(), sql, args...)
	value, err := pgx.CollectExactlyOneRow(rows, pgx.RowTo[T])
	if err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
	return value
}

// Dump is every row of every table as text, to look for what must not be there.
func Dump(t testing.TB, databaseURL string) string {
	t.Helper()
	conn := Connect(t, databaseURL)
	rows, _ := conn.Query(context.Background(), "select relname from pg_class where relnamespace = 'public'::regnamespace and relkind = 'r'")
	tables, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil || len(tables) == 0 {
		t.Fatalf("no tables: %v", err)
	}
	var dump strings.Builder
	for _, table := range tables {
		rows, _ := conn.Query(context.Background(), "select t::text from "+pgx.Identifier{table}.Sanitize()+" t")
		lines, err := pgx.CollectRows(rows, pgx.RowTo[string])
		if err != nil {
			t.Fatal(err)
		}
		dump.WriteString(strings.Join(lines, "\n"))
	}
	return dump.String()
}

// Pairs reads rows of a text and a number.
func Pairs(t testing.TB, conn Querier, sql string) map[string]int {
	t.Helper()
	rows, _ := conn.Query(context.Background(), sql)
	pairs := map[string]int{}
	var key string
	var value int
	if _, err := pgx.ForEachRow(rows, []any{&key, &value}, func() error { pairs[key] = value; return nil }); err != nil {
		t.Fatal(err)
	}
	return pairs
}

var pgbouncer struct {
	sync.Mutex
	isUp bool
}

// PgBouncer is a database of the checkout's cluster as clients reach it through a PgBouncer in transaction mode.
func PgBouncer(t testing.TB, database string) string {
	t.Helper()
	pgbouncer.Lock()
	defer pgbouncer.Unlock()
	if !pgbouncer.isUp {
		if out, err := exec.Command(filepath.Join(Root(), "scripts", "pgbouncer"), "up").CombinedOutput(); err != nil {
			t.Fatalf("no PgBouncer, so nothing is tested behind one: %v\n%s", err, out)
		}
		pgbouncer.isUp = true
	}
	u, err := url.Parse(database)
	if err != nil {
		t.Fatal(err)
	}
	query := u.Query()
	query.Set("port", "6432")
	query.Set("default_query_exec_mode", "cache_describe")
	u.RawQuery = query.Encode()
	return u.String()
}
