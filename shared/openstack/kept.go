package openstack

import (
	"context"
	"time"

	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/flow"
)

// keptFor is how long a Kept session is used: shorter than any token lives.
const keptFor = 20 * time.Minute

// Kept keeps a session of a service account from one event to the next. S is what the function needs of the session.
type Kept[S any] struct {
	login  func(context.Context) (S, error)
	shared flow.Shared[*opened[S]]
}

type opened[S any] struct {
	session S
	at      time.Time
}

// Keep returns a Kept that has no session yet.
func Keep[S any](a *Account) *Kept[S] {
	return &Kept[S]{login: func(ctx context.Context) (S, error) { return Narrow[S](a.Login(ctx)) }}
}

// Session returns the session, and logs in when no session is kept.
func (k *Kept[S]) Session(ctx context.Context) (session S, err error) {
	kept, err := k.shared.Get(ctx, nil, k.open)
	if err == nil && time.Since(kept.at) >= keptFor {
		kept, err = k.shared.Get(ctx, kept, k.open)
	}
	if err != nil {
		return session, err
	}
	return kept.session, nil
}

func (k *Kept[S]) open(ctx context.Context) (*opened[S], error) {
	session, err := k.login(ctx)
	if err != nil {
		return nil, apperr.Wrap(apperr.Unavailable, err, "the service account cannot log in")
	}
	return &opened[S]{session, time.Now()}, nil
}

// Forget drops the session after an answer 401: its token was revoked, or Keystone's keys were rotated.
func (k *Kept[S]) Forget(err error) {
	if apperr.CodeOf(err) == apperr.Unauthenticated {
		k.shared.Forget(k.shared.Current())
	}
}
