package openstack

import (
	"cmp"
	"context"
	"net/url"
	"slices"
	"strings"

	"github.com/gophercloud/gophercloud/v2"
	"github.com/gophercloud/gophercloud/v2/openstack/compute/v2/attachinterfaces"
	"github.com/gophercloud/gophercloud/v2/openstack/networking/v2/extensions/security/groups"
	"github.com/gophercloud/gophercloud/v2/openstack/networking/v2/networks"
	"github.com/gophercloud/gophercloud/v2/openstack/networking/v2/ports"
	"github.com/gophercloud/gophercloud/v2/openstack/networking/v2/subnets"
	"golang.org/x/sync/errgroup"

	"github.com/cloudfn/cloudfn/shared/domain"
)

// pageLimit is requested of Neutron, which gives everything in one page without it.
const pageLimit = "1000"

func (s *Session) neutron(ctx context.Context) (*gophercloud.ServiceClient, error) {
	return s.client(ctx, "network", "v2.0/", "")
}

// Networks lists the networks that the project sees, with their subnets: first its own and the shared ones, then
// the external ones, on which members usually cannot launch; each by name. Neutron lists them by id, at random.
func (s *Session) Networks(ctx context.Context) ([]domain.Network, error) {
	neutron, err := s.neutron(ctx)
	if err != nil {
		return nil, err
	}
	var found, outside []domain.Network
	var inside map[string][]domain.Subnet
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() (err error) {
		found, err = networkPages(ctx, neutron, false)
		return err
	})
	group.Go(func() (err error) {
		// Neutron's policy hides router:external of another project's network from plain members, so the
		// attribute cannot be read; it can only be a filter.
		outside, err = networkPages(ctx, neutron, true)
		return err
	})
	group.Go(func() (err error) {
		inside, err = subnetPages(ctx, neutron)
		return err
	})
	if err := group.Wait(); err != nil {
		return nil, err
	}
	isExternal := map[string]bool{}
	for _, n := range outside {
		isExternal[n.ID] = true
	}
	for i := range found {
		found[i].External = isExternal[found[i].ID]
		if list := inside[found[i].ID]; list != nil {
			found[i].Subnets = list
		}
	}
	slices.SortFunc(found, func(a, b domain.Network) int {
		switch {
		case a.External == b.External:
			return cmp.Or(strings.Compare(a.Name, b.Name), strings.Compare(a.ID, b.ID))
		case b.External:
			return -1
		default:
			return 1
		}
	})
	return found, nil
}

// NetworkNames lists the same networks with only what tells them apart: one request where Networks makes three.
func (s *Session) NetworkNames(ctx context.Context) ([]domain.Network, error) {
	neutron, err := s.neutron(ctx)
	if err != nil {
		return nil, err
	}
	return networkPages(ctx, neutron, false)
}

func networkPages(ctx context.Context, neutron *gophercloud.ServiceClient, isExternal bool) ([]domain.Network, error) {
	type page struct {
		Networks []networks.Network `json:"networks"`
		Links    []link             `json:"networks_links"`
	}
	query := url.Values{"limit": {pageLimit}}
	if isExternal {
		query.Set("router:external", "true")
	}
	found, err := everyPage(ctx, neutron, neutron.ServiceURL("networks"), query,
		func(p *page) ([]networks.Network, string) { return p.Networks, linkTo(p.Links) },
		func(n networks.Network) string { return n.ID })
	return convert(found, err, func(n networks.Network) domain.Network {
		return domain.Network{
			ID: n.ID, Name: n.Name, Status: n.Status, Shared: n.Shared, Subnets: []domain.Subnet{},
		}
	})
}

func subnetPages(ctx context.Context, neutron *gophercloud.ServiceClient) (map[string][]domain.Subnet, error) {
	type page struct {
		Subnets []subnets.Subnet `json:"subnets"`
		Links   []link           `json:"subnets_links"`
	}
	found, err := everyPage(ctx, neutron, neutron.ServiceURL("subnets"), url.Values{"limit": {pageLimit}},
		func(p *page) ([]subnets.Subnet, string) { return p.Subnets, linkTo(p.Links) },
		func(n subnets.Subnet) string { return n.ID })
	by := map[string][]domain.Subnet{}
	for _, n := range found {
		by[n.NetworkID] = append(by[n.NetworkID], domain.Subnet{
			ID: n.ID, Name: n.Name, CIDR: n.CIDR, IPVersion: n.IPVersion,
		})
	}
	for _, list := range by {
		slices.SortFunc(list, func(a, b domain.Subnet) int { return a.IPVersion - b.IPVersion })
	}
	return by, err
}

