package leases

import (
	"context"
	"errors"
	"time"

	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/flow"
)

// errClaimEnds is why work stops when its claim could not be renewed.
var errClaimEnds = errors.New("the claim of the lease could not be renewed")

// keepClaim renews the claim of a pass until stop is called: one call to the cloud may take longer than a claim. The
// context ends when another replica has the lease, and before the claim does when it cannot be renewed, so that no two
// replicas do the same step at the same time.
func (p *pass) keepClaim(ctx context.Context) (kept context.Context, stop func()) {
	kept, lose := context.WithCancelCause(ctx)
	valid := p.ClaimFor * 3 / 4 // of the time since it was requested; the rest is for what is in flight
	age := time.Since(p.claim.Requested)
	expiry := time.AfterFunc(valid-age, func() { lose(errClaimEnds) })
	ended, lease := make(chan struct{}), *p.lease // a copy: the steps change the lease meanwhile
	go func() {
		defer close(ended)
		for pause := p.ClaimFor/4 - age; flow.Sleep(kept, pause); pause = p.ClaimFor / 4 {
			requested := time.Now()
			err := p.Store.Renew(kept, p.claim, lease, p.ClaimFor)
			if errors.Is(err, domain.ErrFenced) {
				lose(err)
			} else if err == nil && kept.Err() == nil {
				expiry.Reset(valid - time.Since(requested))
			}
		}
	}()
	return kept, func() {
		lose(nil)
		<-ended
		expiry.Stop()
	}
}

// do does the work under a claim that is kept.
func (p *pass) do(ctx context.Context, todo work) error {
	if todo == workNone {
		return nil
	}
	kept, stop := p.keepClaim(ctx)
	defer stop()
	err := p.steps(kept, todo)
	if cause := context.Cause(kept); cause != nil && ctx.Err() == nil {
		return cause
	}
	return err
}
