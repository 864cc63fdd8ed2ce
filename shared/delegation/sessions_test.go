package delegation

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"

	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/flow"
)

// keystone is a fake: a real token would have to expire to show the order of rejections.
type keystone struct {
	slow     time.Duration    // a login with a trust
	logins   int              // of the account
	trusts   int              // sessions that were requested with the trust
	through  map[string]error // by account
	knows    error
	password error
}

type fakeAccount struct {
	*keystone
	Account[fakeSession]

	name string
}

type fakeSession struct{ name string }

func (fakeSession) DeleteTrust(context.Context, string) error { return nil }

func (p fakeAccount) WithTrust(ctx context.Context, _ string) (in fakeSession, err error) {
	p.trusts++
	if !flow.Sleep(ctx, p.slow) {
		return in, ctx.Err()
	}
	if err := p.through[p.name]; err != nil {
		return in, err
	}
	return fakeSession{fmt.Sprintf("%s/%d", p.name, p.trusts)}, nil
}

func (p fakeAccount) CheckTrust(context.Context, string) error { return p.knows }

// sessions must be called outside a bubble of synctest: the cache has a goroutine that never ends.
func (k *keystone) sessions() *Sessions[fakeSession] {
	return NewSessions(func(context.Context) (Account[fakeSession], error) {
		k.logins++
		if k.password != nil {
			return nil, k.password
		}
		return fakeAccount{keystone: k, name: fmt.Sprint("account", k.logins)}, nil
	}, time.Hour)
}

func trust() domain.Connection {
	return domain.Connection{ID: uuid.New(), Kind: domain.TrustConnection, DelegationID: "t"}
}

// TestLostDelegation: a delegation is lost only if Keystone rejects it before a pause and after it, each time after the
// account has logged in again and is the trustee.
func TestLostDelegation(t *testing.T) {
	t.Parallel()
	gone, role, absent := apperr.New(apperr.Unauthenticated, "gone"), apperr.New(apperr.Forbidden, "role"),
		apperr.New(apperr.NotFound, "absent")
	down := apperr.New(apperr.Unavailable, "down")
	by := func(errs ...error) map[string]error {
		all := map[string]error{}
		for n, err := range errs {
			all[fmt.Sprint("account", n+1)] = err
		}
		return all
	}
	for name, tc := range map[string]struct {
		k                  keystone
		isOK, isLost, isNo bool // isNo: Keystone does not have it
		logins             int
	}{
		"good":                            {keystone{}, true, false, false, 1},
		"the account's token has expired": {keystone{through: by(gone)}, true, false, false, 2},
		"deleted":                         {keystone{through: by(gone, gone, gone), knows: absent}, false, true, true, 3},
		"the role is revoked":             {keystone{through: by(role, role, role)}, false, true, false, 3},
		"rejected for a moment":           {keystone{through: by(gone, gone), knows: absent}, true, false, false, 3},
		"unavailable after rejections": {
			keystone{through: by(gone, gone, down), knows: absent}, false, false, false, 3,
		},
		"another account":                 {keystone{through: by(role, role), knows: role}, false, false, false, 2},
		"unavailable for its trust":       {keystone{through: by(role, role), knows: down}, false, false, false, 2},
		"unavailable":                     {keystone{through: by(down)}, false, false, false, 1},
		"unavailable at the second login": {keystone{through: by(gone, down)}, false, false, false, 2},
		"the account's password":          {keystone{password: gone}, false, false, false, 1},
	} {
		s, c := tc.k.sessions(), trust()
		synctest.Test(t, func(t *testing.T) {
			began := time.Now()
			_, err := s.Open(t.Context(), c, fakeSession{})
			lost, isLost := errors.AsType[*LostError](err)
			if (err == nil) != tc.isOK || isLost != tc.isLost || isLost && lost.IsAbsent != tc.isNo ||
				tc.k.logins != tc.logins {
				t.Errorf("%s: %v after %d logins", name, err, tc.k.logins)
			}
			if pauses := time.Since(began) / ConfirmPause; pauses != time.Duration(tc.logins/3) {
				t.Errorf("%s: it took %s", name, time.Since(began))
			}
			before := tc.k.trusts
			if _, err := s.Open(t.Context(), c, fakeSession{}); tc.isLost && (tc.k.trusts != before || !IsLost(err)) {
				t.Errorf("%s: it was tried again: %v", name, err)
			}
		})
	}
}

// TestSessionsAreCached: when a session is rejected, only one of the concurrent users opens a new one.
func TestSessionsAreCached(t *testing.T) {
	t.Parallel()
	k := &keystone{}
	s, c := k.sessions(), trust()
	synctest.Test(t, func(t *testing.T) {
		first, err := s.Open(t.Context(), c, fakeSession{})
		if err != nil {
			t.Fatal(err)
		}
		stale := apperr.New(apperr.Unauthenticated, "expired")
		var all sync.WaitGroup
		for range 10 {
			all.Go(func() {
				err := s.Use(t.Context(), c, func(in fakeSession) error {
					if in == first {
						return stale
					}
					return nil
				})
				if err != nil {
					t.Error(err)
				}
			})
		}
		all.Wait()
		if k.trusts != 2 || k.logins != 1 {
			t.Errorf("%d sessions were opened after %d logins", k.trusts, k.logins)
		}
		err = s.Use(t.Context(), c, func(fakeSession) error { return stale })
		if _, isUnopened := errors.AsType[UnopenedError](err); apperr.CodeOf(err) != apperr.Forbidden || isUnopened ||
			k.trusts != 3 {
			t.Errorf("never accepted: %v after %d sessions", err, k.trusts)
		}
		s.Forget(c.ID)
		if _, err := s.Open(t.Context(), c, fakeSession{}); err != nil || k.trusts != 4 {
			t.Errorf("forgotten: %v after %d sessions", err, k.trusts)
		}
	})
}

// TestSessionWhileChecked: work continues with the open session while a check logs in, and a caller that waits for a
// login stops waiting with its context.
func TestSessionWhileChecked(t *testing.T) {
	t.Parallel()
	k := &keystone{}
	s, c := k.sessions(), trust()
	synctest.Test(t, func(t *testing.T) {
		first, err := s.Open(t.Context(), c, fakeSession{})
		if err != nil {
			t.Fatal(err)
		}
		k.slow = 10 * time.Second
		go func() { _ = s.Check(t.Context(), c) }()
		synctest.Wait()
		began := time.Now()
		if in, err := s.Open(t.Context(), c, fakeSession{}); in != first || err != nil || time.Since(began) != 0 {
			t.Errorf("the open session: %v, %v after %s", in, err, time.Since(began))
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		_, err = s.Open(ctx, c, first)
		if !errors.Is(err, context.DeadlineExceeded) || time.Since(began) != time.Second {
			t.Errorf("waiting for another one: %v after %s", err, time.Since(began))
		}
		time.Sleep(time.Minute)
		if in, err := s.Open(t.Context(), c, first); in == first || err != nil || k.trusts != 2 {
			t.Errorf("after the check: %v, %v, %d logins", in, err, k.trusts)
		}
	})
}
