package postgres

import (
	"context"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/domain"
)

const (
	lockManagedProjectSQL = `
insert into managed_projects (project_id, domain_id) values ($1, $2)
on conflict (project_id) do update set domain_id = excluded.domain_id`

	managedDueSQL = `update managed_projects set due_at = clock_timestamp(), attempts = 0 where project_id = $1`

	insertManagedSQL = `
with after as (
    insert into managed (project_id, id, kind, name, user_id, connection_id, provider, flavor, labels, schedule, repair,
                         max_revisions, revision, request, status, actor)
    values ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, 1, 'create', 'pending', $13)
    returning *, null::text as previous_status
), event as (` + managedEventSQL + ` after)
select count(*) from after`

	// $14 reports whether it has a new revision.
	changeManagedSQL = `
with before as (
    select id as old_id, status as old_status from managed where project_id = $1 and id = $2
), after as (
    update managed m
    set user_id = $5, connection_id = $6, provider = $7, flavor = $8, labels = $9, schedule = $10, repair = $11,
        max_revisions = $12, actor = $13, revision = revision + $14::boolean::int, version = version + 1,
        declarations = declarations + 1,
        seq = seq + $14::boolean::int, updated_at = clock_timestamp(), next_at = clock_timestamp(),
        request = case when not $14 then request when observed_revision = 0 then 'create' else 'update' end,
        status = case when not $14 then status when observed_revision = 0 then 'pending' else 'updating' end,
        reason = case when not $14 then reason else '' end
    from before b where m.project_id = $1 and m.id = b.old_id and m.kind = $3 and m.name = $4
    returning m.*, b.old_status as previous_status
), event as (` + managedEventSQL + ` after where $14)
select count(*) from after`

	insertRevisionSQL = `
insert into managed_revisions (project_id, managed_id, number, flavor, spec, secrets, digest, labels, schedule,
                               rolled_back, user_id, user_name)
values ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12)`

	// A round that is running may have loaded each revision that was the current one since it began, which is some
	// minutes ago at most, and records it: those are deleted later.
	pruneRevisionsSQL = `
delete from managed_revisions r using managed m where m.project_id = $1 and m.id = $2 and ` + prunableRevision + `
  and not exists (select from managed_projects p join managed_revisions next on next.project_id = p.project_id
                  where p.project_id = m.project_id and p.claimed_until > clock_timestamp()
                    and next.managed_id = r.managed_id and next.number = r.number + 1
                    and next.created_at > clock_timestamp() - interval '10 minutes')`

	// prunableRevision are the revisions r of a resource m beyond its max_revisions. What members have is kept, and of
	// what was declared since the newest ones: reconcile-managed compares with them.
	prunableRevision = `r.project_id = m.project_id and r.managed_id = m.id and r.number <= m.revision - m.max_revisions
  and not exists (select from managed_members x
                  where x.project_id = r.project_id and x.managed_id = r.managed_id
                    and (x.revision = r.number or x.revision < r.number and r.number > m.revision - 100))`

	retryMembersSQL = `
update managed_members set attempts = 0, retry_at = null, writes = 0
where project_id = $1 and managed_id = $2 and (attempts > 0 or retry_at is not null or writes > 1)`

	retryManagedSQL = `
update managed m
set user_id = $3, connection_id = $4, next_at = clock_timestamp(), request = n.request,
    declarations = declarations + 1
from (select case when request = '' and status in ('degraded', 'error') then 'update' else request end as request
      from managed where project_id = $1 and id = $2) n
where project_id = $1 and id = $2
  and ($5 or next_at > clock_timestamp()
       or (user_id, connection_id, m.request) is distinct from ($3, $4::uuid, n.request))`

	sameDeclarationSQL = `
select r.flavor = $4 and r.spec = $5 and r.digest = $6 and r.labels = $7 and r.schedule = $8
from managed_revisions r where r.project_id = $1 and r.managed_id = $2 and r.number = $3`

	revisionSQL = `
select number, flavor, spec, secrets, digest, labels, schedule from managed_revisions
where project_id = $1 and managed_id = $2 and number = $3`
)

// Declare stores a declaration. One that differs from the current revision becomes a new one, and the oldest are
// deleted; the same again has only what failed retried immediately. It is domain.ErrChanged when the stored resource is
// another one or has another version than made says, or the connection has ended. It is a Conflict while the resource
// is deleted, and when it is new and the project has as many as it may have. The stored connection may be another than
// the new one, which is not stored then.
func (s Managed) Declare(
	ctx context.Context, made domain.NewManaged,
) (stored domain.Managed, created bool, err error) {
	err = s.DB.change(ctx, func(tx pgx.Tx) (err error) {
		stored, created, err = declare(ctx, tx, made)
		return err
	})
	return stored, created && err == nil, err
}

