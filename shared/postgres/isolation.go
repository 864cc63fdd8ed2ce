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
		"select result, detail, tested_at from isolation where region = $1", region)
	return found, err
}

// Set records what a self-test of a region has found now.
func (s Isolations) Set(ctx context.Context, region string, result, detail string) error {
	_, err := exec(ctx, s.DB.pool, `
insert into isolation (region, result, detail) values ($1, $2, $3)
on conflict (region) do update
set result = excluded.result, detail = excluded.detail, tested_at = clock_timestamp()`, region, result, detail)
	return err
}
