package openstack

import (
	"context"
	"net/http"

	"github.com/gophercloud/gophercloud/v2"
)

// DisableService keeps new servers off a host, by the id of its nova-compute. Nova's service list shows the reason.
func (s *Session) DisableService(ctx context.Context, id, reason string) error {
	return s.setService(ctx, id, map[string]any{"status": "disabled", "disabled_reason": reason})
}

// EnableService lets new servers onto a host.
func (s *Session) EnableService(ctx context.Context, id string) error {
	return s.setService(ctx, id, map[string]any{"status": "enabled"})
}

func (s *Session) setService(ctx context.Context, id string, to map[string]any) error {
	nova, err := s.compute(ctx, computeServiceIDs)
	if err != nil {
		return err
	}
	_, err = nova.Put(ctx, nova.ServiceURL("os-services", id), to, nil,
		&gophercloud.RequestOpts{OkCodes: []int{http.StatusOK}})
	return classify("nova", err)
}
