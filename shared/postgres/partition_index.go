package postgres

import (
	"context"
	"database/sql"
	"fmt"
	"log/slog"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/cloudfn/cloudfn/shared/flow"
)

// partitionIndexes are indexes of the request log that a migration has made on the parent only: Postgres cannot build
// an index concurrently on a partitioned table, and any other way holds up every request.
var partitionIndexes = []struct{ name, definition string }{
	{"requests_acted", "(acted_in, id desc) where connection_id is not null"},
}

// Partitions of the log that have no part of the index; left says that an aborted build has left an invalid one.
const unindexedSQL = `
select t.relname, exists (select from pg_class c where c.relnamespace = t.relnamespace and c.relname = t.relname || $2)
from pg_inherits p join pg_class t on t.oid = p.inhrelid
where p.inhparent = 'requests'::regclass and not exists (
    select from pg_inherits i join pg_index x on x.indexrelid = i.inhrelid
    where i.inhparent = to_regclass($1) and x.indrelid = t.oid)
order by t.relname`

// indexLock keeps two migrations from building the same index at once (pg_try_advisory_lock).
const indexLock = partitionLock + 1

// indexPartitions builds the parts of indexes that partitions lack, while others write. It is idempotent. A later
// partition gets its part with the table.
func indexPartitions(ctx context.Context, db *sql.DB) error {
	conn, err := db.Conn(ctx)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }()
	var mine bool
	for !mine {
		if err := conn.QueryRowContext(ctx, "select pg_try_advisory_lock($1)", indexLock).Scan(&mine); err != nil {
			return err
		}
		if !mine && !flow.Sleep(ctx, migratePause) {
			return ctx.Err()
		}
	}
	defer func() {
		_, _ = conn.ExecContext(context.WithoutCancel(ctx), "select pg_advisory_unlock($1)", indexLock)
	}()
	for _, index := range partitionIndexes {
		if err := indexLacking(ctx, conn, index.name, index.definition); err != nil {
			return fmt.Errorf("index %s: %w", index.name, err)
		}
	}
	return nil
}

func indexLacking(ctx context.Context, conn *sql.Conn, name, definition string) error {
	suffix := strings.TrimPrefix(name, "requests")
	rows, err := conn.QueryContext(ctx, unindexedSQL, name, suffix)
	if err != nil {
		return err
	}
	defer func() { _ = rows.Close() }()
	type lacking struct {
		table string
		left  bool
	}
	var list []lacking
	for rows.Next() {
		var l lacking
		if err := rows.Scan(&l.table, &l.left); err != nil {
			return err
		}
		list = append(list, l)
	}
	if err := rows.Err(); err != nil {
		return err
	}
	for _, l := range list {
		if err := indexOne(ctx, conn, name, l.table, l.table+suffix, definition, l.left); err != nil {
			return err
		}
	}
	return nil
}

// indexOne builds the index on one partition. The build waits for transactions without holding up others, so it may
// wait for long.
func indexOne(ctx context.Context, conn *sql.Conn, parent, table, part, definition string, left bool) error {
	quote := func(name string) string { return pgx.Identifier{name}.Sanitize() }
	build := []string{"set lock_timeout = 0"}
	if left {
		build = append(build, "drop index concurrently if exists "+quote(part))
	}
	build = append(build,
		"create index concurrently "+quote(part)+" on "+quote(table)+" "+definition, "set lock_timeout = '1s'")
	for _, statement := range build {
		if _, err := conn.ExecContext(ctx, statement); err != nil {
			return err
		}
	}
	attach := fmt.Sprintf("alter index %s attach partition %s", quote(parent), quote(part))
	for n := 0; ; n++ {
		_, err := conn.ExecContext(ctx, attach)
		if sqlState(err) != stateLockNotGranted || n == migrateTries {
			return err
		}
		slog.InfoContext(ctx, "an index waits for a lock: it is retried", "index", part)
		if !flow.Sleep(ctx, migratePause) {
			return ctx.Err()
		}
	}
}
