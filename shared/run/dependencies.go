package run

import (
	"context"
	"sync"
	"time"

	"golang.org/x/sync/singleflight"
)

// GET /v1/status needs no token, so all callers together cause one check of each dependency within statusTTL.
const (
	statusTimeout = 3 * time.Second // of a check
	statusTTL     = 2 * time.Second
)

// dependencies caches whether the process reaches Postgres and Keystone.
type dependencies struct {
	postgres, keystone func(context.Context) error

	flight singleflight.Group
	mu     sync.Mutex
	last   reached
	until  time.Time // last is valid
}

type reached struct{ postgres, keystone Dependency }

// check returns what the last check found, or checks if that is old.
func (d *dependencies) check() reached {
	d.mu.Lock()
	last, isFresh := d.last, time.Now().Before(d.until)
	d.mu.Unlock()
	if isFresh {
		return last
	}
	found, _, _ := d.flight.Do("", func() (any, error) {
		// Not the context of a request: the others wait for the result, too.
		ctx, cancel := context.WithTimeout(context.Background(), statusTimeout)
		defer cancel()
		var now reached
		var both sync.WaitGroup
		both.Go(func() { now.postgres = dependency(d.postgres(ctx)) })
		both.Go(func() { now.keystone = dependency(d.keystone(ctx)) })
		both.Wait()
		d.mu.Lock()
		defer d.mu.Unlock()
		d.last, d.until = now, time.Now().Add(statusTTL)
		return now, nil
	})
	return found.(reached) //nolint:forcetypeassert // the function above returns nothing else
}