func declare(ctx context.Context, tx pgx.Tx, made domain.NewManaged) (domain.Managed, bool, error) {
	in := made.Managed
	if _, err := exec(ctx, tx, lockManagedProjectSQL, in.ProjectID, in.DomainID); err != nil {
		return in, false, err
	}
	current, found, err := lockManaged(ctx, tx, in.ProjectID, in.Kind, in.Name)
	switch {
	case err != nil:
		return in, false, err
	case current.Version != made.Before, found && current.ID != in.ID:
		return in, false, domain.ErrChanged
	case current.Request == domain.ManagedDelete:
		return in, false, errDeleting(current)
	}
	if !found {
		if err := checkRoom(ctx, tx, in.ProjectID, made.PerProject); err != nil {
			return in, false, err
		}
	}
	if in.ConnectionID, err = delegate(ctx, tx, in.ProjectID, made.Delegation); err != nil {
		return in, false, err
	}
	isSame, err := complete(ctx, tx, made, current, &in)
	if err != nil {
		return in, false, err
	}
	if err := storeDeclaration(ctx, tx, made, current, in, isSame); err != nil {
		return in, false, err
	}
	if current.ConnectionID != in.ConnectionID {
		if err := endUnusedConnections(ctx, tx, in.ProjectID); err != nil {
			return in, false, err
		}
	}
	stored, _, err := lockManaged(ctx, tx, in.ProjectID, in.Kind, in.Name)
	if err != nil {
		return in, false, err
	}
	stored, err = withMembers(ctx, tx, stored)
	return stored, !found, err
}

// CheckRoom rejects another resource of a project that has as many as it may have; 0 = unlimited. Declare checks it
// again.
func (s Managed) CheckRoom(ctx context.Context, projectID string, perProject int) error {
	return checkRoom(ctx, s.DB.pool, projectID, perProject)
}

func checkRoom(ctx context.Context, db querier, projectID string, perProject int) error {
	return fits(ctx, db, perProject, "managed resources in a project (MANAGED_PER_PROJECT): delete some first",
		"select count(*) from managed where project_id = $1", projectID)
}

func errDeleting(m domain.Managed) error {
	return apperr.New(apperr.Conflict, "the %s %q is being deleted: declare it after that", m.Kind, m.Name)
}

// complete fills in what a declaration takes from a stored revision. isSame reports whether it is the current one
// again.
func complete(
	ctx context.Context, tx pgx.Tx, made domain.NewManaged, current domain.Managed, in *domain.Managed,
) (isSame bool, err error) {
	if current.ID == uuid.Nil {
		return false, nil
	}
	from := current.Revision
	if made.Repeats != 0 {
		from = made.Repeats
	}
	old, err := queryOne[domain.Revision](ctx, tx, revisionSQL, in.ProjectID, in.ID, from)
	if err != nil {
		return false, orNotFound(err, "the %s %q has no revision %d any more", in.Kind, in.Name, from)
	}
	if made.Repeats != 0 {
		in.Flavor, in.Spec, in.Labels, in.Schedule = old.Flavor, old.Spec, old.Labels, old.Schedule
	}
	if made.Repeats != 0 || made.KeepSecrets {
		in.Secrets, in.Digest = old.Secrets, old.Digest
	}
	return queryValue[bool](ctx, tx, sameDeclarationSQL, in.ProjectID, in.ID, current.Revision, in.Flavor, in.Spec,
		orEmpty(in.Digest), orEmptyMap(in.Labels), in.Schedule)
}

