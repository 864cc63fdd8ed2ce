package openstack

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cloudfn/cloudfn/shared/apperr"
)

// TestKeptSession: a session is used for keptFor, and until Keystone rejects it. A caller that waits for a login stops
// waiting with its context.
func TestKeptSession(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		logins, slow := 0, time.Duration(0)
		k := &Kept[int]{login: func(context.Context) (int, error) {
			time.Sleep(slow)
			logins++
			return logins, nil
		}}
		wants := func(want int) {
			t.Helper()
			if got, err := k.Session(t.Context()); got != want || err != nil {
				t.Errorf("got session %d, want %d: %v", got, want, err)
			}
		}
		wants(1)
		time.Sleep(keptFor - time.Second)
		wants(1)
		time.Sleep(time.Second)
		wants(2)
		k.Forget(apperr.New(apperr.Unavailable, "away"))
		wants(2)
		k.Forget(apperr.New(apperr.Unauthenticated, "revoked"))
		slow = time.Minute
		go func() { _, _ = k.Session(t.Context()) }()
		synctest.Wait()
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		began := time.Now()
		if _, err := k.Session(ctx); !errors.Is(err, context.DeadlineExceeded) || time.Since(began) != time.Second {
			t.Errorf("after %s: %v", time.Since(began), err)
		}
		time.Sleep(time.Hour)
	})
}
