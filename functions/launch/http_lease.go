package launch

import (
	"time"

	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/httpx"
)

// OrderLeaseRequest is the lease of an order's instances.
type OrderLeaseRequest struct {
	Name string `json:"name,omitempty" minLength:"1" maxLength:"255" doc:"The order's name by default."`
	httpx.LeaseTerms
}

// canonical is equal for two requests that mean the same.
func (in *OrderLeaseRequest) canonical() *OrderLeaseRequest {
	if in == nil {
		return nil
	}
	out := *in
	if out.Start = ""; !in.Start.Value().IsZero() {
		out.Start = httpx.Start(in.Start.Value().UTC().Format(time.RFC3339Nano))
	}
	if in.End != nil {
		out.End = &httpx.Time{Time: in.End.UTC()}
	}
	if out.OnEnd == "" {
		out.OnEnd = domain.OnEndShelve
	}
	return &out
}
