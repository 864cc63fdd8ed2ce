package launch

import "github.com/cloudfn/cloudfn/shared/httpx"

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
	return &OrderLeaseRequest{Name: in.Name, LeaseTerms: in.Canonical()}
}
