package servers

import (
	"context"

	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/lookup"
)

// floatingIPCloud is the part of OpenStack that the floating IPs of servers need.
type floatingIPCloud interface {
	ServerFloatingIPs(ctx context.Context, serverID string) ([]domain.FloatingIP, error)
	EnsureFloatingIP(
		ctx context.Context, serverID string, a domain.FloatingIPAttach,
	) (f domain.FloatingIP, isChanged bool, err error)
	DetachFloatingIP(ctx context.Context, f domain.FloatingIP) error
	ExternalNetworks(context.Context) ([]domain.Network, error)
}

// FloatingIPs lists the floating IPs of a server.
func (s service) FloatingIPs(
	ctx context.Context, a access, id string,
) (server domain.Server, all []domain.FloatingIP, err error) {
	if server, err = s.ownServer(ctx, a, id); err != nil {
		return server, nil, err
	}
	all, err = a.cloud.ServerFloatingIPs(ctx, server.ID)
	return server, all, err
}

// AttachFloatingIP gives a server a floating IP. isNew is false when the server has it already, which a request that is
// repeated after no answer finds.
func (s service) AttachFloatingIP(
	ctx context.Context, a access, id string, request domain.FloatingIPAttach,
) (f domain.FloatingIP, isNew bool, err error) {
	server, err := s.ownServer(ctx, a, id)
	if err != nil {
		return f, false, err
	}
	if request.NetworkID != "" {
		external, err := a.cloud.ExternalNetworks(ctx)
		if err != nil {
			return f, false, err
		}
		network, err := lookup.PickExternalNetwork(external, lookup.Ref{Field: "network", Value: request.NetworkID})
		if err != nil {
			return f, false, err
		}
		request.NetworkID = network.ID
	}
	return a.cloud.EnsureFloatingIP(ctx, server.ID, request)
}

// DetachFloatingIP frees a floating IP of a server, and keeps it.
func (s service) DetachFloatingIP(ctx context.Context, a access, id, floatingIP string) error {
	_, found, err := s.FloatingIPs(ctx, a, id)
	if err != nil {
		return err
	}
	for _, f := range found {
		if f.ID == floatingIP {
			return a.cloud.DetachFloatingIP(ctx, f)
		}
	}
	return apperr.New(apperr.NotFound, "the server %s does not have the floating IP %s", id, floatingIP)
}
