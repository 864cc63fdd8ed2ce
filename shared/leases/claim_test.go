package leases

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/cloudfn/cloudfn/shared/domain"
)

// cutOff is a store that does not answer.
type cutOff struct{ Store }

func (cutOff) Renew(ctx context.Context, _ domain.Claim, _ domain.Lease, _ time.Duration) error {
	<-ctx.Done()
	return ctx.Err()
}

// TestKeepClaimCountsFromTheClaim: the work ends before its claim does, also when it has begun late.
func TestKeepClaimCountsFromTheClaim(t *testing.T) {
	t.Parallel()
	for name, age := range map[string]time.Duration{"new": 0, "old": 50 * time.Minute} {
		claim := domain.NewClaim()
		claim.Requested = claim.Requested.Add(-age)
		p := &pass{Engine: Engine{Store: cutOff{}, ClaimFor: time.Hour}, claim: claim, lease: &domain.Lease{}}
		ctx, stop := p.keepClaim(t.Context())
		select {
		case <-ctx.Done():
			if err := context.Cause(ctx); name == "new" || !errors.Is(err, errClaimEnds) {
				t.Errorf("%s: the work ended with %v", name, err)
			}
		case <-time.After(time.Second):
			if name == "old" {
				t.Error("the work goes on without a claim")
			}
		}
		stop()
	}
}
