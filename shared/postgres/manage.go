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
	lockServerSQL = `select pg_advisory_xact_lock(hashtextextended('server/' || $1 || '/' || $2, 0))`

	ofServerSQL = `
select ` + instanceColumns + ` from instances where project_id = $1 and server_id = $2 and state <> 'deleted' for update`

	insertConnectedSQL = `
with row as (
    insert into instances (project_id, id, position, name, server_id, state, raw_status, origin, spec, addresses, key_name, connection_id, remote, seen_at, seq)
    values ($1, $2, 0, $3, $4, $5, $6, '` + domain.OriginConnected + `', $7, $8, $9, $10, $11, $12, 1)
    returning *, null::text as previous_state, $13::jsonb as actor
), event as (` + instanceEventSQL + ` row)
select ` + instanceColumns + ` from row`

	// Whoever adopts what was disconnected, or is managed through a connection that has ended, manages the same
	// instance.
	adoptSQL = `
with row as (
    update instances set connection_id = $3, disconnected_at = null, reusable = false, seq = seq + 1, updated_at = clock_timestamp()
    where project_id = $1 and id = $2
    returning *, state as previous_state, $4::jsonb as actor
), event as (` + instanceEventSQL + ` row)
select ` + instanceColumns + ` from row`

	disconnectSQL = `
with row as (
    update instances set disconnected_at = clock_timestamp(), seq = seq + 1, updated_at = clock_timestamp()
    where project_id = $1 and id = $2 and disconnected_at is null and state <> 'deleted' and ($3::uuid is null or connection_id = $3)
    returning *, state as previous_state, $4::jsonb as actor
), ended as (
    update deployments d set bundle = null, expires_at = least(d.expires_at, clock_timestamp()) from row
    where d.project_id = row.project_id and d.instance_id = row.id and d.expires_at > clock_timestamp()
), event as (` + instanceEventSQL + ` row)
select count(*) from row`

	// instanceEventSQL writes an event of instances, from rows of them with previous_state and actor.
	instanceEventSQL = `
    insert into events (project_id, subject, seq, type, at, order_id, connection_id, data)
    select project_id, id::text, seq, '` + domain.InstanceEvent + `', updated_at, order_id, connection_id, ` + instanceData + ` from`
)

// Connect takes an existing server under management, with its event: the instance's ProjectID, ID (zero = any),
// ConnectionID, Remote, SeenAt and Spec count, and what Seen has written into it. A server that was tracked before is
// the instance that it was, and another ID is a Conflict. made is false when it was managed and not disconnected. One
// that is managed through another connection is a Conflict while that connection is active. What is adopted through a
// connection has to fit its quota.
func (i Instances) Connect(ctx context.Context, wanted domain.Instance) (instance domain.Instance, made bool, err error) {
	err = retryDeadlock(func() error {
		return i.DB.inTx(ctx, func(tx pgx.Tx) (err error) {
			instance, made, err = connect(ctx, tx, wanted)
			return err
		})
	})
	return instance, made, err
}

func connect(ctx context.Context, tx pgx.Tx, wanted domain.Instance) (domain.Instance, bool, error) {
	known, err := lockServer(ctx, tx, wanted.ProjectID, wanted.ServerID, wanted.ID)
	switch {
	case err != nil:
		return wanted, false, err
	case known == nil:
		made, err := insertConnected(ctx, tx, wanted)
		return made, err == nil, err
	case known.DisconnectedAt.IsZero() && known.ConnectionID == wanted.ConnectionID:
		return *known, false, nil
	}
	adopted, err := adopt(ctx, tx, *known, wanted)
	return adopted, err == nil && !known.DisconnectedAt.IsZero(), err
}

// lockServer keeps others from connecting the server until the transaction ends, and reads its instance; nil when it
// has none. An id that is not the instance's is a Conflict; zero is any.
func lockServer(ctx context.Context, tx pgx.Tx, projectID, serverID string, id uuid.UUID) (*domain.Instance, error) {
	if _, err := tx.Exec(ctx, lockServerSQL, projectID, serverID); err != nil {
		return nil, err
	}
	rows, _ := tx.Query(ctx, ofServerSQL, projectID, serverID)
	found, err := pgx.CollectRows(rows, pgx.RowToStructByPos[domain.Instance])
	if err != nil || len(found) == 0 {
		return nil, err
	}
	return &found[0], sameInstance(id, found[0].ID)
}

