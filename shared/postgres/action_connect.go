package postgres

import (
	"context"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/cloudfn/cloudfn/shared/domain"
)

// connectingSQL selects the running actions that connect the server ($2): all of them, or those of a connection ($3).
const connectingSQL = `
select ` + actionColumns + ` from actions
where project_id = $1 and server_id = $2 and verb = '` + string(domain.Connect) + `' and status = 'running'
  and ($3::uuid is null or connection_id = $3)
order by created_at, id`

// Connect stores an action that connects a server through a connection, with its event. A zero InstanceID is any. known
// is the server's instance when the connection manages it already; then nothing is stored. While an action of the
// connection connects the server, it is that action. An InstanceID is a Conflict when it is taken, or differs from the
// one of the server's instance or of that action.
func (a Actions) Connect(
	ctx context.Context, action domain.DelegatedAction,
) (known *domain.Instance, stored domain.DelegatedAction, err error) {
	err = a.DB.changeTx(ctx, func(tx pgx.Tx) (err error) {
		known, stored, err = createConnect(ctx, tx, action)
		return err
	})
	return known, stored, err
}

func createConnect(
	ctx context.Context, tx pgx.Tx, action domain.DelegatedAction,
) (known *domain.Instance, stored domain.DelegatedAction, err error) {
	known, err = lockServer(ctx, tx, action.ProjectID, action.ServerID, action.InstanceID)
	if err != nil || known != nil && known.ConnectionID == action.ConnectionID && known.DisconnectedAt.IsZero() {
		return known, stored, err
	}
	running, err := allActions(ctx, tx, connectingSQL, action.ProjectID, action.ServerID, action.ConnectionID)
	switch {
	case err != nil:
		return nil, stored, err
	case len(running) > 0 && (known == nil || running[0].InstanceID == known.ID):
		return nil, running[0], sameInstance(action.InstanceID, running[0].InstanceID)
	case known != nil:
		action.InstanceID = known.ID
	case action.InstanceID == uuid.Nil:
		action.InstanceID = uuid.Must(uuid.NewV7())
	default:
		if taken, err := isTaken(ctx, tx, action.ProjectID, action.InstanceID); err != nil {
			return nil, stored, err
		} else if taken {
			return nil, stored, errTaken("id", nil)
		}
	}
	stored, err = createAction(ctx, tx, action)
	return nil, stored, err
}
