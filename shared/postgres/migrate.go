package postgres

import (
	"context"
	"database/sql"
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"path"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/stdlib" // the database/sql driver that goose needs
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

// Migrate brings the schema to SchemaVersion under a session lock, so that several may try at once. It needs a direct
// connection: a session lock does not survive PgBouncer's transaction mode. It returns the names of the migrations that
// it applied. Then it builds the indexes that partitions lack, and replaces functions and grants.
func Migrate(ctx context.Context, cfg Config) ([]string, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	db, err := openMigrations(cfg)
	if err != nil {
		return nil, err
	}
	defer func() { _ = db.Close() }()
	locker, err := lock.NewPostgresSessionLocker()
	if err != nil {
		return nil, err
	}
	files, err := fs.Sub(migrations, "migrations")
	if err != nil {
		return nil, err
	}
	provider, err := goose.NewProvider(goose.DialectPostgres, db, files,
		goose.WithSessionLocker(locker), goose.WithDisableGlobalRegistry(true))
	if err != nil {
		return nil, err
	}
	applied, err := up(ctx, provider)
	if err != nil {
		return applied, err
	}
	if err := indexPartitions(ctx, db); err != nil {
		return applied, err
	}
	return applied, retryMigration(ctx, func() error { return replace(ctx, db, fanOutSQL, monthsSQL, grantsSQL) })
}

// A migration may take long. But while one of its statements waits for a lock on a table that is in use, all other
// statements queue behind it: so it gives up soon, lets the queue pass, and retries. A concurrent build holds up
// nobody, and lifts the limit for itself.
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

// replace runs the scripts that define parts of the schema anew with every migration.
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

const schemaSQL = `select coalesce(max(version_id), 0) from goose_db_version where is_applied`

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
