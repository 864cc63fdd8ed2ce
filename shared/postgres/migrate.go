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
)

//go:embed migrations/*.sql
var migrations embed.FS

//go:embed grants.sql
var grantsSQL string

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

// Migrations is the text of all migrations, to name a schema by its content.
func Migrations() (text []byte) {
	names, _ := fs.Glob(migrations, "migrations/*.sql")
	for _, name := range names {
		file, _ := migrations.ReadFile(name)
		text = append(text, file...)
	}
	return text
}

// Migrate brings the schema to SchemaVersion under a session lock, so that several may try at once.
// It needs a direct connection: a session lock does not survive PgBouncer's transaction mode.
// It returns the names of the migrations that it applied. Then it builds what indexes partitions lack, and says anew what
// the functions' roles may do.
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
	provider, err := goose.NewProvider(goose.DialectPostgres, db, files, goose.WithSessionLocker(locker), goose.WithDisableGlobalRegistry(true))
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
	return applied, grant(ctx, db)
}

// A migration may take its time. But while one of its statements waits for a lock on a table that is read or written for long,
// everybody else queues behind it: so it gives up soon, lets the queue go, and tries again. What is built concurrently waits
// for transactions that hold nobody up, and takes the limit off for itself.
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
	return stdlib.OpenDB(*pc, stdlib.OptionAfterConnect(func(ctx context.Context, conn *pgx.Conn) error {
		_, err := conn.Exec(ctx, migrateSettings)
		return err
	})), nil
}

// up applies what is pending, and says what that was. Each migration is applied as a whole, or can be applied again.
func up(ctx context.Context, provider *goose.Provider) (applied []string, err error) {
	for n := range migrateTries {
		if n > 0 {
			slog.InfoContext(ctx, "a migration waits for a lock: it is retried", "error", err)
			select {
			case <-ctx.Done():
				return applied, ctx.Err()
			case <-time.After(migratePause):
			}
		}
		var results []*goose.MigrationResult
		results, err = provider.Up(ctx)
		if partial, ok := errors.AsType[*goose.PartialError](err); ok {
			results = partial.Applied
		}
		for _, r := range results {
			applied = append(applied, path.Base(r.Source.Path))
		}
		if sqlState(err) != "55P03" { // lock_not_available
			return applied, err
		}
	}
	return applied, err
}

// grant says what the roles of functions may do.
func grant(ctx context.Context, db *sql.DB) error {
	tx, err := db.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer func() { _ = tx.Rollback() }() // after Commit it does nothing
	if _, err := tx.ExecContext(ctx, grantsSQL); err != nil {
		return fmt.Errorf("grants: %w", err)
	}
	return tx.Commit()
}

const schemaSQL = `select coalesce(max(version_id), 0) from goose_db_version where is_applied`

// Check asks Postgres whether it is there and its schema is new enough: one round trip.
func (db *DB) Check(ctx context.Context) error {
	rows, _ := db.pool.Query(ctx, schemaSQL)
	version, err := pgx.CollectExactlyOneRow(rows, pgx.RowTo[int64])
	if err != nil {
		return classify(err)
	}
	if version < SchemaVersion {
		cause := fmt.Errorf("schema is at %d, this program needs %d", version, SchemaVersion)
		return apperr.Wrap(apperr.Unavailable, cause, "the database's schema is older than this program: run migrate")
	}
	return nil
}
