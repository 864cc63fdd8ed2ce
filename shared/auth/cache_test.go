package auth

import (
	"context"
	"crypto/sha256"
	"errors"
	"net/http"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/domain"
)

// keystone answers for any token, and counts.
type keystone struct {
	calls  atomic.Int64
	answer func(ctx context.Context, token string) (domain.Identity, error)
}

func (k *keystone) validate(ctx context.Context, token domain.Secret) (domain.Identity, error) {
	k.calls.Add(1)
	return k.answer(ctx, token.Reveal())
}

// bubble runs a test in which time stands still unless it is slept. The Authenticator is made outside of it,
// because its library keeps a goroutine forever.
func bubble(t *testing.T, fn func(t *testing.T, a *Authenticator, k *keystone)) {
	t.Helper()
	k := &keystone{answer: func(context.Context, string) (domain.Identity, error) {
		return domain.Identity{UserID: "u", ProjectID: "p", ExpiresAt: time.Now().Add(time.Hour)}, nil
	}}
	a := New(Config{}, k.validate)
	synctest.Test(t, func(t *testing.T) { fn(t, a, k) })
}

func (a *Authenticator) try(ctx context.Context, token string) error {
	_, err := a.Authenticate(ctx, &http.Request{Header: http.Header{"X-Auth-Token": {token}}})
	return err
}

func (k *keystone) want(t *testing.T, calls int64, when string) {
	t.Helper()
	if got := k.calls.Load(); got != calls {
		t.Errorf("%s: Keystone was called %d times, want %d", when, got, calls)
	}
}

func TestCacheLastsItsTime(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T, a *Authenticator, k *keystone) {
		for _, step := range []struct {
			sleep time.Duration
			calls int64
		}{{0, 1}, {0, 1}, {59 * time.Second, 1}, {2 * time.Second, 2}, {59 * time.Second, 2}, {2 * time.Second, 3}} {
			time.Sleep(step.sleep)
			if err := a.try(t.Context(), "t"); err != nil {
				t.Fatal(err)
			}
			k.want(t, step.calls, "after "+step.sleep.String())
		}
		if err := a.try(t.Context(), "other"); err != nil {
			t.Fatal(err)
		}
		k.want(t, 4, "another token")
	})
}

// TestATokenIsNotBelievedPastItsEnd, although the cache would last longer.
func TestATokenIsNotBelievedPastItsEnd(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T, a *Authenticator, k *keystone) {
		end := time.Now().Add(10 * time.Second)
		k.answer = func(context.Context, string) (domain.Identity, error) {
			if !time.Now().Before(end) {
				return domain.Identity{}, apperr.New(apperr.Unauthenticated, "expired")
			}
			return domain.Identity{UserID: "u", ProjectID: "p", ExpiresAt: end}, nil
		}
		for range 2 {
			if err := a.try(t.Context(), "t"); err != nil {
				t.Fatal(err)
			}
		}
		k.want(t, 1, "before its end")
		a.now = func() time.Time { return end } // this copy's clock is ten seconds fast
		if err := a.try(t.Context(), "t"); err != nil {
			t.Error(err)
		}
		k.want(t, 2, "a fast clock")
		a.now = time.Now
		time.Sleep(10 * time.Second)
		if err := a.try(t.Context(), "t"); apperr.CodeOf(err) != apperr.Unauthenticated {
			t.Errorf("at its end: got %v", err)
		}
		k.want(t, 3, "at its end")
	})
}

// TestWhatIsRemembered: a refusal of the token for a few seconds; what is Keystone's own trouble never.
func TestWhatIsRemembered(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		err        error
		remembered bool
	}{
		"401":                  {apperr.New(apperr.Unauthenticated, "no"), true},
		"Keystone unavailable": {apperr.New(apperr.Unavailable, "unavailable"), false},
		"too many calls":       {apperr.New(apperr.RateLimited, "wait"), false},
		"a senseless one":      {apperr.New(apperr.BadGateway, "what"), false},
		"anything else":        {errors.New("x"), false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			bubble(t, func(t *testing.T, a *Authenticator, k *keystone) {
				good := k.answer
				k.answer = func(context.Context, string) (domain.Identity, error) { return domain.Identity{}, tc.err }
				if err := a.try(t.Context(), "t"); apperr.CodeOf(err) != apperr.CodeOf(tc.err) {
					t.Errorf("got %v", err)
				}
				k.answer = good
				if err := a.try(t.Context(), "t"); (err != nil) != tc.remembered {
					t.Errorf("concurrently: got %v", err)
				}
				time.Sleep(negativeTTL + time.Second)
				if err := a.try(t.Context(), "t"); err != nil {
					t.Errorf("later: got %v", err)
				}
				k.want(t, 2, "in all")
			})
		})
	}
}

