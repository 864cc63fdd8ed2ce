package postgres

import (
	"context"

	"github.com/google/uuid"

	"github.com/cloudfn/cloudfn/shared/domain"
)

const (
	loadManagedSQL = "select " + managedColumns + ", r.secrets" + managedTables +
		" where m.project_id = $1 order by m.id"

	loadMembersSQL = "select " + memberColumns + ` from managed_members
where project_id = $1 order by managed_id, ordinal, id`

	madeRevisionsSQL = `
select r.managed_id, r.number, r.flavor, r.spec, r.secrets, r.digest, r.labels, r.schedule, r.rolled_back, r.user_id,
       r.created_at
from managed_revisions r join managed m on m.project_id = r.project_id and m.id = r.managed_id
where r.project_id = $1 and r.number <> m.revision
  and (r.number = m.observed_revision
       or exists (select from managed_members x
                  where x.project_id = r.project_id and x.managed_id = r.managed_id and x.revision <= r.number))`
)

// ManagedKeys lists the keys that secrets of managed resources are encrypted with.
func (db *DB) ManagedKeys(ctx context.Context) ([]domain.KeyUse, error) {
	return keyUses(ctx, db, "managed_revisions where secrets is not null", "secrets")
}

// Load reads all resources of a project for reconcile-managed, in the order of their creation: with spec, sealed
// secrets, members, the older revisions that members have, and those that were declared since.
func (s Managed) Load(ctx context.Context, projectID string) ([]domain.Managed, error) {
	found, err := queryAll[domain.Managed](ctx, s.DB.pool, loadManagedSQL, projectID)
	if err != nil {
		return nil, err
	}
	members, err := queryAll[domain.Member](ctx, s.DB.pool, loadMembersSQL, projectID)
	if err != nil {
		return nil, err
	}
	type madeRevision struct {
		domain.Revision

		ManagedID uuid.UUID
	}
	made, err := queryAll[madeRevision](ctx, s.DB.pool, madeRevisionsSQL, projectID)
	if err != nil {
		return nil, err
	}
	byID := make(map[uuid.UUID]*domain.Managed, len(found))
	for n := range found {
		byID[found[n].ID] = &found[n]
	}
	for _, member := range members {
		if m := byID[member.ManagedID]; m != nil { // nil: it was declared just now
			member.Declarations = m.Declarations
			m.Members = append(m.Members, member)
		}
	}
	for _, r := range made {
		m := byID[r.ManagedID]
		if m == nil {
			continue
		}
		if m.Made == nil {
			m.Made = map[int]domain.Revision{}
		}
		m.Made[r.Number] = r.Revision
	}
	return found, nil
}
