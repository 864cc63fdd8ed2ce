package postgres

import (
	"context"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/cloudfn/cloudfn/shared/domain"
)

// rowsQuerier is a pool or a transaction.
type rowsQuerier interface {
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
}

// connectingSQL are the actions that connect the server ($2) and are not done: all of them, or those of one connection
// ($3).
const connectingSQL = `
select ` + actionColumns + ` from actions
where project_id = $1 and server_id = $2 and verb = '` + string(domain.Connect) + `' and status = 'running' and ($3::uuid is null or connection_id = $3)
order by created_at, id`

// Connect stores an action that connects a server through a connection, with its event. The InstanceID wanted may be
// zero: it is any. known is the server's instance when the connection manages it already; then nothing is stored. While
// an action of the connection connects the server, that one is given. An InstanceID that is not the one of the server's
// instance or of that action, or that is taken, is a Conflict.
func (a Actions) Connect(ctx context.Context, wanted domain.DelegatedAction) (known *domain.Instance, action domain.DelegatedAction, err error) {
	err = retryDeadlock(func() error {
		return a.DB.inTx(ctx, func(tx pgx.Tx) (err error) {
			known, action, err = createConnect(ctx, tx, wanted)
			return err
		})
	})
	return known, action, err
}

func createConnect(ctx context.Context, tx pgx.Tx, wanted domain.DelegatedAction) (known *domain.Instance, action domain.DelegatedAction, err error) {
	known, err = lockServer(ctx, tx, wanted.ProjectID, wanted.ServerID, wanted.InstanceID)
	if err != nil || known != nil && known.ConnectionID == wanted.ConnectionID && known.DisconnectedAt.IsZero() {
		return known, action, err
	}
	rows, _ := tx.Query(ctx, connectingSQL, wanted.ProjectID, wanted.ServerID, wanted.ConnectionID)
	running, err := pgx.CollectRows(rows, scanAction)
	switch {
	case err != nil:
		return nil, action, err
	case len(running) > 0 && (known == nil || running[0].InstanceID == known.ID):
		return nil, running[0], sameInstance(wanted.InstanceID, running[0].InstanceID)
	case known != nil:
		wanted.InstanceID = known.ID
	case wanted.InstanceID == uuid.Nil:
		wanted.InstanceID = uuid.Must(uuid.NewV7())
	default:
		if taken, err := takenIn(ctx, tx, wanted.ProjectID, wanted.InstanceID); err != nil {
			return nil, action, err
		} else if len(taken) > 0 {
			return nil, action, isTaken("id", nil)
		}
	}
	action, err = createAction(ctx, tx, wanted)
	return nil, action, err
}
