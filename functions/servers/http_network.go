package servers

import (
	"context"
	"fmt"
	"net/http"
	"net/netip"

	"github.com/danielgtaylor/huma/v2"
	"github.com/google/uuid"

	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/httpx"
)

func networkRoutes(api huma.API, h handler) {
	const older = "The cloud is too old."
	httpx.Register(api, operation("GET /v1/servers/{id}/security-groups", "listServerSecurityGroups",
		"List a server's security groups", answers{
			200: "All security groups of the server's ports.", 404: noOwnServer, 501: older,
		}), h.securityGroups)
	add := operation("POST /v1/servers/{id}/security-groups", "addSecurityGroup",
		"Give a server a security group", answers{
			201: "The ports have it.",
			404: "The project has no such server, or the server does not have the port.",
			409: "Several security groups have the name, the server has no port that takes security groups, or " +
				"others change the port.",
			501: older,
		})
	add.DefaultStatus = http.StatusCreated
	add.Responses["200"] = answer[ServerSecurityGroup](api, "The ports have it already.")
	httpx.Register(api, add, h.addSecurityGroup)
	httpx.Register(api, operation("DELETE /v1/servers/{id}/security-groups/{security_group_id}", "removeSecurityGroup",
		"Take a security group from a server", answers{
			204: "The ports do not have it.",
			404: "The project has no such server, or none of the ports has the security group.",
			409: "Others change the port.",
			501: older,
		}), h.removeSecurityGroup)
	httpx.Register(api, operation("GET /v1/servers/{id}/interfaces", "listServerInterfaces",
		"List a server's interfaces", answers{
			200: "All interfaces of the server.", 404: noOwnServer, 501: older,
		}), h.interfaces)
	attach := operation("POST /v1/servers/{id}/interfaces", "attachInterface",
		"Attach an interface to a server", answers{
			201: "Nova has attached the interface.",
			404: "The project has no such server, or no such port.",
			409: "Several networks or security groups have the name, the port or address is in use, or the server's " +
				"state does not allow it (Nova's message).",
			501: older,
		})
	attach.DefaultStatus = http.StatusCreated
	attach.Responses["200"] = answer[ServerInterface](api, "The server has the interface already.")
	httpx.Register(api, attach, h.attachInterface)
	httpx.Register(api, operation("DELETE /v1/servers/{id}/interfaces/{port_id}", "detachInterface",
		"Detach an interface from a server", answers{
			204: "Nova detaches the interface, or does so already.",
			404: "The project has no such server, or the server does not have the port.",
			409: "The server's state does not allow it (Nova's message).",
			501: older,
		}), h.detachInterface)
}

// NamedID is an id with its name.
type NamedID struct {
	ID   string `json:"id" format:"uuid"`
	Name string `json:"name" doc:"Empty if it cannot be read."`
}

// ServerSecurityGroup is a security group of a server.
type ServerSecurityGroup struct {
	ID      string   `json:"id" format:"uuid"`
	Name    string   `json:"name" doc:"Empty if it cannot be read."`
	PortIDs []string `json:"port_ids" doc:"The server's ports that have it."`
}

// ServerSecurityGroups are all security groups of a server.
type ServerSecurityGroups struct {
	SecurityGroups []ServerSecurityGroup `json:"security_groups"`
}

// AddSecurityGroup is the body of POST /v1/servers/{id}/security-groups.
type AddSecurityGroup struct {
	SecurityGroup string    `json:"security_group" minLength:"1" maxLength:"255" doc:"Its id, or its name."`
	PortID        *httpx.ID `json:"port_id,omitempty" nullable:"true" doc:"One port of the server; all without it."`
}

// Resolve implements huma.Resolver.
func (in *AddSecurityGroup) Resolve(huma.Context) []error {
	if err := domain.CheckStorable("security_group", in.SecurityGroup); err != nil {
		return []error{err}
	}
	return nil
}

func (h handler) securityGroups(ctx context.Context, in *ServerPath) (*httpx.Value[ServerSecurityGroups], error) {
	a, err := h.access(ctx, uuid.Nil, "")
	if err != nil {
		return nil, err
	}
	found, err := h.svc.SecurityGroups(ctx, a, in.ID.String())
	return &httpx.Value[ServerSecurityGroups]{Body: ServerSecurityGroups{found}}, err
}

type addSecurityGroupInput struct {
	ServerPath
	Body AddSecurityGroup
}

type addSecurityGroupOutput struct {
	Status int
	Body   ServerSecurityGroup
}

func (h handler) addSecurityGroup(ctx context.Context, in *addSecurityGroupInput) (*addSecurityGroupOutput, error) {
	a, err := h.access(ctx, uuid.Nil, "")
	if err != nil {
		return nil, err
	}
	group, isNew, err := h.svc.AddSecurityGroup(ctx, a, in.ID.String(), in.Body.SecurityGroup, textOf(in.Body.PortID))
	if isNew {
		return &addSecurityGroupOutput{http.StatusCreated, group}, err
	}
	return &addSecurityGroupOutput{http.StatusOK, group}, err
}

