package openstack

import (
	"context"
	"net/url"
	"strings"

	"github.com/gophercloud/gophercloud/v2/openstack/compute/v2/attachinterfaces"
	"github.com/gophercloud/gophercloud/v2/openstack/networking/v2/ports"

	"github.com/cloudfn/cloudfn/shared/domain"
)

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
