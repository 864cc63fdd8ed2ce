package postgres

import (
	"context"

	"github.com/cloudfn/cloudfn/shared/domain"
)

// Isolations say of each region whether servers without the trait stay off reservable hosts.
type Isolations struct{ DB *DB }

// Get reads what the last self-test of a region found; the zero value = there was none.
func (s Isolations) Get(ctx context.Context, region string) (domain.Isolation, error) {
	found, _, err := queryFound[domain.Isolation](ctx, s.DB.pool,
		"select result, detail, tested_at, proven_since from isolation where region = $1", region)
	return found, err
}

// Set records what a self-test of a region has found now. ProvenSince stays while each finds the same.
func (s Isolations) Set(ctx context.Context, region string, result, detail string) error {
	_, err := exec(ctx, s.DB.pool, `
insert into isolation as i (region, result, detail, proven_since)
values ($1, $2, $3, case when $2 = 'proven' then clock_timestamp() end)
on conflict (region) do update
set result = excluded.result, detail = excluded.detail, tested_at = clock_timestamp(),
    proven_since = case when excluded.result = 'proven' and i.result = 'proven'
        then coalesce(i.proven_since, excluded.proven_since) else excluded.proven_since end`, region, result, detail)
	return err
}
