package postgres

import (
	"context"
	"strings"
	"time"

	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/due"
)

// Polls are how far each project with tracked instances was read, and which of these instances to ask Nova for
// (poll_instances.go).
//
// Prepare, ListFollowed, ListMoving and ListRunningOrders span all projects, because poll-instances serves all; every
// other statement carries a project or a claim.
type Polls struct{ DB *DB }

// A project without a row is read from the moment on at which its first instance was tracked.
var (
	newPollsSQL = `
insert into polls (project_id, since, full_at)
select i.project_id, min(i.created_at), min(i.created_at) from instances i
where i.state <> 'deleted' and ` + followed + ` and not exists (select from polls p where p.project_id = i.project_id)
group by i.project_id
on conflict do nothing`

	oldPollsSQL = `
delete from polls where project_id in (
    select p.project_id from polls p
    where p.project_id <> '' and ` + unclaimed("p") + `
      and not exists (select from instances i where i.project_id = p.project_id and i.state <> 'deleted'
          and ` + followed + `)
    for update skip locked)`
)

// Prepare makes a row for each project that has followed instances, and deletes those of projects that have none.
func (p Polls) Prepare(ctx context.Context) error {
	for _, sql := range []string{newPollsSQL, oldPollsSQL} {
		if _, err := exec(ctx, p.DB.pool, sql); err != nil {
			return err
		}
	}
	return nil
}

// pollColumns are the columns of a domain.Poll from a row p of polls.
const pollColumns = `p.project_id, p.since, p.full_at,
    (select count(*)::int from instances i
     where i.project_id = p.project_id and i.state <> 'deleted' and ` + uncertain + `) as uncertain,
    p.failing_since, p.not_before, p.gone_at, p.sweep_at, p.sweep_marker`

// movingSince selects the instances (i) that Nova is changing, and that changed within an interval. The states are
// literals, so that instances_moving is used.
func movingSince(within string) string {
	states := make([]string, 0, len(domain.MovingStates()))
	for _, state := range domain.MovingStates() {
		states = append(states, "'"+string(state)+"'")
	}
	return "i.state in (" + strings.Join(states, ", ") + ") and i.updated_at > now() - " + within + "::interval"
}

var (
	followedSQL = `
select ` + pollColumns + ` from polls p
where ` + served("p") + `
  and exists (select from instances i where i.project_id = p.project_id and i.state <> 'deleted' and ` + followed + `)
order by p.project_id`

	movingSQL = `
select distinct i.project_id
from instances i left join orders o on o.project_id = i.project_id and o.id = i.order_id
where ` + movingSince("$1") + ` and ` + followed + ` and ` + served("i") + `
  and (i.server_id is not null or o.claimed_until > now())`
)

// ListFollowed lists the projects that have instances which are not deleted, and a row.
func (p Polls) ListFollowed(ctx context.Context) ([]domain.Poll, error) {
	return p.list(ctx, followedSQL)
}

// ListMoving lists the projects with instances that Nova is changing, and that changed within the time given: an
// instance that has been changing for longer need not be polled so often. An unknown state does not count.
func (p Polls) ListMoving(ctx context.Context, within time.Duration) ([]string, error) {
	return queryColumn[string](ctx, p.DB.pool, movingSQL, within)
}

func (p Polls) list(ctx context.Context, sql string, args ...any) ([]domain.Poll, error) {
	return queryAll[domain.Poll](ctx, p.DB.pool, sql, args...)
}

var (
	claimDueSQL = `
with due as (
    select project_id from polls p
    where project_id <> '' and ` + due.Unclaimed("p", "now()") + ` and ` + served("p") + `
      and coalesce(read_at, '-infinity') < $3 and coalesce(not_before, '-infinity') <= now()
    order by coalesce(read_at, '-infinity'), project_id limit $4
    for update skip locked
)
update polls p set claim_id = $1, claimed_until = clock_timestamp() + $2::interval from due
where p.project_id = due.project_id
returning ` + pollColumns

	claimSomeSQL = `
with free as (
    select project_id from polls p where project_id = any($3) and ` + unclaimed("p") + ` and ` + served("p") + `
      and coalesce(not_before, '-infinity') <= clock_timestamp()
    order by project_id for update skip locked
)
update polls p set claim_id = $1, claimed_until = clock_timestamp() + $2::interval from free
where p.project_id = free.project_id
returning ` + pollColumns

	claimCloudSQL = `
insert into polls as p (project_id, since, full_at, claim_id, claimed_until)
values ('', now(), now(), $1, clock_timestamp() + $2::interval)
on conflict (project_id) do update set claim_id = excluded.claim_id, claimed_until = excluded.claimed_until
where ` + unclaimed("p") + `
returning ` + pollColumns
)

