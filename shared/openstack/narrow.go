package openstack

import (
	"context"
	"reflect"
)

// Scoped shows a *Session as S, an interface whose In returns an S.
type Scoped[S any] struct{ *Session }

// In opens a session in one project.
func (s Scoped[S]) In(ctx context.Context, projectID string) (S, error) {
	return Narrow[S](s.Session.In(ctx, projectID))
}

// Narrow shows a new session as the part that a function needs. It panics when Scoped[S] does not implement S.
func Narrow[S any](s *Session, err error) (narrowed S, _ error) {
	if err != nil {
		return narrowed, err
	}
	narrowed, ok := any(Scoped[S]{s}).(S)
	if !ok {
		panic("openstack: Scoped does not implement " + reflect.TypeFor[S]().String())
	}
	return narrowed, nil
}
