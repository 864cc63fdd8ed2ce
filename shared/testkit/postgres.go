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
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/postgres"
)

// templateLock keeps parallel test processes from making the template concurrently.
const templateLock = 0x74656d706c

// Database makes a database for the test from a migrated template, and returns its URL. It is in the cluster of
// TEST_DATABASE_URL, or the checkout's.
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
	must(conn.Exec(context.Background(), "create database "+name+" template "+template))(t)
	at := withDatabase(t, base, name)
	t.Cleanup(func() { // processes that use it were started later, so they have ended
		NoSecrets(t, at)
		drop(t, base, name)
	})
	return at
}

var clusterOnce sync.Mutex

// clusterURL starts the cluster once per test process, and returns the URL of its own database.
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
	must(conn.Exec(ctx, "select pg_advisory_lock($1)", templateLock))(t)
	defer func() { _, _ = conn.Exec(ctx, "select pg_advisory_unlock($1)", templateLock) }()
	if Scalar[bool](t, conn, "select exists (select from pg_database where datname = $1 and datistemplate)", template) {
		return
	}
	for _, sql := range []string{"drop database if exists " + template, "create database " + template} {
		must(conn.Exec(ctx, sql))(t)
	}
	cfg := postgres.Config{URL: domain.Secret(withDatabase(t, base, template)), MaxConns: 1}
	must(postgres.Migrate(ctx, cfg))(t)
	// Only a complete template is marked: a test process may die before this.
	must(conn.Exec(ctx, "alter database "+template+" is_template true"))(t)
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
	u := must(url.Parse(base))(t)
	u.Path = "/" + name
	return u.String()
}

// Connect opens a connection to a database of the test, for statements that need one session.
func Connect(t testing.TB, databaseURL string) *pgx.Conn {
	t.Helper()
	conn := must(pgx.Connect(context.Background(), databaseURL))(t)
	t.Cleanup(func() { _ = conn.Close(context.Background()) })
	return conn
}

// Pool returns the test's connections to its database. Each call returns the same pool, so a test that polls for a row
// does not use up the server's connections.
func Pool(t testing.TB, databaseURL string) *pgxpool.Pool {
	t.Helper()
	poolsLock.Lock()
	defer poolsLock.Unlock()
	of := poolOf{t, databaseURL}
	if pool, ok := pools[of]; ok {
		return pool
	}
	pool := must(pgxpool.New(context.Background(), databaseURL))(t)
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

// Querier is a connection or a pool.
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

// Dump returns every row of every table as text.
func Dump(t testing.TB, databaseURL string) string {
	t.Helper()
	conn := Connect(t, databaseURL)
	rows, _ := conn.Query(context.Background(), allTables)
	tables, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil || len(tables) == 0 {
		t.Fatalf("no tables: %v", err)
	}
	var dump strings.Builder
	for _, table := range tables {
		rows, _ := conn.Query(context.Background(), "select t::text from "+pgx.Identifier{table}.Sanitize()+" t")
		lines := must(pgx.CollectRows(rows, pgx.RowTo[string]))(t)
		for _, line := range lines {
			dump.WriteString(line + "\n")
		}
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
	must(pgx.ForEachRow(rows, []any{&key, &value}, func() error { pairs[key] = value; return nil }))(t)
	return pairs
}

// Cluster is a Postgres of the test's own, which it may stop.
type Cluster struct {
	URL  string
	data string
}

// NewCluster makes and starts a cluster with a migrated database.
func NewCluster(t testing.TB) *Cluster {
	t.Helper()
	c := &Cluster{data: filepath.Join(t.TempDir(), "postgres")}
	c.URL = c.script(t, "up")
	t.Cleanup(func() { c.script(t, "purge") })
	must(postgres.Migrate(context.Background(), postgres.Config{URL: domain.Secret(c.URL), MaxConns: 1}))(t)
	t.Cleanup(func() {
		c.Start(t)
		NoSecrets(t, c.URL)
	})
	return c
}

// NewStandby makes a cluster that follows another one.
func NewStandby(t testing.TB, primary *Cluster) *Cluster {
	t.Helper()
	c := &Cluster{data: filepath.Join(t.TempDir(), "postgres")}
	c.Follow(t, primary)
	t.Cleanup(func() { c.script(t, "purge") })
	return c
}

// Socket returns the folder of its socket.
func (c *Cluster) Socket(t testing.TB) string {
	t.Helper()
	return must(url.Parse(c.URL))(t).Query().Get("host")
}

// Follow makes it a standby of a primary, and starts it. It must not have changes that the primary lacks.
func (c *Cluster) Follow(t testing.TB, primary *Cluster) {
	t.Helper()
	c.URL = c.script(t, "standby", primary.Socket(t))
}

// StartPgBouncer starts a PgBouncer before the cluster: port 6432 of its socket.
func (c *Cluster) StartPgBouncer(t testing.TB) {
	t.Helper()
	c.run(t, "pgbouncer", "up")
	t.Cleanup(func() { c.run(t, "pgbouncer", "down") })
}

// Promote makes a standby a primary.
func (c *Cluster) Promote(t testing.TB) { t.Helper(); c.script(t, "promote") }

// ShutDown stops the cluster when its standby has all of its changes.
func (c *Cluster) ShutDown(t testing.TB) { t.Helper(); c.script(t, "down") }

// Stop crashes the cluster.
func (c *Cluster) Stop(t testing.TB) { t.Helper(); c.script(t, "crash") }

// Start starts it again.
func (c *Cluster) Start(t testing.TB) { t.Helper(); c.script(t, "up") }

func (c *Cluster) script(t testing.TB, args ...string) string {
	t.Helper()
	return c.run(t, "postgres", args...)
}

func (c *Cluster) run(t testing.TB, script string, args ...string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, filepath.Join(Root(), "scripts", script), args...)
	cmd.Env = append(cmd.Environ(), "CLOUDFN_POSTGRES="+c.data)
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("scripts/%s %v: %v\n%s", script, args, err, out)
	}
	return lastLine(out)
}

// What a replica leaves of a request with an Idempotency-Key when it dies, or works on it.
const (
	Died    = "clock_timestamp() - interval '1 second'" // before it stored the response; its claim has ended
	AtWork  = "clock_timestamp() + interval '1 minute'"
	noReply = "update idempotency_keys set response = null, claim_id = gen_random_uuid(), claimed_until = "
)

// UseUp has every source of a rate limit that has counted a request exceed it.
func UseUp(t testing.TB, conn *pgx.Conn, limit string) {
	t.Helper()
	const sql = "update rate_limits set used_up = clock_timestamp() + interval '30 minutes' where name = $1"
	if n := must(conn.Exec(t.Context(), sql, limit))(t).RowsAffected(); n == 0 {
		t.Fatalf("the limit %s has counted nothing", limit)
	}
}

// LeaveRequests makes all requests with an Idempotency-Key what a replica leaves of them.
func LeaveRequests(t testing.TB, conn *pgx.Conn, state string) {
	t.Helper()
	if _, err := conn.Exec(t.Context(), noReply+state); err != nil {
		t.Fatal(err)
	}
}
