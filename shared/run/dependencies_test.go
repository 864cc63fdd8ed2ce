package run

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cloudfn/cloudfn/shared/apperr"
)

// TestStatusIsShared: a thousand callers of GET /v1/status cause one check of Postgres and one of Keystone.
func TestStatusIsShared(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var checks atomic.Int64
		var isAway atomic.Bool
		d := &dependencies{
			postgres: func(context.Context) error {
				checks.Add(1)
				time.Sleep(time.Second)
				return nil
			},
			keystone: func(ctx context.Context) error {
				checks.Add(1)
				if !isAway.Load() {
					return nil
				}
				<-ctx.Done()
				return apperr.Wrap(apperr.Unavailable, ctx.Err(), "keystone cannot be reached")
			},
		}
		ask := func(keystone bool, after time.Duration) {
			began := time.Now()
			var all sync.WaitGroup
			for range 1000 {
				all.Go(func() {
					if got := d.check(); !got.postgres.Reachable || got.keystone.Reachable != keystone {
						t.Errorf("got %+v", got)
					}
				})
			}
			all.Wait()
			if took := time.Since(began); took != after {
				t.Errorf("it took %s, want %s", took, after)
			}
		}
		ask(true, time.Second)
		isAway.Store(true)
		ask(true, 0) // still valid
		time.Sleep(statusTTL)
		ask(false, statusTimeout)
		if n := checks.Load(); n != 4 {
			t.Errorf("there were %d checks, want 4", n)
		}
	})
}