func TestKeystoneIsAskedOnceForAll(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T, a *Authenticator, k *keystone) {
		good := k.answer
		k.answer = func(ctx context.Context, token string) (domain.Identity, error) {
			time.Sleep(time.Second)
			return good(ctx, token)
		}
		var all sync.WaitGroup
		for range 100 {
			all.Go(func() {
				if err := a.try(t.Context(), "t"); err != nil {
					t.Error(err)
				}
			})
		}
		all.Wait()
		k.want(t, 1, "100 concurrently")
	})
}

// TestTheFirstCallerHangsUp: the others who wait for the same answer still get it.
func TestTheFirstCallerHangsUp(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T, a *Authenticator, k *keystone) {
		good := k.answer
		k.answer = func(ctx context.Context, token string) (domain.Identity, error) {
			select {
			case <-time.After(2 * time.Second):
				return good(ctx, token)
			case <-ctx.Done():
				return domain.Identity{}, ctx.Err()
			}
		}
		began := time.Now()
		hurried, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		var all sync.WaitGroup
		all.Go(func() {
			if err := a.try(hurried, "t"); err == nil || time.Since(began) != time.Second {
				t.Errorf("the first got %v after %s", err, time.Since(began))
			}
		})
		synctest.Wait()
		for range 10 {
			all.Go(func() {
				if err := a.try(t.Context(), "t"); err != nil {
					t.Errorf("another got %v", err)
				}
			})
		}
		all.Wait()
		k.want(t, 1, "in all")
	})
}

// TestASilentKeystone is given up on, also when no one's own time ends before.
func TestASilentKeystone(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T, a *Authenticator, k *keystone) {
		k.answer = func(ctx context.Context, _ string) (domain.Identity, error) {
			<-ctx.Done()
			return domain.Identity{}, apperr.Wrap(apperr.Unavailable, ctx.Err(), "keystone is not available")
		}
		began := time.Now()
		err := a.try(t.Context(), "t")
		if apperr.CodeOf(err) != apperr.Unavailable || time.Since(began) != callTimeout {
			t.Errorf("got %v after %s", err, time.Since(began))
		}
	})
}

// TestTheCacheHoldsNoTokens: its keys tell nothing without the process's own key, which no two share.
func TestTheCacheHoldsNoTokens(t *testing.T) {
	t.Parallel()
	const token = "0123456789abcdef0123456789abcdef" // as long as a key
	k := &keystone{answer: func(context.Context, string) (domain.Identity, error) {
		return domain.Identity{UserID: "u", ProjectID: "p", ExpiresAt: time.Now().Add(time.Hour)}, nil
	}}
	seen := map[[32]byte]bool{[32]byte([]byte(token)): true, sha256.Sum256([]byte(token)): true}
	for range 3 {
		a := New(Config{}, k.validate)
		if err := a.try(t.Context(), token); err != nil {
			t.Fatal(err)
		}
		if keys := a.accepted.Keys(); len(keys) != 1 || seen[keys[0]] {
			t.Errorf("the keys are %x", keys)
		} else {
			seen[keys[0]] = true
		}
	}
}

// TestKnown: a token is known until it expires or Keystone refuses it, also when it has to be validated once more: a
// flood from its address must not stop its requests after tokenTTL.
func TestKnown(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T, a *Authenticator, k *keystone) {
		known := func(token string, want bool, when string) {
			t.Helper()
			who, found := a.Known(http.Header{"X-Auth-Token": {token}})
			if found != want || want != (who.ProjectID == "p") {
				t.Errorf("%s %s: got %+v, %t", token, when, who, found)
			}
		}
		known("t", false, "at first")
		if err := a.try(t.Context(), "t"); err != nil {
			t.Fatal(err)
		}
		known("t", true, "when it was accepted")
		known("other", false, "in the beginning")
		time.Sleep(10 * time.Minute)
		known("t", true, "when it has to be validated once more")
		good := k.answer
		k.answer = func(context.Context, string) (domain.Identity, error) {
			return domain.Identity{}, apperr.New(apperr.Unavailable, "unavailable")
		}
		_ = a.try(t.Context(), "t")
		known("t", true, "during an outage of Keystone")
		k.answer = func(context.Context, string) (domain.Identity, error) {
			return domain.Identity{}, apperr.New(apperr.Unauthenticated, "revoked")
		}
		_ = a.try(t.Context(), "t")
		known("t", false, "when it was revoked")
		k.answer = good
		if err := a.try(t.Context(), "other"); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Hour)
		known("other", false, "when it has expired")
	})
}