// sameInstance is a Conflict when the caller gave the server's instance another id than it has.
func sameInstance(given, known uuid.UUID) error {
	if given == uuid.Nil || given == known {
		return nil
	}
	other := apperr.InvalidField("id", "is not the id of the server's instance: leave it out, or give the one that the instance has", known.String())
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
	rows, _ := tx.Query(ctx, insertConnectedSQL, w.ProjectID, w.ID, w.Name, w.ServerID, w.State, w.RawStatus, w.Spec, addressesOf(w), w.KeyName,
		orNullID(w.ConnectionID), w.Remote, orNull(w.SeenAt), domain.ActorIn(ctx))
	made, err := pgx.CollectExactlyOneRow(rows, pgx.RowToStructByPos[domain.Instance])
	if pg, ok := errors.AsType[*pgconn.PgError](err); ok && pg.ConstraintName == "instances_server" {
		return made, apperr.Wrap(apperr.Conflict, err, "the server was tracked before, and counts as deleted since: what is deleted does not come back")
	}
	return made, takenID(err, "id")
}

// chooseID gives the instance of a server that was never tracked its id: the one that whoever connects it through a
// connection was answered, or a new one. It is a Conflict when the id that the caller gave is taken.
func chooseID(ctx context.Context, tx pgx.Tx, w *domain.Instance) error {
	isGiven := w.ID != uuid.Nil
	if !isGiven {
		rows, _ := tx.Query(ctx, connectingSQL, w.ProjectID, w.ServerID, uuid.NullUUID{})
		running, err := pgx.CollectRows(rows, scanAction)
		if err != nil {
			return err
		}
		if w.ID = uuid.Must(uuid.NewV7()); len(running) > 0 {
			w.ID = running[0].InstanceID
		}
	}
	taken, err := takenIn(ctx, tx, w.ProjectID, w.ID)
	switch {
	case err != nil || len(taken) == 0:
		return err
	case isGiven:
		return isTaken("id", nil)
	}
	w.ID = uuid.Must(uuid.NewV7())
	return nil
}

// adopt gives a known instance to another connection, or back to its project. One that counts for the connection
// already takes no more of its quota. What its project takes up itself is not the connection's any more: else whoever
// may act through that could stop, rebuild or delete it again.
func adopt(ctx context.Context, tx pgx.Tx, known, wanted domain.Instance) (domain.Instance, error) {
	if known.DisconnectedAt.IsZero() && known.ConnectionID != uuid.Nil && wanted.ConnectionID != uuid.Nil {
		var active bool
		err := tx.QueryRow(ctx, "select exists (select from connections where project_id = $1 and id = $2 and status = 'active')",
			known.ProjectID, known.ConnectionID).Scan(&active)
		if err != nil {
			return known, err
		}
		if active {
			return known, apperr.New(apperr.Conflict, "the server is managed through another connection")
		}
	}
	if wanted.ConnectionID == uuid.Nil && known.DisconnectedAt.IsZero() {
		return known, nil // through a connection, but managed: its project sees it anyhow
	}
	if wanted.ConnectionID != uuid.Nil && wanted.ConnectionID != known.ConnectionID {
		var more domain.Need
		more.Add(known.Spec)
		if err := admit(ctx, tx, wanted.ProjectID, wanted.ConnectionID, domain.MayConnect, more); err != nil {
			return known, err
		}
	}
	if wanted.ID = known.ID; !wanted.SeenAt.IsZero() { // nobody may have followed it while it was disconnected
		if _, err := changeAll(domain.WithActor(ctx, nil), tx, []domain.Instance{wanted}); err != nil {
			return known, err
		}
	}
	rows, _ := tx.Query(ctx, adoptSQL, known.ProjectID, known.ID, orNullID(wanted.ConnectionID), domain.ActorIn(ctx))
	return pgx.CollectExactlyOneRow(rows, pgx.RowToStructByPos[domain.Instance])
}

// Disconnect ends the management of an instance, with its last event: nobody is shown it any more, and its server stays
// as it is. Its deployments end. With a connection only one that is managed through it. done is false when it finds
// none, or the server is gone.
func (i Instances) Disconnect(ctx context.Context, filter domain.Filter, id uuid.UUID) (done bool, err error) {
	var n int
	err = retryDeadlock(func() error {
		return i.DB.pool.QueryRow(ctx, disconnectSQL, filter.ProjectID, id, orNullID(filter.ConnectionID), domain.ActorIn(ctx)).Scan(&n)
	})
	return n == 1, classify(err)
}

// WasDisconnected says whether an id is that of an instance that was disconnected, or of its server. With a connection
// of one that was managed through it.
func (i Instances) WasDisconnected(ctx context.Context, filter domain.Filter, id string) (was bool, err error) {
	err = i.DB.pool.QueryRow(ctx, `
select exists (select from instances where project_id = $1 and (server_id = $2 or id = $2::text::uuid) and disconnected_at is not null
  and ($3::uuid is null or connection_id = $3))`, filter.ProjectID, id, orNullID(filter.ConnectionID)).Scan(&was)
	return was, classify(err)
}