// ClaimDue claims at most limit projects that were not read since the moment, those first that waited longest.
func (p Polls) ClaimDue(
	ctx context.Context, claim domain.Claim, claimFor time.Duration, before time.Time, limit int,
) ([]domain.Poll, error) {
	return p.list(ctx, claimDueSQL, claim.ID, claimFor, before, limit)
}

// ClaimSome claims those of the projects that nobody has claimed, and that do not pause.
func (p Polls) ClaimSome(
	ctx context.Context, claim domain.Claim, claimFor time.Duration, projects []string,
) ([]domain.Poll, error) {
	return p.list(ctx, claimSomeSQL, claim.ID, claimFor, projects)
}

// ClaimCloud claims the list of the whole cloud. acquired is false when another replica has it.
func (p Polls) ClaimCloud(
	ctx context.Context, claim domain.Claim, claimFor time.Duration,
) (cloud domain.Poll, acquired bool, err error) {
	return queryFound[domain.Poll](ctx, p.DB.pool, claimCloudSQL, claim.ID, claimFor)
}

// Renew prolongs the claim of all its projects, and returns them. Those that another replica has claimed are missing.
func (p Polls) Renew(ctx context.Context, claim domain.Claim, claimFor time.Duration) (projects []string, err error) {
	return queryColumn[string](ctx, p.DB.pool, `
update polls set claimed_until = clock_timestamp() + $2::interval where claim_id = $1
returning project_id`, claim.ID, claimFor)
}

// Release ends the claim of all its projects, or just of these, as if they had not been claimed.
func (p Polls) Release(ctx context.Context, claim domain.Claim, projects ...string) error {
	_, err := exec(ctx, p.DB.pool, `
update polls set `+due.ReleaseSQL+`
where claim_id = $1 and (cardinality($2::text[]) = 0 or project_id = any($2))`, claim.ID, orEmpty(projects))
	return err
}

// RecordSweep records how far the list of all servers was read, if the claim still holds.
func (p Polls) RecordSweep(ctx context.Context, claim domain.Claim, poll domain.Poll) error {
	_, err := exec(ctx, p.DB.pool,
		"update polls set sweep_at = $3, sweep_marker = $4 where claim_id = $1 and project_id = $2",
		claim.ID, poll.ProjectID, orNull(poll.SweepAt), poll.SweepMarker)
	return err
}

// The claim of the whole cloud writes for all projects; it leaves the claims that other replicas have on projects.
const readSQL = `
update polls p
set since = greatest(p.since, r.since), full_at = greatest(p.full_at, r.full_at), read_at = clock_timestamp(),
    failing_since = r.failing_since, not_before = r.not_before, gone_at = r.gone_at,
    sweep_at = r.sweep_at, sweep_marker = r.sweep_marker,
    claim_id = nullif(p.claim_id, $1), claimed_until = case when p.claim_id = $1 then null else p.claimed_until end
from unnest($2::text[], $3::timestamptz[], $4::timestamptz[], $5::timestamptz[], $6::timestamptz[], $7::timestamptz[],
            $8::timestamptz[], $9::text[])
    as r (project_id, since, full_at, failing_since, not_before, gone_at, sweep_at, sweep_marker)
where p.project_id = r.project_id
  and (p.claim_id = $1 or exists (select from polls w where w.project_id = '' and w.claim_id = $1))`

// RecordRead records how far projects were read and releases them, if the claim still holds. What was read further
// since stays.
func (p Polls) RecordRead(ctx context.Context, claim domain.Claim, polls []domain.Poll) error {
	var projects, markers []string
	var since, full []time.Time
	var failing, notBefore, gone, sweep []*time.Time
	for _, r := range polls {
		projects, markers = append(projects, r.ProjectID), append(markers, r.SweepMarker)
		since, full = append(since, r.Since), append(full, r.FullAt)
		failing, notBefore = append(failing, orNull(r.FailingSince)), append(notBefore, orNull(r.NotBefore))
		gone, sweep = append(gone, orNull(r.GoneAt)), append(sweep, orNull(r.SweepAt))
	}
	return retryDeadlock(ctx, func() error {
		_, err := exec(ctx, p.DB.pool, readSQL, claim.ID, projects, since, full, failing, notBefore, gone, sweep,
			markers)
		return err
	})
}
