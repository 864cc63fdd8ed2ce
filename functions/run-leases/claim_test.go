package runleases

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/due"
	"github.com/cloudfn/cloudfn/shared/leases"
	"github.com/cloudfn/cloudfn/shared/postgres"
	"github.com/cloudfn/cloudfn/shared/testkit"
)

// hangingCloud is a cloud whose EnsureFlavor takes until it is released or its context ends.
type hangingCloud struct {
	*fakeCloud

	hangs   chan struct{} // closed when the call has begun
	release chan struct{}
	ended   error
}

func (c *hangingCloud) EnsureFlavor(ctx context.Context, f domain.PrivateFlavor) error {
	close(c.hangs)
	select {
	case <-c.release:
		return c.fakeCloud.EnsureFlavor(ctx, f)
	case <-ctx.Done():
		c.ended = ctx.Err()
		return c.ended
	}
}

// TestCallLongerThanAClaim: the claim of a lease is renewed during a call to the cloud, and the call ends when another
// replica has the lease nevertheless.
func TestCallLongerThanAClaim(t *testing.T) {
	t.Parallel()
	for _, isFenced := range []bool{false, true} {
		w := newHostWorld(t)
		w.lease(t, nil)
		cloud := &hangingCloud{fakeCloud: w.cloud, hangs: make(chan struct{}), release: make(chan struct{})}
		store := postgres.Leases{DB: w.db}
		engine := leases.Engine{
			Store: store, Nodes: postgres.Nodes{DB: w.db}, Wake: func(...string) {}, RetryFor: time.Minute,
			ClaimFor: 4 * time.Second,
			Cloud:    func(context.Context) (leases.Cloud, error) { return cloud, nil },
		}
		claimed, err := store.Queue().Claim(t.Context(), engine.ClaimFor, 1, nil)
		if err != nil || len(claimed.Rows) != 1 {
			t.Fatalf("%d leases: %v", len(claimed.Rows), err)
		}
		done := make(chan error)
		row := claimed.Rows[0]
		kept, stop := due.Keep(t.Context(), claimed.Claim, engine.ClaimFor, row.Renew)
		defer stop()
		go func() { done <- engine.Run(kept, claimed.Claim, row.Value, time.Now().Add(time.Minute)) }()
		<-cloud.hangs
		until := func() time.Time {
			return testkit.Scalar[time.Time](t, w.rows, "select claimed_until from leases")
		}
		if isFenced {
			w.exec(t, "update leases set claim_id = gen_random_uuid()")
			if err := <-done; !errors.Is(err, domain.ErrFenced) || cloud.ended == nil {
				t.Errorf("fenced, the pass ended with %v, and its call with %v", err, cloud.ended)
			}
			continue
		}
		for range 2 {
			before := until()
			testkit.Eventually(t, time.Minute, "the claim is renewed", func() bool { return until().After(before) })
		}
		close(cloud.release)
		if err := <-done; err != nil {
			t.Errorf("the pass: %v", err)
		}
	}
}
