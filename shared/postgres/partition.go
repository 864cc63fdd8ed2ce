package postgres

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
)

// partitionLock keeps two copies from making or dropping partitions at once (pg_advisory_xact_lock).
const partitionLock = 0x636c6f7564666e // "cloudfn"

// Maintain makes the partitions of this month and the next, moves rows that fell into the default
// partition meanwhile, and drops the months that ended more than retention ago. It may be called any
// number of times, by any number of copies.
func (r Requests) Maintain(ctx context.Context, retention time.Duration) error {
	err := r.alone(ctx, func(tx pgx.Tx, now time.Time) error {
		month := time.Date(now.Year(), now.Month(), 1, 0, 0, 0, 0, time.UTC)
		for _, from := range []time.Time{month, month.AddDate(0, 1, 0)} {
			if err := makePartition(ctx, tx, from); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	// By itself: a transaction that has locked the default partition and then waits for the whole table, as
	// dropping does, is in a deadlock with every COPY.
	return r.alone(ctx, func(tx pgx.Tx, now time.Time) error { return dropPartitions(ctx, tx, now.Add(-retention)) })
}

// alone runs fn in a transaction, while no other copy does, with the database's time.
func (r Requests) alone(ctx context.Context, fn func(tx pgx.Tx, now time.Time) error) error {
	return r.DB.inTx(ctx, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, "select pg_advisory_xact_lock($1)", partitionLock); err != nil {
			return err
		}
		var now time.Time
		if err := tx.QueryRow(ctx, "select now()").Scan(&now); err != nil {
			return err
		}
		return fn(tx, now.UTC())
	})
}

const partitionName = "requests_200601"

func makePartition(ctx context.Context, tx pgx.Tx, from time.Time) error {
	name := from.Format(partitionName)
	var exists bool
	if err := tx.QueryRow(ctx, "select to_regclass($1) is not null", name).Scan(&exists); err != nil || exists {
		return err
	}
	// Postgres refuses a partition whose rows lie in the default one, so they are moved while it is locked.
	to := from.AddDate(0, 1, 0)
	table := pgx.Identifier{name}.Sanitize()
	_, err := tx.Exec(ctx, fmt.Sprintf(`
		lock table requests_default in access exclusive mode;
		create table %[1]s (like requests including defaults);
		with moved as (delete from requests_default where at >= %[2]s and at < %[3]s returning *)
		insert into %[1]s select * from moved;
		alter table requests attach partition %[1]s for values from (%[2]s) to (%[3]s)`,
		table, quoteTime(from), quoteTime(to)))
	return err
}

// quoteTime writes a time of ours into DDL, which takes no parameters.
func quoteTime(t time.Time) string { return t.Format("'2006-01-02 15:04:05Z07:00'") }

func dropPartitions(ctx context.Context, tx pgx.Tx, before time.Time) error {
	rows, _ := tx.Query(ctx, `select inhrelid::regclass::text from pg_inherits where inhparent = 'requests'::regclass`)
	names, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		return err
	}
	for _, name := range names {
		from, err := time.Parse(partitionName, name)
		if err != nil || from.AddDate(0, 1, 0).After(before) {
			continue // the default partition, or a month that is not over long enough
		}
		if _, err := tx.Exec(ctx, "drop table "+pgx.Identifier{name}.Sanitize()); err != nil {
			return err
		}
	}
	return nil
}
