package servers

import (
	"context"
	"net/http"

	"github.com/danielgtaylor/huma/v2"
	"github.com/google/uuid"

	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/httpx"
)

func floatingIPRoutes(api huma.API, h handler) {
	httpx.Register(api, operation("GET /v1/servers/{id}/floating-ips", "listServerFloatingIPs",
		"List a server's floating IPs", answers{200: "All floating IPs of the server's ports.", 404: noOwnServer}),
		h.floatingIPs)
	attach := operation("POST /v1/servers/{id}/floating-ips", "attachFloatingIP",
		"Attach a floating IP to a server", answers{
			201: "The server has the floating IP.",
			404: "The project has no such server, or no such floating IP.",
			409: "The floating IP is attached elsewhere; no address of the server reaches its network by a router, " +
				"or several do; or several networks fit. `errors` lists what to choose from.",
		})
	attach.DefaultStatus = http.StatusCreated
	attach.Responses["200"] = answer[ServerFloatingIP](api,
		"The server has it already, or its address has one of the network.")
	httpx.Register(api, attach, h.attachFloatingIP)
	httpx.Register(api, operation("DELETE /v1/servers/{id}/floating-ips/{floating_ip_id}", "detachFloatingIP",
		"Detach a floating IP from a server", answers{
			204: "The floating IP is free, and still the project's.",
			404: "The project has no such server, or the server does not have the floating IP.",
			409: "The floating IP was changed meanwhile.",
		}), h.detachFloatingIP)
}

// ServerFloatingIP is a floating IP of a server.
type ServerFloatingIP struct {
	ID           string `json:"id" format:"uuid"`
	Address      string `json:"address" minLength:"1"`
	NetworkID    string `json:"network_id" doc:"The external network."`
	FixedAddress string `json:"fixed_address" doc:"The address of the server that it is mapped to."`
	PortID       string `json:"port_id" doc:"The port of that address."`
	Status       string `json:"status" doc:"Neutron's own: ACTIVE, DOWN or ERROR."`
}

// ServerFloatingIPs are all floating IPs of a server.
type ServerFloatingIPs struct {
	FloatingIPs []ServerFloatingIP `json:"floating_ips"`
}

// FloatingIPAttach is the body of POST /v1/servers/{id}/floating-ips.
type FloatingIPAttach struct {
	FloatingIPID *httpx.ID `json:"floating_ip_id,omitempty" doc:"A floating IP of the project."`
	Address      string    `json:"address,omitempty" format:"ipv4" doc:"The address of a floating IP of the project."`
	Network      string    `json:"network,omitempty" maxLength:"255" doc:"An external network to make one of."`
	FixedAddress string    `json:"fixed_address,omitempty" format:"ipv4" doc:"The address of the server to map it to."`
	Move         bool      `json:"move,omitempty" default:"false" doc:"Take it from where it is attached."`
}

// Resolve implements huma.Resolver.
func (in *FloatingIPAttach) Resolve(huma.Context) []error {
	given := 0
	for _, isGiven := range []bool{in.FloatingIPID != nil, in.Address != "", in.Network != ""} {
		if isGiven {
			given++
		}
	}
	var faults []error
	if given > 1 {
		faults = append(faults, apperr.InvalidField("network",
			"only one of floating_ip_id, address and network can be given"))
	}
	if in.Move && in.FloatingIPID == nil && in.Address == "" {
		faults = append(faults, apperr.InvalidField("move", "takes a floating_ip_id or an address"))
	}
	if err := domain.CheckStorable("network", in.Network); err != nil {
		faults = append(faults, err)
	}
	return faults
}

func (in *FloatingIPAttach) request() domain.FloatingIPAttach {
	out := domain.FloatingIPAttach{
		Address: in.Address, NetworkID: in.Network, FixedAddress: in.FixedAddress, Moves: in.Move,
	}
	if in.FloatingIPID != nil {
		out.ID = in.FloatingIPID.String()
	}
	return out
}

func showFloatingIP(f domain.FloatingIP) ServerFloatingIP {
	return ServerFloatingIP{
		ID: f.ID, Address: f.Address, NetworkID: f.NetworkID, FixedAddress: f.FixedAddress, PortID: f.PortID,
		Status: f.Status,
	}
}

func (h handler) floatingIPs(ctx context.Context, in *ServerPath) (*httpx.Value[ServerFloatingIPs], error) {
	a, err := h.access(ctx, uuid.Nil, "")
	if err != nil {
		return nil, err
	}
	_, found, err := h.svc.FloatingIPs(ctx, a, in.ID.String())
	return &httpx.Value[ServerFloatingIPs]{Body: ServerFloatingIPs{httpx.Each(found, showFloatingIP)}}, err
}

type attachFloatingIPInput struct {
	ServerPath
	Body FloatingIPAttach
}

type attachFloatingIPOutput struct {
	Status int
	Body   ServerFloatingIP
}

func (h handler) attachFloatingIP(ctx context.Context, in *attachFloatingIPInput) (*attachFloatingIPOutput, error) {
	a, err := h.access(ctx, uuid.Nil, "")
	if err != nil {
		return nil, err
	}
	f, isNew, err := h.svc.AttachFloatingIP(ctx, a, in.ID.String(), in.Body.request())
	if isNew {
		return &attachFloatingIPOutput{http.StatusCreated, showFloatingIP(f)}, err
	}
	return &attachFloatingIPOutput{http.StatusOK, showFloatingIP(f)}, err
}

type detachFloatingIPInput struct {
	ServerPath
	FloatingIPID httpx.ID `path:"floating_ip_id" example:"7c1a2f0e-3d54-4b8e-9a61-0f2d5c7b8e93" doc:"Its id."`
}

func (h handler) detachFloatingIP(ctx context.Context, in *detachFloatingIPInput) (*struct{}, error) {
	a, err := h.access(ctx, uuid.Nil, "")
	if err != nil {
		return nil, err
	}
	return nil, h.svc.DetachFloatingIP(ctx, a, in.ID.String(), in.FloatingIPID.String())
}
