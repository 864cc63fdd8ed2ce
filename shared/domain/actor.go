package domain

import (
	"context"
	"sync/atomic"

	"github.com/google/uuid"
)

// Actor is the user whose request caused a change, and the order or action that did it.
type Actor struct {
	UserID       string     `json:"user_id"`
	UserName     string     `json:"user_name,omitempty"`
	ProjectID    string     `json:"project_id"` // of the request's token
	ConnectionID *uuid.UUID `json:"connection_id,omitempty"`
	OrderID      *uuid.UUID `json:"order_id,omitempty"`
	ActionID     *uuid.UUID `json:"action_id,omitempty"`
	Action       Action     `json:"action,omitempty"`
}

// ActorOf returns the caller as an Actor; connection may be zero.
func ActorOf(who Identity, connection uuid.UUID) *Actor {
	a := &Actor{UserID: who.UserID, UserName: who.UserName, ProjectID: who.ProjectID}
	if connection != uuid.Nil {
		a.ConnectionID = &connection
	}
	return a
}

// Doing returns the actor with an action on a server. A nil actor stays nil; id may be zero.
func (a *Actor) Doing(action Action, id uuid.UUID) *Actor {
	if a == nil {
		return nil
	}
	doing := *a
	if doing.Action = action; id != uuid.Nil {
		doing.ActionID = &id
	}
	return &doing
}

type (
	actorKey  struct{}
	recordKey struct{}
)

// WithActor attributes the changes that are written with the context to the actor; nil attributes them to nobody.
func WithActor(ctx context.Context, actor *Actor) context.Context {
	return context.WithValue(ctx, actorKey{}, actor)
}

// ActorFrom returns the actor of the changes that are written with the context; nil = no request caused them.
func ActorFrom(ctx context.Context) *Actor {
	actor, _ := ctx.Value(actorKey{}).(*Actor)
	return actor
}

// UsedConnection is the connection that a request used, and where its servers are.
type UsedConnection struct {
	ConnectionID uuid.UUID
	ProjectID    string
	DomainID     string
}

// ConnectionRecord collects, while a request is handled, which connection it uses: the request log shows it.
type ConnectionRecord struct {
	used atomic.Pointer[UsedConnection]
}

// WithConnectionRecord returns a context in which RecordConnection fills the record.
func WithConnectionRecord(ctx context.Context) (context.Context, *ConnectionRecord) {
	record := &ConnectionRecord{}
	return context.WithValue(ctx, recordKey{}, record), record
}

// RecordConnection records that the request uses a connection that its caller may use, even when the connection does
// not permit the request. Without a record in the context, as in a tick, it does nothing.
func RecordConnection(ctx context.Context, c Connection) {
	if record, ok := ctx.Value(recordKey{}).(*ConnectionRecord); ok {
		record.used.Store(&UsedConnection{ConnectionID: c.ID, ProjectID: c.ProjectID, DomainID: c.DomainID})
	}
}

// Used returns the connection that the request used; zero = none.
func (r *ConnectionRecord) Used() UsedConnection {
	if used := r.used.Load(); used != nil {
		return *used
	}
	return UsedConnection{}
}
