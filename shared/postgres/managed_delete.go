package postgres

import (
	"context"

	"github.com/jackc/pgx/v5"

	"github.com/cloudfn/cloudfn/shared/domain"
)

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

// Delete has reconcile-managed delete what belongs to a resource, and then the resource. before.Actor asks for it; with
// before.Orphan its objects stay. A delegation given replaces the one that it is done with, and before.UserID is its
// user. It is domain.ErrChanged when the stored resource is another one or has another version. A resource that is
// being deleted stays so.
func (s Managed) Delete(
	ctx context.Context, before domain.Managed, by *domain.ManagedDelegation,
) (deleted domain.Managed, err error) {
	err = s.DB.changeTx(ctx, func(tx pgx.Tx) (err error) {
		deleted, err = requestDeletion(ctx, tx, before, by)
		return err
	})
	return deleted, err
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