// SecurityGroups lists the project's security groups, which are all that Nova takes: not those that other projects
// share with it, nor for an admin those of all projects.
func (s *Session) SecurityGroups(ctx context.Context) ([]domain.SecurityGroup, error) {
	neutron, err := s.neutron(ctx)
	if err != nil {
		return nil, err
	}
	type page struct {
		Groups []groups.SecGroup `json:"security_groups"`
		Links  []link            `json:"security_groups_links"`
	}
	query := url.Values{"limit": {pageLimit}}
	if project := s.ownProject(); project != "" { // Neutron shows admins the groups of all projects
		query.Set("project_id", project)
	}
	found, err := everyPage(ctx, neutron, neutron.ServiceURL("security-groups"), query,
		func(p *page) ([]groups.SecGroup, string) { return p.Groups, linkTo(p.Links) },
		func(g groups.SecGroup) string { return g.ID })
	return convert(found, err, func(g groups.SecGroup) domain.SecurityGroup {
		return domain.SecurityGroup{ID: g.ID, Name: g.Name, Description: g.Description}
	})
}

// Ports counts the ports that the server has in Neutron. Nova deletes the ports that it has made some seconds after the
// server.
func (s *Session) Ports(ctx context.Context, serverID string) (int, error) {
	neutron, err := s.neutron(ctx)
	if err != nil {
		return 0, err
	}
	var body struct {
		Ports []struct {
			ID string `json:"id"`
		} `json:"ports"`
	}
	err = get(ctx, neutron, neutron.ServiceURL("ports")+"?fields=id&device_id="+serverID, &body)
	return len(body.Ports), err
}

// FreeAddresses is how many addresses each of the networks has left, by IP version. By default Neutron answers
// only the cloud's admins, and omits networks that the token may not see.
func (s *Session) FreeAddresses(ctx context.Context, networkIDs []string) (map[string]map[int]float64, error) {
	neutron, err := s.neutron(ctx)
	if err != nil {
		return nil, err
	}
	var body struct {
		Networks []struct {
			ID      string `json:"network_id"`
			Subnets []struct {
				Version int     `json:"ip_version"`
				Used    float64 `json:"used_ips"`
				Total   float64 `json:"total_ips"` // of an IPv6 subnet more than an int64 holds
			} `json:"subnet_ip_availability"`
		} `json:"network_ip_availabilities"`
	}
	query := url.Values{"network_id": networkIDs}
	if err := get(ctx, neutron, neutron.ServiceURL("network-ip-availabilities")+"?"+query.Encode(), &body); err != nil {
		return nil, err
	}
	free := map[string]map[int]float64{}
	for _, n := range body.Networks {
		by := map[int]float64{}
		for _, subnet := range n.Subnets {
			by[subnet.Version] += max(0, subnet.Total-subnet.Used)
		}
		free[n.ID] = by
	}
	return free, nil
}

// Port reads a port of the project.
func (s *Session) Port(ctx context.Context, id string) (domain.Port, error) {
	neutron, err := s.neutron(ctx)
	if err != nil {
		return domain.Port{}, err
	}
	var body struct {
		Port domain.Port `json:"port"`
	}
	err = get(ctx, neutron, neutron.ServiceURL("ports", url.PathEscape(id))+"?fields=id&fields=device_id", &body)
	return body.Port, err
}

// ServerPorts lists the ports of a server, or those of all servers of the project, with their security groups. They
// are never nil without an error.
func (s *Session) ServerPorts(ctx context.Context, projectID, serverID string) ([]domain.Port, error) {
	neutron, err := s.neutron(ctx)
	if err != nil {
		return nil, err
	}
	type port struct {
		domain.Port

		Owner string `json:"device_owner"`
	}
	type page struct {
		Ports []port `json:"ports"`
		Links []link `json:"ports_links"`
	}
	query := url.Values{
		"limit": {pageLimit}, "project_id": {projectID},
		"fields": {"id", "device_id", "device_owner", "network_id", "security_groups", "port_security_enabled"},
	}
	if serverID != "" {
		query.Set("device_id", serverID)
	}
	found, err := everyPage(ctx, neutron, neutron.ServiceURL("ports"), query,
		func(p *page) ([]port, string) { return p.Ports, linkTo(p.Links) },
		func(p port) string { return p.ID })
	all := []domain.Port{}
	for _, p := range found {
		if strings.HasPrefix(p.Owner, "compute:") {
			all = append(all, p.Port)
		}
	}
	return all, err
}

// SetPortGroups gives a port other security groups, by their ids.
func (s *Session) SetPortGroups(ctx context.Context, id string, groups []string) error {
	neutron, err := s.neutron(ctx)
	if err != nil {
		return err
	}
	return classify("neutron", ports.Update(ctx, neutron, id, ports.UpdateOpts{SecurityGroups: &groups}).Err)
}

// AttachInterface gives a server a port on a network, with the project's default security group.
func (s *Session) AttachInterface(ctx context.Context, serverID, networkID string) error {
	nova, err := s.compute(ctx, computeBase)
	if err != nil {
		return err
	}
	return classify("nova", attachinterfaces.Create(ctx, nova, serverID, attachinterfaces.CreateOpts{
		NetworkID: networkID,
	}).Err)
}
