package postgres

import (
	"context"
	"encoding/json"
	"slices"
	"time"

	"github.com/google/uuid"

	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/domain"
)

// statusBatch bounds the resources of one statement: it keeps the project's row locked for some milliseconds.
const statusBatch = 500

// saveStatusSQL has a row for each stored resource, one of nulls when none is stored, and none without the claim.
// Nothing is written of a resource that does not differ.
const saveStatusSQL = `
with ` + claimedProjectSQL + `, given as materialized (
    select * from jsonb_to_recordset($3) as g (id uuid, version bigint, request text, status text, reason text,
        conditions jsonb, drift jsonb, observed_revision integer, next_at timestamptz, loaded_next_at timestamptz)
), before as (
    select m.id as old_id, m.version as old_version, m.status as old_status, m.observed_revision as old_revision
    from managed m, claimed c where m.project_id = c.project_id and m.id in (select id from given)
    order by m.id
    for no key update of m
), after as (
    update managed m
    set request = g.request, status = g.status, reason = g.reason, conditions = g.conditions, drift = g.drift,
        observed_revision = g.observed_revision,
        next_at = case when m.next_at is distinct from g.loaded_next_at then m.next_at else g.next_at end,
        updated_at = clock_timestamp(),
        seq = m.seq + ((b.old_status, b.old_revision) <> (g.status, g.observed_revision))::int
    from before b join given g on g.id = b.old_id
    where m.project_id = $1 and m.id = b.old_id and m.version = g.version
      and ((m.request, m.status, m.reason, m.conditions, m.drift, m.observed_revision)
           is distinct from (g.request, g.status, g.reason, g.conditions, g.drift, g.observed_revision)
           or m.next_at is not distinct from g.loaded_next_at and m.next_at is distinct from g.next_at)
    returning m.*, b.old_status as previous_status,
              (b.old_status, b.old_revision) <> (m.status, m.observed_revision) as notify
), event as (` + managedEventSQL + ` after where notify
), pruned as (
    delete from managed_revisions r using after m
    where m.notify and m.observed_revision = m.revision and ` + prunableRevision + `
)
select b.old_id as id, b.old_version as version, a.seq, a.updated_at
from claimed left join before b on true left join after a on a.id = b.old_id`

// statusRow is what SaveStatus writes of a resource.
type statusRow struct {
	ID               uuid.UUID             `json:"id"`
	Version          int64                 `json:"version"`
	Request          domain.ManagedRequest `json:"request"`
	Status           domain.ManagedStatus  `json:"status"`
	Reason           string                `json:"reason"`
	Conditions       []domain.Condition    `json:"conditions"`
	Drift            []domain.Drift        `json:"drift"`
	ObservedRevision int                   `json:"observed_revision"`
	NextAt           *time.Time            `json:"next_at"`
	LoadedNextAt     *time.Time            `json:"loaded_next_at"`
}

// SaveStatus writes what reconcile-managed changes of resources of one project, some hundred in a statement: request,
// status, reason, conditions, drift, observed_revision and NextAt. Nothing is written of one that has not changed,
// and no NextAt over a later one. An event reports a new status or observed revision; with the latter, old revisions
// that no member has any more are deleted. Each resource given gets its new Seq and UpdatedAt. It is domain.ErrFenced
// when another replica has claimed the project since. It is domain.ErrChanged when the user has changed some of them
// since they were loaded: then the others are written, and the project is due immediately.
func (s Managed) SaveStatus(ctx context.Context, claim domain.Claim, all ...*domain.Managed) error {
	var changed error
	for batch := range slices.Chunk(all, statusBatch) {
		isSame, err := s.saveStatuses(ctx, claim, batch)
		if err != nil {
			return err
		}
		if !isSame {
			changed = domain.ErrChanged
		}
	}
	return changed
}

// saveStatuses writes one batch. isSame is false when the user has changed some of it.
func (s Managed) saveStatuses(ctx context.Context, claim domain.Claim, all []*domain.Managed) (isSame bool, err error) {
	rows := make([]statusRow, len(all))
	for n, m := range all {
		rows[n] = statusRow{
			ID: m.ID, Version: m.Version, Request: m.Request, Status: m.Status, Reason: m.Reason,
			Conditions: orEmpty(m.Conditions), Drift: orEmpty(m.Drift), ObservedRevision: m.ObservedRevision,
			NextAt: orNull(m.NextAt), LoadedNextAt: orNull(m.LoadedNextAt),
		}
	}
	text, err := json.Marshal(rows)
	if err != nil {
		return false, apperr.Wrap(apperr.Internal, err, "a status cannot be written")
	}
	type saved struct {
		ID        *uuid.UUID
		Version   *int64
		Seq       *int64     // null: nothing was written
		UpdatedAt *time.Time // null with Seq
	}
	var found []saved
	err = retryDeadlock(ctx, func() (err error) {
		found, err = queryAll[saved](ctx, s.DB.pool, saveStatusSQL, all[0].ProjectID, claim.ID, text)
		return err
	})
	if err := fenced(int64(len(found)), err); err != nil {
		return false, err
	}
	stored := make(map[uuid.UUID]saved, len(found))
	for _, one := range found {
		if one.ID != nil {
			stored[*one.ID] = one
		}
	}
	isSame = true
	for _, m := range all {
		one, ok := stored[m.ID]
		if !ok || *one.Version != m.Version {
			isSame = false
		} else if one.Seq != nil {
			m.Seq, m.UpdatedAt = *one.Seq, *one.UpdatedAt
		}
	}
	return isSame, nil
}
