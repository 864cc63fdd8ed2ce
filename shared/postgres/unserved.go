package postgres

import (
	"context"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/cloudfn/cloudfn/shared/domain"
)

// Unserved are the projects that the operator's lists do not let in, and what they have left. It covers all projects,
// because the lists are the operator's.
type Unserved struct{ DB *DB }

// served is the condition that the project of a row is served.
func served(row string) string {
	return "not exists (select from unserved_projects u where u.project_id = " + row + ".project_id)"
}

// ListRemains lists what all projects have left, those included that are served.
func (u Unserved) ListRemains(ctx context.Context) ([]domain.Remains, error) {
	return queryAll[domain.Remains](ctx, u.DB.pool, remainsSQL)
}

const (
	markUnservedSQL = `
insert into unserved_projects (project_id, domain_id) select * from unnest($1::text[], $2::text[])
on conflict do nothing
returning project_id`

	markServedSQL = `delete from unserved_projects where not project_id = any($1::text[]) returning project_id`

	// What an owner has suspended stays the owner's.
	suspendCallbacksSQL = `
with before as (
    select project_id, id, status from callbacks
    where project_id = any($1::text[]) and status in ('pending', 'verified')
    order by project_id, id for no key update
), after as (
    update callbacks c set status = 'suspended', reason = $2, seq = c.seq + 1, updated_at = clock_timestamp()
    from before b where c.project_id = b.project_id and c.id = b.id
    returning c.project_id, c.id, c.seq, c.updated_at, c.status, c.reason, b.status as previous_status
), event as (` + callbackEventSQL + ` after)
select count(*) from after`

	toBeResumed = `c.status = 'suspended' and c.reason = $2 and not c.project_id = any($1::text[])`

	// Their receivers are asked for their consent again.
	resumeCallbacksSQL = `
with after as (
    update callbacks c set status = 'pending', reason = '', seq = seq + 1, updated_at = clock_timestamp(), failures = 0,
        failing_since = null, not_before = null
    where ` + toBeResumed + `
    returning project_id, id, seq, updated_at, status, reason, 'suspended' as previous_status
), event as (` + callbackEventSQL + ` after)
select count(*) from after`

	suspendConnectionsSQL = `
with after as (
    update connections set suspended_at = clock_timestamp(), reason = $2, seq = seq + 1, updated_at = clock_timestamp()
    where project_id = any($1::text[]) and status = 'active' and suspended_at is null
    returning project_id, id, seq, updated_at, 'suspended' as status, reason, 'active' as previous_status,
              null::jsonb as actor, lease_id, managed
), event as (` + connectionEventSQL + ` after where ` + isShown + `)
select count(*) from after`

	resumeConnectionsSQL = `
with after as (
    update connections set suspended_at = null, resumed_at = clock_timestamp(), reason = '', seq = seq + 1,
        updated_at = clock_timestamp()
    where status = 'active' and reason = $2 and not project_id = any($1::text[])
    returning project_id, id, seq, updated_at, 'active' as status, reason, 'suspended' as previous_status,
              null::jsonb as actor, lease_id, managed
), event as (` + connectionEventSQL + ` after where ` + isShown + `)
select count(*) from after`
)

// Set records which projects are not served. It suspends their callbacks and connections, and resumes those that it has
// suspended of projects that are served again, each with its event. It returns what has changed.
func (u Unserved) Set(ctx context.Context, unserved []domain.Remains) (ended, resumed []string, err error) {
	ids, domains := make([]string, len(unserved)), make([]string, len(unserved))
	for n, r := range unserved {
		ids[n], domains[n] = r.ProjectID, r.DomainID
	}
	// What waits is tried as if it were new. No replica delivers it before its callback is resumed.
	if err = u.DB.endPauses(ctx, toBeResumed, ids, domain.UnservedReason); err != nil {
		return nil, nil, err
	}
	err = u.DB.change(ctx, func(tx pgx.Tx) (err error) {
		// Replicas whose lists differ, as during an update, take turns.
		if err = lockName(ctx, tx, "unserved"); err != nil {
			return err
		}
		if ended, err = queryColumn[string](ctx, tx, markUnservedSQL, ids, domains); err != nil {
			return err
		}
		if resumed, err = queryColumn[string](ctx, tx, markServedSQL, ids); err != nil {
			return err
		}
		for _, sql := range []string{
			suspendConnectionsSQL, suspendCallbacksSQL, resumeConnectionsSQL, resumeCallbacksSQL,
		} {
			if _, err := tx.Exec(ctx, sql, ids, domain.UnservedReason); err != nil {
				return err
			}
		}
		return nil
	})
	return ended, resumed, err
}

// endedByOperator is why connections have ended.
const endedByOperator = "the operator has ended it, and does not serve the project any more"

// End ends what a project has left: its leases, declared resources, connections and callbacks; its instances are not
// tracked any more. Servers stay as they are, and reserved hosts with servers are not reservable until those are
// removed; with withServers the servers on reserved hosts end as on_end of their lease says. run-leases frees hosts,
// and run-connections revokes trusts.
func (u Unserved) End(ctx context.Context, projectID string, withServers bool) error {
	for _, part := range []struct {
		list string
		end  func(uuid.UUID) error
	}{
		// Before the leases, which do nothing to an instance that is not tracked, and need no connection for it.
		{listOpenSQL("instances"), func(id uuid.UUID) error {
			_, err := Instances(u).Disconnect(ctx, domain.Filter{ProjectID: projectID}, id)
			return err
		}},
		{listOpenSQL("leases"), func(id uuid.UUID) (err error) {
			if withServers {
				_, err = Leases(u).End(ctx, projectID, id, "", nil)
			} else {
				_, err = Leases(u).Abandon(ctx, projectID, id, nil)
			}
			return err
		}},
		{listOpenSQL("connections"), func(id uuid.UUID) error {
			_, err := Connections(u).End(ctx, projectID, id, domain.ConnectionDeleted, endedByOperator, false)
			return err
		}},
		{"select id from callbacks where project_id = $1", func(id uuid.UUID) error {
			return Callbacks(u).Delete(ctx, projectID, id)
		}},
	} {
		ids, err := queryColumn[uuid.UUID](ctx, u.DB.pool, part.list, projectID)
		if err != nil {
			return err
		}
		for _, id := range ids {
			if err := part.end(id); err != nil {
				return err
			}
		}
	}
	return u.DB.change(ctx, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, "delete from managed where project_id = $1", projectID); err != nil {
			return err
		}
		_, err := tx.Exec(ctx, "delete from managed_projects where project_id = $1", projectID)
		return err
	})
}