// textOf is an id; "" without one.
func textOf(id *httpx.ID) string {
	if id == nil || id.UUID == uuid.Nil {
		return ""
	}
	return id.String()
}

type removeSecurityGroupInput struct {
	ServerPath
	SecurityGroupID httpx.ID `path:"security_group_id" example:"c1a3f0d2-5f0e-4b7c-9b7e-2a4d6c8e0f12" doc:"Its id."`
	PortID          httpx.ID `query:"port_id" example:"e7b1c2d3-4f5a-4b6c-8d7e-9f0a1b2c3d4e" doc:"Only this port."`
}

func (h handler) removeSecurityGroup(ctx context.Context, in *removeSecurityGroupInput) (*struct{}, error) {
	a, err := h.access(ctx, uuid.Nil, "")
	if err != nil {
		return nil, err
	}
	return nil, h.svc.RemoveSecurityGroup(ctx, a, in.ID.String(), in.SecurityGroupID.String(), textOf(&in.PortID))
}

// ServerInterface is a port of a server.
type ServerInterface struct {
	PortID         string           `json:"port_id" format:"uuid"`
	Network        NamedID          `json:"network"`
	MACAddress     string           `json:"mac_address"`
	Status         string           `json:"status" minLength:"1" doc:"Neutron's own, such as ACTIVE, BUILD or DOWN."`
	FixedIPs       []domain.FixedIP `json:"fixed_ips"`
	SecurityGroups []NamedID        `json:"security_groups"`
}

// ServerInterfaces are all interfaces of a server.
type ServerInterfaces struct {
	Interfaces []ServerInterface `json:"interfaces"`
}

// AttachInterface is the body of POST /v1/servers/{id}/interfaces.
type AttachInterface struct {
	Network        string    `json:"network,omitempty" minLength:"1" maxLength:"255" doc:"A network, by id or name."`
	FixedIP        string    `json:"fixed_ip,omitempty" minLength:"2" maxLength:"45" doc:"An address of the network."`
	PortID         *httpx.ID `json:"port_id,omitempty" nullable:"true" doc:"An existing port, instead of a network."`
	SecurityGroups []string  `json:"security_groups,omitzero" required:"false" nullable:"true" maxItems:"100"`
}

// Resolve implements huma.Resolver.
func (in *AttachInterface) Resolve(huma.Context) (faults []error) {
	wrong := func(isWrong bool, field, detail string) {
		if isWrong {
			faults = append(faults, apperr.InvalidField(field, detail))
		}
	}
	if err := domain.CheckStorable("network", in.Network); err != nil {
		faults = append(faults, err)
	}
	for n, group := range in.SecurityGroups {
		if err := domain.CheckText(fmt.Sprintf("security_groups[%d]", n), group, domain.MaxNameLength); err != nil {
			faults = append(faults, err)
		}
	}
	_, err := netip.ParseAddr(in.FixedIP)
	wrong(in.FixedIP != "" && err != nil, "fixed_ip", "must be an IPv4 or IPv6 address")
	wrong(in.Network == "" && in.PortID == nil, "network", "must be given, unless port_id is")
	wrong(in.Network != "" && in.PortID != nil, "port_id", "cannot be combined with network")
	wrong(in.FixedIP != "" && in.PortID != nil, "fixed_ip", "cannot be combined with port_id")
	return faults
}

func (h handler) interfaces(ctx context.Context, in *ServerPath) (*httpx.Value[ServerInterfaces], error) {
	a, err := h.access(ctx, uuid.Nil, "")
	if err != nil {
		return nil, err
	}
	found, err := h.svc.Interfaces(ctx, a, in.ID.String())
	return &httpx.Value[ServerInterfaces]{Body: ServerInterfaces{found}}, err
}

type attachInterfaceInput struct {
	ServerPath
	Body AttachInterface
}

type attachInterfaceOutput struct {
	Status int
	Body   ServerInterface
}

func (h handler) attachInterface(ctx context.Context, in *attachInterfaceInput) (*attachInterfaceOutput, error) {
	a, err := h.access(ctx, uuid.Nil, "")
	if err != nil {
		return nil, err
	}
	made, isNew, err := h.svc.AttachInterface(ctx, a, in.ID.String(), interfaceRequest{
		InterfaceRequest: domain.InterfaceRequest{FixedIP: in.Body.FixedIP, PortID: textOf(in.Body.PortID)},
		network:          in.Body.Network, groups: in.Body.SecurityGroups,
	})
	if isNew {
		return &attachInterfaceOutput{http.StatusCreated, made}, err
	}
	return &attachInterfaceOutput{http.StatusOK, made}, err
}

type detachInterfaceInput struct {
	ServerPath
	PortID httpx.ID `path:"port_id" example:"e7b1c2d3-4f5a-4b6c-8d7e-9f0a1b2c3d4e" doc:"The id of its port."`
}

func (h handler) detachInterface(ctx context.Context, in *detachInterfaceInput) (*struct{}, error) {
	a, err := h.access(ctx, uuid.Nil, "")
	if err != nil {
		return nil, err
	}
	return nil, h.svc.DetachInterface(ctx, a, in.ID.String(), in.PortID.String())
}
