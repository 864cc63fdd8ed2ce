package httpx

import (
	"cmp"
	"context"
	"sync"

	"github.com/cloudfn/cloudfn/shared/domain"
)

// inFlight is what a request counts for until its answer is sent: one request in flight of its address, or of its
// project as soon as that is known.
type inFlight struct {
	mu        sync.Mutex
	leave     func() // nil while it counts for no source
	isProject bool
	hasEnded  bool
}

type inFlightKey struct{}

// withInFlight returns a context of a request in flight, and what ends it. What its handler requests of other functions
// in this process has a context of its own, and is the same request in flight.
func withInFlight(ctx context.Context) (inner context.Context, end func()) {
	if _, isInner := ctx.Value(inFlightKey{}).(*inFlight); isInner {
		return ctx, func() {}
	}
	f := &inFlight{}
	return context.WithValue(ctx, inFlightKey{}, f), f.end
}

func (f *inFlight) end() {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.hasEnded = true; f.leave != nil {
		f.leave()
	}
}

// enter counts a request as in flight, for whose it is, or for its address when that is not known.
func (e Edge) enter(ctx context.Context, who domain.Identity, isKnown bool) error {
	f, _ := ctx.Value(inFlightKey{}).(*inFlight)
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.hasEnded || f.isProject || f.leave != nil && !isKnown {
		return nil
	}
	source, enter := cmp.Or(who.ProjectID, who.DomainID, who.UserID), e.Limits.EnterProject
	if !isKnown {
		source, enter = ClientAddress(ctx), e.Limits.EnterAddress
	}
	leave, err := enter(source)
	if err != nil {
		return err
	}
	if f.leave != nil {
		f.leave()
	}
	f.leave, f.isProject = leave, isKnown
	return nil
}
