package postgres

import (
	"context"
	"fmt"
	"slices"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/domain"
)

// takenSQL finds ids among those of all that events are about: an event is identified by its subject and a number, so
// no two things of a project may have the same id. A deleted thing has its id for as long as its events are stored. A
// callback that gets the project's events through a connection counts: its receiver must not take its events for those
// of an instance.
const takenSQL = `
select id from instances where project_id = $1 and id = any($2)
union all select id from orders where project_id = $1 and id = any($2)
union all select id from callbacks where project_id = $1 and id = any($2)
union all select id from callbacks where coalesce(of_project, project_id) = $1 and project_id <> $1 and id = any($2)
union all select id from connections where project_id = $1 and id = any($2)
union all select id from actions where project_id = $1 and id = any($2)
union all select id from unnest($2::uuid[]) as id
where exists (select from events where project_id = $1 and subject = id::text)`

// ListTaken lists those of the ids that the project uses already.
func (o Orders) ListTaken(ctx context.Context, projectID string, ids []uuid.UUID) ([]uuid.UUID, error) {
	return queryColumn[uuid.UUID](ctx, o.DB.pool, "select distinct id from ("+takenSQL+") taken", projectID, ids)
}

// isTaken reports whether the project uses the id already.
func isTaken(ctx context.Context, tx pgx.Tx, projectID string, id uuid.UUID) (bool, error) {
	return queryValue[bool](ctx, tx, "select exists ("+takenSQL+")", projectID, []uuid.UUID{id})
}

// checkIDs rejects an order that was stored just now when the project uses its id for something else, or that of one of
// its new instances. Of two orders that come at once with the same id, one fails at its first event.
func checkIDs(ctx context.Context, tx pgx.Tx, order domain.Order, positions []int) error {
	ids := []uuid.UUID{order.ID}
	for _, n := range positions {
		ids = append(ids, order.Instances[n].ID)
	}
	taken, err := queryColumn[uuid.UUID](ctx, tx, takenSQL, order.ProjectID, ids)
	if err != nil {
		return err
	}
	for _, n := range positions {
		if slices.Contains(taken, order.Instances[n].ID) {
			return errTaken(instanceID(n), nil)
		}
	}
	self := slices.Index(taken, order.ID)
	if slices.Contains(taken[self+1:], order.ID) {
		return errTaken("id", nil)
	}
	return nil
}

// takenID names the field whose id is taken, if err is a Conflict.
func takenID(err error, field string) error {
	if apperr.CodeOf(classify(err)) != apperr.Conflict {
		return err
	}
	return errTaken(field, err)
}

func errTaken(field string, cause error) error {
	taken := apperr.InvalidField(field, "is taken: something else of the project has it")
	taken.Code, taken.Cause = apperr.Conflict, cause
	return taken
}

// instanceID is the field of the nth instance's id in a request.
func instanceID(n int) string { return fmt.Sprintf("instances[%d].id", n) }