// storeDeclaration stores what differs from the current resource, and makes the project due.
func storeDeclaration(
	ctx context.Context, tx pgx.Tx, made domain.NewManaged, current, in domain.Managed, isSame bool,
) error {
	values := []any{
		in.ProjectID, in.ID, in.Kind, in.Name, in.UserID, in.ConnectionID, in.Provider, in.Flavor,
		orEmptyMap(in.Labels), in.Schedule, in.Repair, in.MaxRevisions, in.Actor,
	}
	var err error
	switch {
	case current.ID == uuid.Nil:
		_, err = exec(ctx, tx, insertManagedSQL, values...)
	case isSame && in.Provider == current.Provider && in.Repair == current.Repair &&
		in.MaxRevisions == current.MaxRevisions:
		isRetried, err := retryManaged(ctx, tx, in)
		if err != nil || !isRetried {
			return err
		}
	default:
		_, err = exec(ctx, tx, changeManagedSQL, append(values, !isSame)...)
	}
	if err != nil {
		return err
	}
	if !isSame {
		var userName string
		if actor := domain.ActorFrom(ctx); actor != nil {
			userName = actor.UserName
		}
		if _, err := exec(ctx, tx, insertRevisionSQL, in.ProjectID, in.ID, current.Revision+1, in.Flavor, in.Spec,
			in.Secrets, orEmpty(in.Digest), orEmptyMap(in.Labels), in.Schedule, made.Repeats, in.UserID,
			userName); err != nil {
			return err
		}
	}
	for _, sql := range []string{pruneRevisionsSQL, retryMembersSQL} {
		if _, err := exec(ctx, tx, sql, in.ProjectID, in.ID); err != nil {
			return err
		}
	}
	_, err = exec(ctx, tx, managedDueSQL, in.ProjectID)
	return err
}

// retryManaged has what failed of a resource retried immediately, by the user who has declared it now.
func retryManaged(ctx context.Context, tx pgx.Tx, in domain.Managed) (isRetried bool, err error) {
	members, err := exec(ctx, tx, retryMembersSQL, in.ProjectID, in.ID)
	if err != nil {
		return false, err
	}
	retried, err := exec(ctx, tx, retryManagedSQL, in.ProjectID, in.ID, in.UserID, in.ConnectionID, members > 0)
	return retried > 0, err
}

const (
	deleteManagedSQL = `
with before as (
    select id as old_id, status as old_status from managed where project_id = $1 and id = $2
), after as (
    update managed m
    set request = 'delete', status = 'deleting', reason = '', next_at = clock_timestamp(), actor = $3, orphan = $4,
        version = version + 1, declarations = declarations + 1, seq = seq + 1, updated_at = clock_timestamp()
    from before b where m.project_id = $1 and m.id = b.old_id and m.request <> 'delete'
    returning m.*, b.old_status as previous_status
), event as (` + managedEventSQL + ` after)
select count(*) from after`

	adoptManagedSQL = `
update managed set user_id = $3, connection_id = $4 where project_id = $1 and id = $2`
)

// Delete has reconcile-managed delete what belongs to a resource, and then the resource. before.Actor requests it; with
// before.Orphan its objects stay. A delegation given replaces the one that it is done with, and before.UserID is its
// user. It is domain.ErrChanged when the stored resource is another one or has another version. A resource that is
// being deleted stays so.
func (s Managed) Delete(
	ctx context.Context, before domain.Managed, by *domain.ManagedDelegation,
) (deleted domain.Managed, err error) {
	return changeValue(ctx, s.DB, func(tx pgx.Tx) (domain.Managed, error) {
		return requestDeletion(ctx, tx, before, by)
	})
}

func requestDeletion(
	ctx context.Context, tx pgx.Tx, before domain.Managed, by *domain.ManagedDelegation,
) (domain.Managed, error) {
	if _, err := exec(ctx, tx, lockManagedProjectSQL, before.ProjectID, before.DomainID); err != nil {
		return before, err
	}
	stored, found, err := lockManaged(ctx, tx, before.ProjectID, before.Kind, before.Name)
	if err != nil {
		return before, err
	}
	if !found || stored.ID != before.ID || stored.Version != before.Version {
		return before, domain.ErrChanged
	}
	if by != nil {
		id, err := delegate(ctx, tx, stored.ProjectID, *by)
		if err != nil {
			return before, err
		}
		if _, err := exec(ctx, tx, adoptManagedSQL, stored.ProjectID, stored.ID, before.UserID, id); err != nil {
			return before, err
		}
		if err := endUnusedConnections(ctx, tx, stored.ProjectID); err != nil {
			return before, err
		}
	}
	if _, err := exec(ctx, tx, retryMembersSQL, stored.ProjectID, stored.ID); err != nil {
		return before, err
	}
	if _, err := exec(ctx, tx, deleteManagedSQL, stored.ProjectID, stored.ID, before.Actor,
		before.Orphan); err != nil {
		return before, err
	}
	if _, err := exec(ctx, tx, managedDueSQL, stored.ProjectID); err != nil {
		return before, err
	}
	if stored, _, err = lockManaged(ctx, tx, before.ProjectID, before.Kind, before.Name); err != nil {
		return before, err
	}
	return withMembers(ctx, tx, stored)
}
