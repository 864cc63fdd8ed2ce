package postgres

import (
	"context"
	"errors"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/domain"
)

const (
	ofServerSQL = `
select ` + instanceColumns + ` from instances
where project_id = $1 and server_id = $2 and state <> 'deleted' for update`

	insertConnectedSQL = `
with row as (
    insert into instances (project_id, id, position, name, server_id, state, raw_status, origin, spec, addresses,
                           key_name, connection_id, remote, seen_at, seq)
    values ($1, $2, 0, $3, $4, $5, $6, '` + domain.OriginConnected + `', $7, $8, $9, $10, $11, $12, 1)
    returning *, null::text as previous_state, $13::jsonb as actor
), event as (` + instanceEventSQL + ` row)
select ` + instanceColumns + ` from row`

	// A disconnected instance, and one of a connection that has ended, stays the same instance.
	adoptSQL = `
with row as (
    update instances
    set connection_id = $3, disconnected_at = null, reusable = false, seq = seq + 1, updated_at = clock_timestamp()
    where project_id = $1 and id = $2
    returning *, state as previous_state, $4::jsonb as actor
), event as (` + instanceEventSQL + ` row)
select ` + instanceColumns + ` from row`

	disconnectSQL = `
with row as (
    update instances set disconnected_at = clock_timestamp(), seq = seq + 1, updated_at = clock_timestamp()
    where project_id = $1 and id = $2 and disconnected_at is null and state <> 'deleted'
      and ($3::uuid is null or connection_id = $3)
    returning *, state as previous_state, $4::jsonb as actor
), ended as (
    update deployments d set bundle = null, expires_at = least(d.expires_at, clock_timestamp()) from row
    where d.project_id = row.project_id and d.instance_id = row.id and d.expires_at > clock_timestamp()
), event as (` + instanceEventSQL + ` row)
select count(*) from row`
)

// Connect takes an existing server under management, with its event. The ProjectID, ID (zero = any), ConnectionID,
// Remote, SeenAt and Spec of the instance count, and what Observe has written into it. A server that was tracked before
// is the same instance, and another ID is a Conflict. made is false when it was managed and not disconnected. It is a
// Conflict when the server is managed through another connection that is active. A server that is adopted through a
// connection has to fit its quota.
func (i Instances) Connect(
	ctx context.Context, server domain.Instance,
) (instance domain.Instance, made bool, err error) {
	err = i.DB.change(ctx, func(tx pgx.Tx) (err error) {
		instance, made, err = connect(ctx, tx, server)
		return err
	})
	return instance, made, err
}

func connect(ctx context.Context, tx pgx.Tx, server domain.Instance) (domain.Instance, bool, error) {
	known, err := lockServer(ctx, tx, server.ProjectID, server.ServerID, server.ID)
	switch {
	case err != nil:
		return server, false, err
	case known == nil:
		if err := notLaunching(ctx, tx, server); err != nil {
			return server, false, err
		}
		made, err := insertConnected(ctx, tx, server)
		return made, err == nil, err
	case known.DisconnectedAt.IsZero() && known.ConnectionID == server.ConnectionID:
		return *known, false, nil
	}
	adopted, err := adopt(ctx, tx, *known, server)
	return adopted, err == nil && !known.DisconnectedAt.IsZero(), err
}

// launchingSQL reports whether the server names in its tags a create call of an order whose instance has no server yet,
// or has just got this one.
const launchingSQL = `
select exists (
    select from create_calls c join instances i on i.project_id = c.project_id and i.id = c.instance_id
    where c.project_id = $1 and c.id = $2 and (c.server_id = $3 or c.server_id is null and c.ended_at is null)
      and (i.server_id is null and i.problem is null or i.server_id = $3 and i.state <> 'deleted'))`

// notLaunching is a Conflict while an order is about to adopt the server as its own. As another instance it would be
// lost to the order, which would create a second one.
func notLaunching(ctx context.Context, tx pgx.Tx, wanted domain.Instance) error {
	if wanted.CallID == uuid.Nil {
		return nil
	}
	isLaunching, err := queryValue[bool](ctx, tx, launchingSQL, wanted.ProjectID, wanted.CallID, wanted.ServerID)
	if err == nil && isLaunching {
		return apperr.New(apperr.Conflict,
			"the server is being launched by an order: it becomes an instance of that order")
	}
	return err
}

// lockServer keeps others from connecting the server until the transaction ends, and reads its instance; nil when it
// has none. An id that differs from the instance's is a Conflict; zero is any.
func lockServer(ctx context.Context, tx pgx.Tx, projectID, serverID string, id uuid.UUID) (*domain.Instance, error) {
	if err := lockName(ctx, tx, "server", projectID, serverID); err != nil {
		return nil, err
	}
	instance, found, err := queryFound[domain.Instance](ctx, tx, ofServerSQL, projectID, serverID)
	if err != nil || !found {
		return nil, err
	}
	return &instance, sameInstance(id, instance.ID)
}

