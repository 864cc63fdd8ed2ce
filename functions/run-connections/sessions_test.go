package runconnections

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
	trusts   int              // sessions that were asked for with the trust
	through  map[string]error // by account
	knows    error
	password error
}

type fakeAccount struct {
	*keystone
	name string
}

type fakeSession struct {
	session
	name string
}

func (p fakeAccount) WithTrust(ctx context.Context, _ string) (session, error) {
	p.trusts++
	if !flow.Sleep(ctx, p.slow) {
		return nil, ctx.Err()
	}
	if err := p.through[p.name]; err != nil {
		return nil, err
	}
	return fakeSession{name: fmt.Sprintf("%s/%d", p.name, p.trusts)}, nil
}

func (p fakeAccount) CheckTrust(context.Context, string) error { return p.knows }

func (p fakeAccount) FindTrusts(context.Context, string, string, time.Time) ([]string, error) {
	return nil, nil
}

func (k *keystone) sessions() *sessions {
	s := newSessions(nil)
	s.pause = time.Millisecond
	s.login = func(context.Context) (account, error) {
		k.logins++
		if k.password != nil {
			return nil, k.password
		}
		return fakeAccount{k, fmt.Sprint("account", k.logins)}, nil
	}
	return s
}

// TestLostDelegation: a delegation is lost only if Keystone rejects it twice, each time after the account has logged in
// anew and is the trustee.
func TestLostDelegation(t *testing.T) {
	t.Parallel()
	gone, role, absent := apperr.New(apperr.Unauthenticated, "gone"), apperr.New(apperr.Forbidden,
		"role"), apperr.New(apperr.NotFound, "absent")
	away := apperr.New(apperr.Unavailable, "away")
	for name, tc := range map[string]struct {
		k      keystone
		ok     bool
		lost   bool
		logins int
	}{
		"good":                         {keystone{}, true, false, 1},
		"the account's token was over": {keystone{through: map[string]error{"account1": gone}}, true, false, 2},
		"gone": {keystone{through: map[string]error{
			"account1": gone, "account2": gone,
			"account3": gone,
		}, knows: absent}, false, true, 3},
		"the role is": {keystone{through: map[string]error{
			"account1": role, "account2": role,
			"account3": role,
		}}, false, true, 3},
		"gone for a moment": {keystone{
			through: map[string]error{"account1": gone, "account2": gone},
			knows:   absent,
		}, true, false, 3},
		"away after it was gone": {keystone{through: map[string]error{
			"account1": gone, "account2": gone,
			"account3": away,
		}, knows: absent}, false, false, 3},
		"another account": {keystone{
			through: map[string]error{"account1": role, "account2": role},
			knows:   role,
		}, false, false, 2},
		"away at the look at the trust": {keystone{
			through: map[string]error{"account1": role, "account2": role},
			knows:   away,
		}, false, false, 2},
		"away": {keystone{through: map[string]error{"account1": away}}, false, false, 1},
		"away after the first refusal": {
			keystone{through: map[string]error{"account1": gone, "account2": away}},
			false,
			false, 2,
		},
		"the account's password": {keystone{password: gone}, false, false, 1},
	} {
		s := tc.k.sessions()
		c := domain.Connection{ID: uuid.New(), Kind: domain.TrustConnection}
		_, err := s.in(t.Context(), c, nil)
		if (err == nil) != tc.ok || errors.Is(err, errLost) != tc.lost || tc.k.logins != tc.logins {
			t.Errorf("%s: %v after %d logins", name, err, tc.k.logins)
		}
		before := tc.k.trusts
		if _, again := s.in(t.Context(), c, nil); tc.lost && (tc.k.trusts != before || !errors.Is(again, errLost)) {
			t.Errorf("%s: it was tried again: %v", name, again)
		}
	}
}

// TestSessionsAreCached: when a session is rejected, only one of the concurrent users opens a new one.
func TestSessionsAreCached(t *testing.T) {
	t.Parallel()
	k := &keystone{}
	s := k.sessions()
	c := domain.Connection{ID: uuid.New(), Kind: domain.TrustConnection}
	first, err := s.in(t.Context(), c, nil)
	if err != nil {
		t.Fatal(err)
	}
	stale := apperr.New(apperr.Unauthenticated, "over")
	var all sync.WaitGroup
	for range 10 {
		all.Go(func() {
			err := s.use(t.Context(), c, func(in session) error {
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
	err = s.use(t.Context(), c, func(session) error { return stale })
	if _, unopened := errors.AsType[unopenedError](err); apperr.CodeOf(err) != apperr.Forbidden || unopened ||
		k.trusts != 3 {
		t.Errorf("never accepted: %v after %d sessions", err, k.trusts)
	}
	s.forget(c.ID)
	if _, err := s.in(t.Context(), c, nil); err != nil || k.trusts != 4 {
		t.Errorf("forgotten: %v after %d sessions", err, k.trusts)
	}
}

// TestSessionWhileChecked: work goes on with the open session while a check logs in, and who waits for a login stops
// waiting with its context.
func TestSessionWhileChecked(t *testing.T) {
	t.Parallel()
	k := &keystone{}
	s := k.sessions()
	synctest.Test(t, func(t *testing.T) {
		c := domain.Connection{ID: uuid.New(), Kind: domain.TrustConnection, DelegationID: "t"}
		first, err := s.in(t.Context(), c, nil)
		if err != nil {
			t.Fatal(err)
		}
		k.slow = 10 * time.Second
		go func() { _ = s.check(t.Context(), c) }()
		synctest.Wait()
		began := time.Now()
		if in, err := s.in(t.Context(), c, nil); in != first || err != nil || time.Since(began) != 0 {
			t.Errorf("the open session: %v, %v after %s", in, err, time.Since(began))
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		_, err = s.in(ctx, c, first)
		if !errors.Is(err, context.DeadlineExceeded) || time.Since(began) != time.Second {
			t.Errorf("waiting for another one: %v after %s", err, time.Since(began))
		}
		time.Sleep(time.Minute)
		if in, err := s.in(t.Context(), c, first); in == first || err != nil || k.trusts != 2 {
			t.Errorf("after the check: %v, %v, %d logins", in, err, k.trusts)
		}
	})
}
