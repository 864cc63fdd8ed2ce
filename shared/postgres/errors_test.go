package postgres_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/postgres"
	"github.com/cloudfn/cloudfn/shared/testkit"
)

// TestConditions: docs/failover.md has a row for each SQLSTATE that has a meaning, and errors have the row's code.
func TestConditions(t *testing.T) {
	t.Parallel()
	text := must(os.ReadFile(filepath.Join(testkit.Root(), "docs", "failover.md")))(t)
	if want := postgres.ConditionTable(); !strings.Contains(string(text), "\n\n"+want+"\n") {
		t.Errorf("docs/failover.md has another table of SQLSTATEs than\n%s", want)
	}
	for state, want := range map[string]apperr.Code{
		"08006": apperr.Unavailable, "23505": apperr.Conflict, "25006": apperr.Unavailable, "25P03": apperr.Unavailable,
		"28P01": apperr.Unavailable, "3D000": apperr.Unavailable, "40001": apperr.Unavailable, "40P01": apperr.Unavailable,
		"42P01": apperr.Unavailable, "53100": apperr.Unavailable, "53300": apperr.Unavailable, "55P03": apperr.Unavailable,
		"57014": apperr.Unavailable, "57P01": apperr.Unavailable, "57P02": apperr.Unavailable, "57P03": apperr.Unavailable,
		"57P05": apperr.Unavailable, "58030": apperr.Unavailable, "42601": apperr.Internal, "25001": apperr.Internal,
		"XX000": apperr.Internal, "": apperr.Internal, "2": apperr.Internal,
	} {
		e := apperr.As(postgres.Classify(fmt.Errorf("insert: %w", &pgconn.PgError{Code: state})))
		if e.Code != want || (e.RetryAfter > 0) != (want == apperr.Unavailable) {
			t.Errorf("%s: got %s %q, again in %s; want %s", state, e.Code, e.Message, e.RetryAfter, want)
		}
	}
}

// TestReadOnlyConnectionsAreClosed: connections that were made while the server took no writes are closed by the first
// write that it refuses, however it is sent. The next write works.
func TestReadOnlyConnectionsAreClosed(t *testing.T) {
	t.Parallel()
	database := testkit.Database(t)
	conn, role := testkit.Connect(t, database), "role_"+strings.ReplaceAll(uuid.NewString(), "-", "")
	exec(t, conn, fmt.Sprintf("create role %s login superuser", role))
	t.Cleanup(func() {
		if _, err := conn.Exec(context.Background(), "drop role "+role); err != nil {
			t.Error(err)
		}
	})
	const insert = "insert into jobs (kind, key) values ('k', gen_random_uuid()::text)"
	for name, write := range map[string]func(pool *pgxpool.Pool) error{
		"a statement": func(pool *pgxpool.Pool) error {
			_, err := pool.Exec(t.Context(), insert)
			return err
		},
		"a query": func(pool *pgxpool.Pool) error {
			rows, err := pool.Query(t.Context(), insert+" returning kind")
			if err != nil {
				return err
			}
			_, err = pgx.CollectRows(rows, pgx.RowTo[string])
			return err
		},
		"a batch": func(pool *pgxpool.Pool) error {
			batch := &pgx.Batch{}
			batch.Queue("select 1")
			batch.Queue(insert)
			return pool.SendBatch(t.Context(), batch).Close()
		},
		"a copy": func(pool *pgxpool.Pool) error {
			_, err := pool.CopyFrom(t.Context(), pgx.Identifier{"jobs"}, []string{"kind", "key"},
				pgx.CopyFromRows([][]any{{"k", uuid.NewString()}}))
			return err
		},
		"a transaction": func(pool *pgxpool.Pool) error {
			return pgx.BeginFunc(t.Context(), pool, func(tx pgx.Tx) error {
				_, err := tx.Exec(t.Context(), insert)
				return err
			})
		},
	} {
		exec(t, conn, fmt.Sprintf("alter role %s set default_transaction_read_only = on", role))
		pool := open(t, withParameter(t, database, "user", role)).Pool()
		var held []*pgxpool.Conn
		for range 3 {
			c := must(pool.Acquire(t.Context()))(t)
			held = append(held, c)
		}
		held[0].Release()
		held[1].Release()
		exec(t, conn, fmt.Sprintf("alter role %s reset default_transaction_read_only", role))
		err := postgres.Classify(write(pool))
		if e := apperr.As(err); e.Code != apperr.Unavailable || e.RetryAfter <= 0 ||
			!strings.Contains(err.Error(), "25006") {
			t.Errorf("%s: got %v", name, err)
		}
		held[2].Release()
		for range 3 {
			if err := write(pool); err != nil {
				t.Errorf("%s: afterwards: %v", name, err)
			}
		}
	}
}

