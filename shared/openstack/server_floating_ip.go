package openstack

import (
	"context"
	"net/url"
	"slices"
	"strings"

	"github.com/gophercloud/gophercloud/v2"
	"golang.org/x/sync/errgroup"

	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/domain"
)

// ServerFloatingIPs lists the floating IPs of a server's ports.
func (s *Session) ServerFloatingIPs(ctx context.Context, serverID string) ([]domain.FloatingIP, error) {
	neutron, err := s.neutron(ctx)
	if err != nil {
		return nil, err
	}
	found, err := s.addressedPorts(ctx, neutron, url.Values{"device_id": {serverID}})
	var ports []string
	for _, p := range found {
		if strings.HasPrefix(p.Owner, serverPort) {
			ports = append(ports, p.ID)
		}
	}
	if err != nil || len(ports) == 0 {
		return []domain.FloatingIP{}, err
	}
	return s.FloatingIPs(ctx, domain.FloatingIPQuery{PortIDs: ports})
}

// EnsureFloatingIP gives a server a floating IP. It reads before it changes, so it can be repeated: isChanged is false
// when the server has the floating IP, or its address has one of the network already.
func (s *Session) EnsureFloatingIP(
	ctx context.Context, serverID string, a domain.FloatingIPAttach,
) (f domain.FloatingIP, isChanged bool, err error) {
	addresses, err := s.ServerAddresses(ctx, serverID)
	if err != nil {
		return f, false, err
	}
	if a.IsNew() {
		return s.makeFloatingIP(ctx, addresses, a)
	}
	if f, err = s.findFloatingIP(ctx, a); err != nil {
		return f, false, err
	}
	switch has := slices.ContainsFunc(addresses, isMapped(f)); {
	case has && (a.FixedAddress == "" || a.FixedAddress == f.FixedAddress):
		return f, false, nil
	case f.PortID != "" && !a.Moves:
		return f, false, apperr.New(apperr.Conflict,
			"the floating IP %s is attached to %s: detach it first, or move it", f.Address, holder(f))
	}
	targets, err := domain.ChooseAddresses(addresses, f.NetworkID, a.FixedAddress)
	if err != nil {
		return f, false, err
	}
	changed, err := tryEach(targets, func(at domain.PortAddress) (domain.FloatingIP, error) {
		return s.updateFloatingIP(ctx, f, at.PortID, at.Address)
	})
	return changed, err == nil, err
}

// ReleaseFloatingIPs deletes the floating IPs with a description, unless they are attached to another server.
func (s *Session) ReleaseFloatingIPs(ctx context.Context, serverID, description string) error {
	found, err := s.FloatingIPs(ctx, domain.FloatingIPQuery{Description: description})
	for _, f := range found {
		isElsewhere := f.PortID != "" && f.ServerID != serverID
		if f.Description != description || isElsewhere {
			continue
		}
		if err := s.DeleteFloatingIP(ctx, f.ID); err != nil {
			return err
		}
	}
	return err
}

// isMapped reports of an address whether the floating IP is mapped to its port.
func isMapped(f domain.FloatingIP) func(domain.PortAddress) bool {
	return func(at domain.PortAddress) bool { return f.PortID == at.PortID }
}

// holder describes in an error what a floating IP is attached to.
func holder(f domain.FloatingIP) string {
	if f.ServerID != "" {
		return "the server " + f.ServerID
	}
	return "the port " + f.PortID
}

// findFloatingIP reads the project's floating IP with the id or the address.
func (s *Session) findFloatingIP(ctx context.Context, a domain.FloatingIPAttach) (f domain.FloatingIP, err error) {
	if a.ID != "" {
		return s.FloatingIP(ctx, a.ID)
	}
	found, err := s.FloatingIPs(ctx, domain.FloatingIPQuery{Address: a.Address})
	switch {
	case err != nil:
		return f, err
	case len(found) == 0:
		return f, apperr.New(apperr.NotFound, "the project has no floating IP %s", a.Address)
	case len(found) > 1: // of two external networks
		return f, apperr.New(apperr.Conflict, "the project has %d floating IPs %s: give an id", len(found), a.Address)
	}
	return found[0], nil
}

