package postgres

import (
	"context"
	"database/sql"
	"embed"
	"fmt"
	"io/fs"
	"path"
	"strconv"
	"strings"

	"github.com/jackc/pgx/v5"
	_ "github.com/jackc/pgx/v5/stdlib" // the database/sql driver that goose needs
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
// It returns the names of the migrations that it applied. Then it says anew what the functions' roles may do.
func Migrate(ctx context.Context, cfg Config) ([]string, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	db, err := sql.Open("pgx", cfg.URL.Reveal())
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
	results, err := provider.Up(ctx)
	applied := make([]string, len(results))
	for i, r := range results {
		applied[i] = path.Base(r.Source.Path)
	}
	if err != nil {
		return applied, err
	}
	return applied, grant(ctx, db)
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
