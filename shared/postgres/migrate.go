package postgres

import (
	"context"
	"database/sql"
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"maps"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/pressly/goose/v3"
	"github.com/pressly/goose/v3/lock"

	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/flow"
)

//go:embed migrations/*.sql
var migrations embed.FS

// grantsSQL is what the functions' roles may do.
//
//go:embed grants.sql
var grantsSQL string

// fanOutSQL is the trigger that writes the deliveries of an event.
//
//go:embed fan_out.sql
var fanOutSQL string

// monthsSQL are the functions that make and drop the months of the request log.
//
//go:embed months.sql
var monthsSQL string

// VersionTable has the versions of the migrations that were applied.
const VersionTable = "schema_versions"

// SchemaVersion is the version of the newest migration in this program.
var SchemaVersion = newest()

func newest() int64 {
	names, err := fs.Glob(migrations, "migrations/*.sql")
	if err != nil || len(names) == 0 {
		panic("postgres: no migrations embedded") // cannot happen in a program that compiled
	}
	digits, _, _ := strings.Cut(path.Base(names[len(names)-1]), "_")
	version, err := strconv.ParseInt(digits, 10, 64)
	if err != nil {
		panic("postgres: a migration's name has no number: " + digits)
	}
	return version
}

// Migrations is the text of all that makes the schema, to identify a schema by its content.
func Migrations() (text []byte) {
	names, _ := fs.Glob(migrations, "migrations/*.sql")
	for _, name := range names {
		file, _ := migrations.ReadFile(name)
		text = append(text, file...)
	}
	return append(append(text, fanOutSQL...), monthsSQL...)
}

// Migrate brings the schema to SchemaVersion under a session lock, so that several may try concurrently. It needs a
// direct connection: a session lock does not survive PgBouncer's transaction mode. It returns the names of the
// migrations that it applied. Then it replaces functions and grants.
func Migrate(ctx context.Context, cfg Config) ([]string, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	db, err := openMigrations(cfg)
	if err != nil {
		return nil, err
	}
	defer func() { _ = db.Close() }()
	if err := rejectUnreleased(ctx, db); err != nil {
		return nil, err
	}
	locker, err := lock.NewPostgresSessionLocker()
	if err != nil {
		return nil, err
	}
	files, err := fs.Sub(migrations, "migrations")
	if err != nil {
		return nil, err
	}
	provider, err := goose.NewProvider(goose.DialectPostgres, db, files,
		goose.WithSessionLocker(locker), goose.WithDisableGlobalRegistry(true), goose.WithTableName(VersionTable))
	if err != nil {
		return nil, err
	}
	applied, err := up(ctx, provider)
	if err != nil {
		return applied, err
	}
	return applied, retryMigration(ctx, func() error { return replace(ctx, db, fanOutSQL, monthsSQL, grantsSQL) })
}

// errUnreleased is one line, because scripts/deploy shows the last line of the migrate Job.
var errUnreleased = errors.New("this database is of cloudfn 0.4 or older, or of an unreleased build, and nothing " +
	"migrates it: drop it, create it again and repeat migrate (the database of make run: scripts/postgres purge)")

// rejectUnreleased recognizes such a database by goose's table, which had its default name. The numbers of its
// migrations have another meaning now.
func rejectUnreleased(ctx context.Context, db *sql.DB) error {
	var isOld bool
	err := db.QueryRowContext(ctx, "select to_regclass('goose_db_version') is not null").Scan(&isOld)
	if err == nil && isOld {
		err = errUnreleased
	}
	return err
}

// A migration may take long. But while one of its statements waits for a lock on a table that is in use, all other
// statements queue behind it: so it gives up soon, lets the queue pass, and retries. A concurrent build holds up
// no one, and lifts the limit for itself.
const (
	migrateSettings = "set statement_timeout = 0; set idle_in_transaction_session_timeout = 0; set lock_timeout = '1s'"
	migrateTries    = 60
	migratePause    = 2 * time.Second
)

func openMigrations(cfg Config) (*sql.DB, error) {
	pc, err := pgx.ParseConfig(cfg.URL.Reveal())
	if err != nil {
		return nil, err
	}
	requireWrites(&pc.Config)
	return stdlib.OpenDB(*pc, stdlib.OptionAfterConnect(func(ctx context.Context, conn *pgx.Conn) error {
		_, err := conn.Exec(ctx, migrateSettings)
		return err
	})), nil
}