// makeFloatingIP makes a floating IP for one of the addresses, unless that has one of the network.
func (s *Session) makeFloatingIP(
	ctx context.Context, addresses []domain.PortAddress, a domain.FloatingIPAttach,
) (f domain.FloatingIP, isChanged bool, err error) {
	if a.NetworkID == "" {
		external, err := s.ExternalNetworks(ctx)
		if err != nil {
			return f, false, err
		}
		if a.NetworkID, err = domain.ChooseExternal(addresses, external); err != nil {
			return f, false, err
		}
	}
	targets, err := domain.ChooseAddresses(addresses, a.NetworkID, a.FixedAddress)
	if err != nil {
		return f, false, err
	}
	ports := make([]string, len(targets))
	for n, at := range targets {
		ports[n] = at.PortID
	}
	existing, err := s.FloatingIPs(ctx, domain.FloatingIPQuery{PortIDs: ports})
	if err != nil {
		return f, false, err
	}
	for _, f := range existing {
		isOf := func(at domain.PortAddress) bool { return at.PortID == f.PortID && at.Address == f.FixedAddress }
		if f.NetworkID == a.NetworkID && slices.ContainsFunc(targets, isOf) {
			return f, false, nil
		}
	}
	f, err = tryEach(targets, func(at domain.PortAddress) (domain.FloatingIP, error) {
		return s.CreateFloatingIP(ctx, domain.FloatingIPRequest{
			NetworkID: a.NetworkID, Description: a.Description, PortID: at.PortID, FixedAddress: at.Address,
		})
	})
	return f, err == nil, err
}

// tryEach makes a call for each address until one succeeds, as the command line of OpenStack does: only Neutron knows
// whether a router that the project cannot see connects it. Neutron's rejection is a NotFound.
func tryEach(
	targets []domain.PortAddress, call func(domain.PortAddress) (domain.FloatingIP, error),
) (f domain.FloatingIP, err error) {
	for _, at := range targets {
		if f, err = call(at); apperr.CodeOf(err) != apperr.NotFound {
			return f, err
		}
	}
	refused := apperr.Wrap(apperr.Conflict, err, "%s", apperr.As(err).Message)
	return f, refused
}

type fixedIP struct {
	Subnet  string `json:"subnet_id"`
	Address string `json:"ip_address"`
}

type addressedPort struct {
	ID      string    `json:"id"`
	Device  string    `json:"device_id"`
	Owner   string    `json:"device_owner"`
	Network string    `json:"network_id"`
	Fixed   []fixedIP `json:"fixed_ips"`
}

func (s *Session) addressedPorts(
	ctx context.Context, neutron *gophercloud.ServiceClient, query url.Values,
) ([]addressedPort, error) {
	type page struct {
		Ports []addressedPort `json:"ports"`
		Links []link          `json:"ports_links"`
	}
	query.Set("limit", pageLimit)
	query["fields"] = []string{"id", "device_id", "device_owner", "network_id", "fixed_ips"}
	return everyPage(ctx, neutron, neutron.ServiceURL("ports"), query,
		func(p *page) ([]addressedPort, string) { return p.Ports, linkTo(p.Links) },
		func(p addressedPort) string { return p.ID })
}

// ServerAddresses lists the IPv4 addresses of a server's ports, with the routes of their subnets.
func (s *Session) ServerAddresses(ctx context.Context, serverID string) (all []domain.PortAddress, err error) {
	neutron, err := s.neutron(ctx)
	if err != nil {
		return nil, err
	}
	found, err := s.addressedPorts(ctx, neutron, url.Values{"device_id": {serverID}})
	if err != nil {
		return nil, err
	}
	var networks []string
	for _, p := range found {
		if !strings.HasPrefix(p.Owner, serverPort) {
			continue
		}
		for _, fixed := range p.Fixed {
			if strings.Contains(fixed.Address, ":") {
				continue
			}
			all = append(all, domain.PortAddress{
				PortID: p.ID, NetworkID: p.Network, SubnetID: fixed.Subnet, Address: fixed.Address,
			})
			networks = append(networks, p.Network)
		}
	}
	if len(all) == 0 {
		return nil, nil
	}
	routes, err := s.Routes(ctx, networks)
	for n := range all {
		all[n].Route = routes[all[n].SubnetID]
	}
	return all, err
}

