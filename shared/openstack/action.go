package openstack

import (
	"context"

	"github.com/gophercloud/gophercloud/v2"
	"github.com/gophercloud/gophercloud/v2/openstack/compute/v2/servers"
)

// act has Nova begin something with a server. It ends after the call, and a refusal comes in Nova's own words: 409 for a
// server that is locked, or in a state that does not allow it.
func (s *Session) act(ctx context.Context, begin func(*gophercloud.ServiceClient) error) error {
	nova, err := s.compute(ctx, computeBase)
	if err != nil {
		return err
	}
	return classify("nova", begin(nova))
}

// StartServer powers a stopped server on.
func (s *Session) StartServer(ctx context.Context, id string) error {
	return s.act(ctx, func(nova *gophercloud.ServiceClient) error { return servers.Start(ctx, nova, id).ExtractErr() })
}

// UnshelveServer brings a shelved server back, on whatever host has room for it.
func (s *Session) UnshelveServer(ctx context.Context, id string) error {
	return s.act(ctx, func(nova *gophercloud.ServiceClient) error {
		return servers.Unshelve(ctx, nova, id, servers.UnshelveOpts{}).ExtractErr()
	})
}

// RebootServer reboots a server: hard is power off and on, else the guest is asked.
func (s *Session) RebootServer(ctx context.Context, id string, hard bool) error {
	method := servers.SoftReboot
	if hard {
		method = servers.HardReboot
	}
	return s.act(ctx, func(nova *gophercloud.ServiceClient) error {
		return servers.Reboot(ctx, nova, id, servers.RebootOpts{Type: method}).ExtractErr()
	})
}