// up applies the pending migrations and names them. Each migration is applied as a whole, or can be repeated.
func up(ctx context.Context, provider *goose.Provider) (applied []string, err error) {
	err = retryMigration(ctx, func() error {
		results, err := provider.Up(ctx)
		if partial, ok := errors.AsType[*goose.PartialError](err); ok {
			results = partial.Applied
		}
		for _, r := range results {
			applied = append(applied, path.Base(r.Source.Path))
		}
		return err
	})
	return applied, err
}

// retryMigration repeats what did not get its locks, or was ended to resolve a deadlock.
func retryMigration(ctx context.Context, migrate func() error) error {
	for try := 1; ; try++ {
		err := migrate()
		state := sqlState(err)
		if state != stateLockNotGranted && state != stateDeadlock || try == migrateTries {
			return err
		}
		slog.InfoContext(ctx, "a migration waits for a lock: it is retried", "error", err)
		if !flow.Sleep(ctx, migratePause) {
			return ctx.Err()
		}
	}
}

// replace runs the scripts that define parts of the schema again with every migration.
func replace(ctx context.Context, db *sql.DB, scripts ...string) error {
	tx, err := db.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer func() { _ = tx.Rollback() }() // after Commit it does nothing
	for _, script := range scripts {
		if _, err := tx.ExecContext(ctx, script); err != nil {
			return fmt.Errorf("functions and grants: %w", err)
		}
	}
	return tx.Commit()
}

const schemaSQL = `select coalesce(max(version_id), 0) from ` + VersionTable + ` where is_applied`

// Check checks that Postgres answers and that its schema is new enough, in one round trip.
func (db *DB) Check(ctx context.Context) error {
	version, err := queryValue[int64](ctx, db.pool, schemaSQL)
	if err != nil {
		return err
	}
	if version < SchemaVersion {
		cause := fmt.Errorf("schema is at %d, this program needs %d", version, SchemaVersion)
		return apperr.Wrap(apperr.Unavailable, cause, needsMigrate)
	}
	return nil
}

// ReadConnections is the right to read connections without what is sealed in them.
const ReadConnections = `select (id, project_id, domain_id, user_id, name, kind, auth_url, region, delegation_id,
  acts_as, ` +
	"actions, quota, limits, usable_by, usable_names, flavors, status, reason, revoked, trust_expires_at, " +
	"revocation_pending_since, expires_at, idle_timeout, last_used_at, seq, created_at, updated_at, checked_at, " +
	"next_check_at, check_until, check_failed_at, check_error, generation, credential_expires_at, suspended_at, " +
	"resumed_at, lease_id, managed)"

// ReadCallbacks is the right to read callbacks without their secrets.
const ReadCallbacks = "select (id, project_id, of_project, user_id, url, events, instance_id, order_id, " +
	"connection_id, status, reason, seq, previous_until, allowed_rate, created_at, updated_at)"

// ConnectInstances are the columns of instances that connecting a server writes.
const ConnectInstances = "connection_id, disconnected_at, reusable, server_id, name, state, raw_status, problem, " +
	"addresses, key_name, key_fingerprint, missed_at, seen_at, nova_at, spec, seq, updated_at"

// privilege finds one in a list of rights, with its columns.
var privilege = regexp.MustCompile(`\b(select|insert|update|delete|execute)\b(?: ?\(([^)]*)\))?`)

// Grants is the SQL that gives a role the rights of several lists, each by table or by "function name(type)".
func Grants(role string, lists ...map[string]string) string {
	rights := map[string]map[string][]string{} // columns by table and privilege; none is all of them
	for _, list := range lists {
		for table, text := range list {
			if rights[table] == nil {
				rights[table] = map[string][]string{}
			}
			for _, found := range privilege.FindAllStringSubmatch(text, -1) {
				merge(rights[table], found[1], found[2])
			}
		}
	}
	var sql strings.Builder
	for _, table := range slices.Sorted(maps.Keys(rights)) {
		var parts []string
		for _, name := range slices.Sorted(maps.Keys(rights[table])) {
			if columns := rights[table][name]; len(columns) > 0 {
				name += " (" + strings.Join(columns, ", ") + ")"
			}
			parts = append(parts, name)
		}
		fmt.Fprintf(&sql, "grant %s on %s to %s;\n", strings.Join(parts, ", "), table, role)
	}
	return sql.String()
}

func merge(privileges map[string][]string, name, list string) {
	known, had := privileges[name]
	if list == "" || had && len(known) == 0 {
		privileges[name] = nil
		return
	}
	for column := range strings.SplitSeq(list, ",") {
		known = append(known, strings.TrimSpace(column))
	}
	slices.Sort(known)
	privileges[name] = slices.Compact(known)
}