// TestConditionsCloseConnections: after an SQLSTATE as many connections of the pool are kept as docs/failover.md says.
func TestConditionsCloseConnections(t *testing.T) {
	t.Parallel()
	const size = 3
	pool := open(t, testkit.Database(t)).Pool()
	backends := func() (pids []uint32) {
		t.Helper()
		for range size {
			c := must(pool.Acquire(t.Context()))(t)
			defer c.Release()
			pids = append(pids, c.Conn().PgConn().PID())
		}
		return pids
	}
	for state, want := range map[string]int{
		"08006": size - 1, "25P03": size - 1, "28P01": size - 1, "3D000": size - 1, "57P03": size - 1,
		"57P05": size - 1, "25006": 0, "57P01": 0, "57P02": 0,
		"23505": size, "40P01": size, "42P01": size, "53300": size, "55P03": size, "57014": size, "58030": size,
		"42601": size, "22012": size,
	} {
		before := backends()
		_, err := pool.Exec(t.Context(), fmt.Sprintf("do $$ begin raise 'x' using errcode = '%s'; end $$", state))
		if err == nil || !strings.Contains(err.Error(), state) {
			t.Fatalf("%s: got %v", state, err)
		}
		kept := 0
		for _, pid := range backends() {
			if slices.Contains(before, pid) {
				kept++
			}
		}
		if kept != want {
			t.Errorf("%s: %d of %d connections are kept, want %d", state, kept, size, want)
		}
	}
}

// TestConnectionsThatAreRefused: a changed password and a full server are 503, and end with their cause.
func TestConnectionsThatAreRefused(t *testing.T) {
	t.Parallel()
	database := testkit.Database(t)
	conn, role := testkit.Connect(t, database), "role_"+strings.ReplaceAll(uuid.NewString(), "-", "")
	exec(t, conn, fmt.Sprintf("create role %s nologin", role))
	t.Cleanup(func() {
		if _, err := conn.Exec(context.Background(), "drop role "+role); err != nil {
			t.Error(err)
		}
	})
	db := open(t, withParameter(t, database, "user", role))
	refused := func(state string) {
		t.Helper()
		_, err := db.Now(t.Context())
		if e := apperr.As(err); e.Code != apperr.Unavailable || e.RetryAfter <= 0 ||
			!strings.Contains(err.Error(), state) {
			t.Errorf("want %s, got %v", state, err)
		}
	}
	refused("28000")
	exec(t, conn, fmt.Sprintf("alter role %s login connection limit 0", role))
	refused("53300")
	exec(t, conn, fmt.Sprintf("alter role %s connection limit -1", role))
	if _, err := db.Now(t.Context()); err != nil {
		t.Errorf("afterwards: %v", err)
	}
}

// TestSeveralHosts: of the hosts of a URL the one that takes writes is used, whichever is first.
func TestSeveralHosts(t *testing.T) {
	t.Parallel()
	for url, want := range map[string]bool{
		"postgres://u@a/x?sslmode=prefer":                               false, // with TLS and without, of one host
		"postgres://u@a,b/x":                                            true,
		"postgres://u@a:1,a:2/x":                                        true,
		"postgres:///x?host=/a,/b&user=u":                               true,
		"postgres://u@a,b/x?target_session_attrs=any":                   true,
		"host=a,b user=u dbname=x":                                      true,
		"postgres://u@a/x?target_session_attrs=read-write":              true,
		"postgres://u@a/x?sslmode=disable&default_query_exec_mode=exec": false,
	} {
		config := must(pgx.ParseConfig(url))(t)
		if postgres.RequireWrites(&config.Config); (config.ValidateConnect != nil) != want {
			t.Errorf("%s: a connection has to take writes: %t, want %t", url, !want, want)
		}
	}
}