// routerPorts are the owners of ports by which a router is in a subnet.
var routerPorts = []string{
	"network:router_interface", "network:router_interface_distributed", "network:ha_router_replicated_interface",
}

// Routes finds how the subnets of networks are connected to external networks, as far as the project may see it: the
// routers of another project, and their ports in a network of another project, are hidden from members. Subnets of
// networks that the project does not own are partial.
func (s *Session) Routes(ctx context.Context, networkIDs []string) (map[string]domain.Route, error) {
	neutron, err := s.neutron(ctx)
	if err != nil {
		return nil, err
	}
	networkIDs = slices.Compact(slices.Sorted(slices.Values(networkIDs)))
	var gateways map[string]string
	var interfaces []addressedPort
	var subnets []ownedSubnet
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() (err error) {
		gateways, err = s.gateways(ctx, neutron)
		return err
	})
	group.Go(func() (err error) {
		query := url.Values{"network_id": networkIDs, "device_owner": routerPorts}
		interfaces, err = s.addressedPorts(ctx, neutron, query)
		return err
	})
	group.Go(func() (err error) {
		subnets, err = s.ownedSubnets(ctx, neutron, networkIDs)
		return err
	})
	if err := group.Wait(); err != nil {
		return nil, err
	}
	routes := map[string]domain.Route{}
	for _, subnet := range subnets {
		if subnet.Version == 4 {
			routes[subnet.ID] = domain.Route{NetworkID: subnet.Network, IsPartial: subnet.Project != s.ownProject()}
		}
	}
	for _, port := range interfaces {
		for _, fixed := range port.Fixed {
			route := routes[fixed.Subnet]
			external, isVisible := gateways[port.Device]
			if isVisible && external != "" && !route.Reaches(external) {
				route.External = append(route.External, external)
			}
			route.IsPartial = route.IsPartial || !isVisible
			routes[fixed.Subnet] = route
		}
	}
	return routes, nil
}

// gateways are the external networks of the routers that the project sees, by router; "" = none.
func (s *Session) gateways(ctx context.Context, neutron *gophercloud.ServiceClient) (map[string]string, error) {
	type router struct {
		ID      string `json:"id"`
		Gateway struct {
			Network string `json:"network_id"`
		} `json:"external_gateway_info"` // null = none
	}
	type page struct {
		Routers []router `json:"routers"`
		Links   []link   `json:"routers_links"`
	}
	query := url.Values{"limit": {pageLimit}, "fields": {"id", "external_gateway_info"}}
	found, err := everyPage(ctx, neutron, neutron.ServiceURL("routers"), query,
		func(p *page) ([]router, string) { return p.Routers, linkTo(p.Links) },
		func(r router) string { return r.ID })
	all := map[string]string{}
	for _, r := range found {
		all[r.ID] = r.Gateway.Network
	}
	return all, err
}

type ownedSubnet struct {
	ID      string `json:"id"`
	Network string `json:"network_id"`
	Project string `json:"project_id"`
	Version int    `json:"ip_version"`
}

func (s *Session) ownedSubnets(
	ctx context.Context, neutron *gophercloud.ServiceClient, networkIDs []string,
) ([]ownedSubnet, error) {
	type page struct {
		Subnets []ownedSubnet `json:"subnets"`
		Links   []link        `json:"subnets_links"`
	}
	query := url.Values{
		"limit": {pageLimit}, "network_id": networkIDs, "fields": {"id", "network_id", "project_id", "ip_version"},
	}
	return everyPage(ctx, neutron, neutron.ServiceURL("subnets"), query,
		func(p *page) ([]ownedSubnet, string) { return p.Subnets, linkTo(p.Links) },
		func(n ownedSubnet) string { return n.ID })
}
