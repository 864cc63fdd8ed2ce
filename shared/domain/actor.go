package domain

import (
	"context"
	"sync/atomic"

	"github.com/google/uuid"
)

// Actor is whose request has caused a change, and by what. What does not apply is empty.
type Actor struct {
	UserID       string     `json:"user_id"`
	UserName     string     `json:"user_name,omitempty"`
	ProjectID    string     `json:"project_id"` // of the request's token
	ConnectionID *uuid.UUID `json:"connection_id,omitempty"`
	OrderID      *uuid.UUID `json:"order_id,omitempty"`
	ActionID     *uuid.UUID `json:"action_id,omitempty"`
	Action       Action     `json:"action,omitempty"`
}

// ActorOf is the caller as an Actor, through a connection (zero = none).
func ActorOf(who Identity, connection uuid.UUID) *Actor {
	a := &Actor{UserID: who.UserID, UserName: who.UserName, ProjectID: who.ProjectID}
	if connection != uuid.Nil {
		a.ConnectionID = &connection
	}
	return a
}

// Doing is the same actor with what is done to a server; nil stays nil. A zero id is of an action that has none.
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
	actingKey struct{}
)

// WithActor makes every change that is written with the context one that the actor has caused; nil makes it nobody's.
func WithActor(ctx context.Context, actor *Actor) context.Context {
	return context.WithValue(ctx, actorKey{}, actor)
}

// ActorIn is who causes the changes that are written with the context; nil = no request does, as of what Nova shows.
func ActorIn(ctx context.Context) *Actor {
	actor, _ := ctx.Value(actorKey{}).(*Actor)
	return actor
}

// ActedThrough is the connection that a request acted through, and where its servers are.
type ActedThrough struct {
	ConnectionID uuid.UUID
	ProjectID    string
	DomainID     string
}

// Acting is what becomes known of a request while it is handled, for its row in the request log.
type Acting struct{ through atomic.Pointer[ActedThrough] }

// WithActing makes a place in the context that ActThrough fills in.
func WithActing(ctx context.Context) (context.Context, *Acting) {
	acting := &Acting{}
	return context.WithValue(ctx, actingKey{}, acting), acting
}

// ActThrough notes that the request acts through a connection that its caller may use, also when that refuses what is
// asked for. Without WithActing, as in a tick, it does nothing.
func ActThrough(ctx context.Context, c Connection) {
	if acting, ok := ctx.Value(actingKey{}).(*Acting); ok {
		acting.through.Store(&ActedThrough{ConnectionID: c.ID, ProjectID: c.ProjectID, DomainID: c.DomainID})
	}
}

// Through is the connection that the request acted through; the zero value = none.
func (a *Acting) Through() ActedThrough {
	if through := a.through.Load(); through != nil {
		return *through
	}
	return ActedThrough{}
}