// sameInstance is a Conflict when the caller gave the server's instance another id than it has.
func sameInstance(given, known uuid.UUID) error {
	if given == uuid.Nil || given == known {
		return nil
	}
	other := apperr.InvalidField("id",
		"is not the id of the server's instance: leave it out, or send the instance's id", known.String())
	other.Code = apperr.Conflict
	return other
}

func insertConnected(ctx context.Context, tx pgx.Tx, w domain.Instance) (domain.Instance, error) {
	if w.ConnectionID != uuid.Nil {
		var more domain.Need
		more.Add(w.Spec)
		if err := admit(ctx, tx, w.ProjectID, w.ConnectionID, domain.MayConnect, more); err != nil {
			return w, err
		}
	}
	if err := chooseID(ctx, tx, &w); err != nil {
		return w, err
	}
	made, err := queryOne[domain.Instance](ctx, tx, insertConnectedSQL, w.ProjectID, w.ID, w.Name, w.ServerID, w.State,
		w.RawStatus, w.Spec, orEmpty(w.Addresses), w.KeyName, orNullID(w.ConnectionID), w.Remote, orNull(w.SeenAt),
		domain.ActorFrom(ctx))
	if pg, ok := errors.AsType[*pgconn.PgError](err); ok && pg.ConstraintName == "instances_server" {
		return made, apperr.Wrap(apperr.Conflict, err,
			"the server was tracked before and has been deleted: a deleted server cannot be connected")
	}
	return made, takenID(err, "id")
}

// chooseID gives the instance of a server that was never tracked its id: the one of a running action that connects it,
// or a new one. It is a Conflict when the id that the caller gave is taken.
func chooseID(ctx context.Context, tx pgx.Tx, w *domain.Instance) error {
	isGiven := w.ID != uuid.Nil
	if !isGiven {
		running, err := allActions(ctx, tx, connectingSQL, w.ProjectID, w.ServerID, uuid.NullUUID{})
		if err != nil {
			return err
		}
		if w.ID = uuid.Must(uuid.NewV7()); len(running) > 0 {
			w.ID = running[0].InstanceID
		}
	}
	taken, err := isTaken(ctx, tx, w.ProjectID, w.ID)
	switch {
	case err != nil || !taken:
		return err
	case isGiven:
		return errTaken("id", nil)
	}
	w.ID = uuid.Must(uuid.NewV7())
	return nil
}

// adopt gives a known instance to another connection, or back to its project. An instance that counts for the
// connection already takes no more of its quota. An instance that its project adopts no longer belongs to the
// connection: users of the connection must not stop, rebuild or delete it.
func adopt(ctx context.Context, tx pgx.Tx, known, server domain.Instance) (domain.Instance, error) {
	server.CallID = uuid.Nil // a tag alone, which may be copied, must not end a create call
	if known.DisconnectedAt.IsZero() && known.ConnectionID != uuid.Nil && server.ConnectionID != uuid.Nil {
		active, err := queryValue[bool](ctx, tx,
			"select exists (select from connections where project_id = $1 and id = $2 and status = 'active')",
			known.ProjectID, known.ConnectionID)
		if err != nil {
			return known, err
		}
		if active {
			return known, apperr.New(apperr.Conflict, "the server is managed through another connection")
		}
	}
	if server.ConnectionID == uuid.Nil && known.DisconnectedAt.IsZero() {
		return known, nil // managed through a connection: its project sees it anyway
	}
	if server.ConnectionID != uuid.Nil && server.ConnectionID != known.ConnectionID {
		var more domain.Need
		more.Add(known.Spec)
		if err := admit(ctx, tx, server.ProjectID, server.ConnectionID, domain.MayConnect, more); err != nil {
			return known, err
		}
	}
	if server.ID = known.ID; !server.SeenAt.IsZero() { // it may not have been followed while it was disconnected
		if _, err := changeAll(domain.WithActor(ctx, nil), tx, []domain.Instance{server}, nil); err != nil {
			return known, err
		}
	}
	return queryOne[domain.Instance](ctx, tx, adoptSQL, known.ProjectID, known.ID, orNullID(server.ConnectionID),
		domain.ActorFrom(ctx))
}

// Disconnect ends the management of an instance, with its last event. Its server stays as it is, and its deployments
// end. A filter with a connection matches only what is managed through it. done is false when no instance matches, or
// its server is deleted.
func (i Instances) Disconnect(ctx context.Context, filter domain.Filter, id uuid.UUID) (done bool, err error) {
	n, err := write(ctx, i.DB, queryValue[int], disconnectSQL, filter.ProjectID, id, orNullID(filter.ConnectionID),
		domain.ActorFrom(ctx))
	return n == 1, err
}

// WasDisconnected reports whether the id is that of a disconnected instance, or of its server. A filter with a
// connection matches only what was managed through it.
func (i Instances) WasDisconnected(ctx context.Context, filter domain.Filter, id string) (bool, error) {
	return queryValue[bool](ctx, i.DB.pool, `
select exists (select from instances
               where project_id = $1 and (server_id = $2 or id = $2::text::uuid) and disconnected_at is not null
                 and ($3::uuid is null or connection_id = $3))`, filter.ProjectID, id, orNullID(filter.ConnectionID))
}
