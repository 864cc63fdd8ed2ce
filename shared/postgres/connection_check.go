package postgres

import (
	"context"
	"errors"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/cloudfn/cloudfn/shared/domain"
)

// A check finds out whether the connection's Keystone still accepts the delegation: every domain.CheckEvery, and on
// request. When one is due, those that are within domain.CheckEarly are done with it.

const (
	mayBeChecked = `c.status = 'active' and coalesce(c.check_until, '-infinity') <= now() and c.next_check_at <= now()`

	checkCloudsSQL = `
select c.auth_url, c.region from connections c
where ` + mayBeChecked + ` + $1::interval and exists (select from connections c where ` + mayBeChecked + `)
group by c.auth_url, c.region`

	// A check that is done early is due from then on: what is requested later has a later time.
	claimCheckSQL = `
with due as (
    select c.id from connections c
    where c.auth_url = $1 and c.region = $2 and ` + mayBeChecked + ` + $4::interval
    order by c.next_check_at, c.id limit 1
    for no key update skip locked
)
update connections
set check_until = clock_timestamp() + $3::interval, next_check_at = least(next_check_at, clock_timestamp())
where id = (select id from due)
returning ` + delegationColumns

	// A check that was requested after Keystone was called ($3) stays due.
	nextCheck = `check_until = clock_timestamp() + $4::interval,
    next_check_at = case when next_check_at > $3 then next_check_at
                         else clock_timestamp() + $5::interval * (0.8 + 0.4 * random()) end`

	// A later request's answer may be recorded already, by the replica that took over when a claim ended.
	isNewest = `($3 >= greatest(checked_at, check_failed_at)) is not false`

	// Keystone's answer makes a connection to our own cloud reachable. One to another cloud is also unreachable while
	// its servers cannot be read.
	isHome = `auth_url = '' and region = ''`

	markCheckedSQL = `
update connections
set checked_at = $3, check_error = '',
    failures = case when ` + isHome + ` then 0 else failures end,
    silent_since = case when ` + isHome + ` then null else silent_since end,
    not_before = case when ` + isHome + ` then null else not_before end,
    acts_as = case when $6::text[] is null or managed then acts_as
                   else jsonb_set(acts_as, '{roles}', to_jsonb($6::text[])) end,
    ` + nextCheck + `
where project_id = $1 and id = $2 and ` + isNewest

	markUncheckedSQL = `
update connections set check_failed_at = $3, check_error = $6, ` + nextCheck + `
where project_id = $1 and id = $2 and ` + isNewest
)

// betweenChecks is the least time between two checks of one connection, however many are requested.
const betweenChecks = 2 * time.Second

// CheckClouds lists the clouds that have connections to check: if the check of any connection is due, those with checks
// that are due within domain.CheckEarly.
func (d Delegations) CheckClouds(ctx context.Context) ([]domain.RemoteCloud, error) {
	return queryAll[domain.RemoteCloud](ctx, d.DB.pool, checkCloudsSQL, domain.CheckEarly)
}

// ClaimCheck claims the connection to the cloud whose check is due first, within domain.CheckEarly. found is false when
// none is. The claim of a replica that dies expires.
func (d Delegations) ClaimCheck(
	ctx context.Context, cloud domain.RemoteCloud, claimFor time.Duration,
) (c domain.Connection, found bool, err error) {
	return queryFound[domain.Connection](ctx, d.DB.pool, claimCheckSQL, cloud.AuthURL, cloud.Region, claimFor,
		domain.CheckEarly)
}

// MarkChecked records that Keystone accepts the delegation, with these roles (nil = not known). started is the
// database's time before the request to Keystone. What is delegated for managed resources keeps the roles that it was
// made with, without those that they imply: a declaration compares them.
func (d Delegations) MarkChecked(
	ctx context.Context, projectID string, id uuid.UUID, started time.Time, roles []string,
) error {
	_, err := exec(ctx, d.DB.pool, markCheckedSQL, projectID, id, started, betweenChecks, domain.CheckEvery, roles)
	return err
}

// MarkUnchecked records why Keystone gave no answer. started is the database's time before the request.
func (d Delegations) MarkUnchecked(
	ctx context.Context, projectID string, id uuid.UUID, started time.Time, why string,
) error {
	_, err := exec(ctx, d.DB.pool, markUncheckedSQL, projectID, id, started, betweenChecks, domain.CheckEvery, why)
	return err
}

// RequestCheck makes a connection's check due now, also one that was due already: the late answer to an earlier check,
// whose claim may have ended, does not answer the request. A check since the moment given does. The zero time means
// that the connection has ended.
func (c Connections) RequestCheck(ctx context.Context, projectID string, id uuid.UUID) (since time.Time, err error) {
	since, err = queryValue[time.Time](ctx, c.DB.pool, `
update connections set next_check_at = clock_timestamp()
where project_id = $1 and id = $2 and status = 'active' returning next_check_at`, projectID, id)
	return since, ifNone(err, nil)
}

// FailedCheck is when a check last got no answer, and why; the zero time = never.
func (c Connections) FailedCheck(
	ctx context.Context, projectID string, id uuid.UUID,
) (at time.Time, why string, err error) {
	err = c.DB.pool.QueryRow(ctx,
		"select check_failed_at, check_error from connections where project_id = $1 and id = "+
			"$2", projectID, id).Scan(&at, &why)
	return at, why, classify(err)
}

// A list older than the stored one, or of a connection that has ended, is dropped. The connection's row is not locked:
// if it ends at the same moment, it leaves a row that no one sees.
const recordResourcesSQL = `
insert into connection_resources (connection_id, project_id, as_of, seen)
select c.id, c.project_id, $3::timestamptz, $4
from connections c where c.project_id = $1 and c.id = $2 and c.status = 'active'
on conflict (connection_id) do update set as_of = excluded.as_of, seen = excluded.seen
where connection_resources.project_id = $1 and connection_resources.as_of < excluded.as_of`

// RecordResources stores what can be ordered through a connection. asOf is the database's time
// before reading it began.
func (d Delegations) RecordResources(
	ctx context.Context, projectID string, id uuid.UUID, asOf time.Time, seen domain.AvailableResources,
) error {
	_, err := exec(ctx, d.DB.pool, recordResourcesSQL, projectID, id, asOf, seen)
	return err
}

// Resources returns what could be ordered through a connection at the last read, and its age; found is false when it
// was never read. domain.AvailableResources.Allowed says what the connection permits of it.
func (c Connections) Resources(
	ctx context.Context, projectID string, id uuid.UUID,
) (seen domain.AvailableResources, age time.Duration, found bool, err error) {
	var now time.Time
	err = c.DB.pool.QueryRow(ctx, `
select seen, as_of, clock_timestamp() from connection_resources where project_id = $1
    and connection_id = $2`, projectID, id).
		Scan(&seen, &seen.AsOf, &now)
	if errors.Is(err, pgx.ErrNoRows) {
		return seen, 0, false, nil
	}
	return seen, max(0, now.Sub(seen.AsOf)), err == nil, classify(err)
}
