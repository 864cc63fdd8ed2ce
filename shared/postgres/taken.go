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

// takenSQL finds ids among those of all that events are about: an event is known by its subject and a number, so no two things of
// a project may have the same id. What is deleted has its id for as long as its events are stored. A callback that gets the
// project's events through a connection counts: its receiver must not take its events for those of an instance.
const takenSQL = `
select id from instances where project_id = $1 and id = any($2)
union all select id from orders where project_id = $1 and id = any($2)
union all select id from callbacks where project_id = $1 and id = any($2)
union all select id from callbacks where coalesce(of_project, project_id) = $1 and project_id <> $1 and id = any($2)
union all select id from connections where project_id = $1 and id = any($2)
union all select id from actions where project_id = $1 and id = any($2)
union all select id from unnest($2::uuid[]) as id where exists (select from events where project_id = $1 and subject = id::text)`

// Taken says which of the ids belong to something of the project.
func (o Orders) Taken(ctx context.Context, projectID string, ids []uuid.UUID) ([]uuid.UUID, error) {
	rows, _ := o.DB.pool.Query(ctx, "select distinct id from ("+takenSQL+") taken", projectID, ids)
	taken, err := pgx.CollectRows(rows, pgx.RowTo[uuid.UUID])
	return taken, classify(err)
}

func takenIn(ctx context.Context, tx pgx.Tx, projectID string, ids ...uuid.UUID) ([]uuid.UUID, error) {
	rows, _ := tx.Query(ctx, takenSQL, projectID, ids)
	return pgx.CollectRows(rows, pgx.RowTo[uuid.UUID])
}

// checkFree refuses an order that was stored just now when something else of the project has its id, or that of one of its
// instances but for those that are there already. Of two that come at once with the same id, one fails at its first event.
func checkFree(ctx context.Context, tx pgx.Tx, order domain.Order, there []bool) error {
	ids := []uuid.UUID{order.ID}
	for _, i := range order.Instances {
		ids = append(ids, i.ID)
	}
	taken, err := takenIn(ctx, tx, order.ProjectID, ids...)
	if err != nil {
		return err
	}
	for n, i := range order.Instances {
		if !there[n] && slices.Contains(taken, i.ID) {
			return isTaken(instanceID(n), nil)
		}
	}
	mine := slices.Index(taken, order.ID)
	if slices.Contains(taken[mine+1:], order.ID) {
		return isTaken("id", nil)
	}
	return nil
}

// takenID names the field whose id is taken, when that is why something could not be stored.
func takenID(err error, field string) error {
	if apperr.CodeOf(classify(err)) != apperr.Conflict {
		return err
	}
	return isTaken(field, err)
}

func isTaken(field string, cause error) error {
	taken := apperr.InvalidField(field, "is taken: something else of the project has it")
	taken.Code, taken.Cause = apperr.Conflict, cause
	return taken
}

// instanceID is the field of the nth instance's id in a request.
func instanceID(n int) string { return fmt.Sprintf("instances[%d].id", n) }
