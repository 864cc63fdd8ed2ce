package postgres

import (
	"context"
	"errors"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/cloudfn/cloudfn/shared/domain"
)

// A connection is checked by asking its Keystone whether it still accepts the delegation: every domain.CheckEvery, and when somebody asks.

const (
	checkDue = `c.status = 'active' and c.next_check_at <= clock_timestamp() and coalesce(c.check_until, '-infinity') <= clock_timestamp()`

	checkCloudsSQL = `select c.auth_url, c.region from connections c where ` + checkDue + ` group by c.auth_url, c.region`

	claimCheckSQL = `
with due as (
    select c.id from connections c where c.auth_url = $1 and c.region = $2 and ` + checkDue + `
    order by c.next_check_at, c.id limit 1
    for no key update skip locked
)
update connections set check_until = clock_timestamp() + $3::interval
where id = (select id from due)
returning ` + delegationColumns

	// A check that was asked for while this one was under way ($3 is how long it took) stays due.
	nextCheck = `check_until = clock_timestamp() + $4::interval,
    next_check_at = case when next_check_at > clock_timestamp() - $3::interval then next_check_at
                         else clock_timestamp() + $5::interval * (0.8 + 0.4 * random()) end`

	// A connection to our own cloud is unreachable only for want of Keystone's answer. One to another cloud is so also when its servers cannot be
	// read, and a login ends only the former.
	isHome = `auth_url = '' and region = ''`

	markCheckedSQL = `
update connections
set checked_at = greatest(checked_at, clock_timestamp() - $3::interval), check_error = '',
    failures = case when ` + isHome + ` then 0 else failures end,
    silent_since = case when ` + isHome + ` then null else silent_since end,
    not_before = case when ` + isHome + ` then null else not_before end,
    acts_as = case when $6::text[] is null then acts_as else jsonb_set(acts_as, '{roles}', to_jsonb($6::text[])) end, ` + nextCheck + `
where project_id = $1 and id = $2`

	markUncheckedSQL = `
update connections set check_failed_at = clock_timestamp() - $3::interval, check_error = $6, ` + nextCheck + `
where project_id = $1 and id = $2`
)

// betweenChecks is the least time between two checks of one connection, however many ask for them.
const betweenChecks = 2 * time.Second

// CheckClouds lists the clouds that have connections which are due to be checked.
func (d Delegations) CheckClouds(ctx context.Context) ([]domain.RemoteCloud, error) {
	rows, _ := d.DB.pool.Query(ctx, checkCloudsSQL)
	found, err := pgx.CollectRows(rows, pgx.RowToStructByPos[domain.RemoteCloud])
	return found, classify(err)
}

// ClaimCheck claims the connection to the cloud whose check has been due for the longest. found is false when none is due. The check of
// a replica that dies is due again when its claim ends.
func (d Delegations) ClaimCheck(ctx context.Context, cloud domain.RemoteCloud, claimFor time.Duration) (c domain.Connection, found bool, err error) {
	rows, _ := d.DB.pool.Query(ctx, claimCheckSQL, cloud.AuthURL, cloud.Region, claimFor)
	c, err = pgx.CollectExactlyOneRow(rows, scanDelegation)
	if errors.Is(err, pgx.ErrNoRows) {
		return c, false, nil
	}
	return c, err == nil, classify(err)
}

// MarkChecked notes that Keystone accepts the delegation, and with which roles (nil = not known). took is how long ago Keystone was asked.
func (d Delegations) MarkChecked(ctx context.Context, projectID string, id uuid.UUID, took time.Duration, roles []string) error {
	_, err := d.DB.pool.Exec(ctx, markCheckedSQL, projectID, id, took, betweenChecks, domain.CheckEvery, roles)
	return classify(err)
}

// MarkUnchecked notes why nothing is known of the delegation. took is how long ago Keystone was asked.
func (d Delegations) MarkUnchecked(ctx context.Context, projectID string, id uuid.UUID, took time.Duration, why string) error {
	_, err := d.DB.pool.Exec(ctx, markUncheckedSQL, projectID, id, took, betweenChecks, domain.CheckEvery, why)
	return classify(err)
}

// RequestCheck has a connection checked as soon as may be, and gives the moment from which on a check is an answer to that.
func (c Connections) RequestCheck(ctx context.Context, projectID string, id uuid.UUID) (since time.Time, err error) {
	err = c.DB.pool.QueryRow(ctx, `
update connections
set next_check_at = case when check_until > clock_timestamp() then clock_timestamp() else least(next_check_at, clock_timestamp()) end
where project_id = $1 and id = $2 and status = 'active' returning clock_timestamp()`, projectID, id).Scan(&since)
	if errors.Is(err, pgx.ErrNoRows) { // it has ended meanwhile, which is an answer
		return time.Time{}, nil
	}
	return since, classify(err)
}

// FailedCheck is when a connection was last asked for without an answer, and why there was none; the zero time = never.
func (c Connections) FailedCheck(ctx context.Context, projectID string, id uuid.UUID) (at time.Time, why string, err error) {
	err = c.DB.pool.QueryRow(ctx, `
select coalesce(check_failed_at, '0001-01-01'), check_error from connections where project_id = $1 and id = $2`, projectID, id).Scan(&at, &why)
	return at, why, classify(err)
}
