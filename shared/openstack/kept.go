package openstack

import (
	"context"
	"sync"
	"time"

	"github.com/cloudfn/cloudfn/shared/apperr"
)

// keptFor is how long a Kept session is used: shorter than any token lives.
const keptFor = 20 * time.Minute

// Kept keeps a session of a service account from one event to the next. S is what the function needs of the session.
type Kept[S any] struct {
	account *Account

	mu     sync.Mutex
	kept   S
	opened time.Time // zero when no session is kept
}

// Keep returns a Kept that has no session yet.
func Keep[S any](a *Account) *Kept[S] { return &Kept[S]{account: a} }

// Session returns the session, and logs in when no session is kept.
func (k *Kept[S]) Session(ctx context.Context) (S, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if time.Since(k.opened) < keptFor {
		return k.kept, nil
	}
	opened, err := Narrow[S](k.account.Login(ctx))
	if err != nil {
		return opened, apperr.Wrap(apperr.Unavailable, err, "the service account cannot log in")
	}
	k.kept, k.opened = opened, time.Now()
	return opened, nil
}

// Forget drops the session after an answer 401: its token was revoked, or Keystone's keys were rotated.
func (k *Kept[S]) Forget(err error) {
	if apperr.CodeOf(err) != apperr.Unauthenticated {
		return
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	k.opened = time.Time{}
}
