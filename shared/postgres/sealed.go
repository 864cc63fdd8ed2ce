package postgres

import (
	"context"

	"github.com/jackc/pgx/v5"
)

const callbackKeysSQL = `
select distinct encode(substring(secret for 8), 'hex')
from (select secret from callbacks where status <> 'gone' limit 10000) some`

// CallbackKeys lists the ids of the keys that callbacks' secrets are sealed to, of 10 000 callbacks at most.
func (db *DB) CallbackKeys(ctx context.Context) ([]string, error) {
	return db.sealedTo(ctx, callbackKeysSQL)
}

const connectionKeysSQL = `
select distinct encode(substring(secret for 8), 'hex')
from (select secret from connections where secret is not null limit 10000) some`

// ConnectionKeys lists the ids of the keys that connections' secrets are sealed to, of 10 000 connections at most.
func (db *DB) ConnectionKeys(ctx context.Context) ([]string, error) {
	return db.sealedTo(ctx, connectionKeysSQL)
}

func (db *DB) sealedTo(ctx context.Context, sql string) ([]string, error) {
	rows, _ := db.pool.Query(ctx, sql)
	keys, err := pgx.CollectRows(rows, pgx.RowTo[string])
	return keys, classify(err)
}
