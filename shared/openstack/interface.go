package openstack

import (
	"cmp"
	"context"
	"net/http"
	"net/url"
	"slices"
	"strings"

	"github.com/gophercloud/gophercloud/v2"
	"github.com/gophercloud/gophercloud/v2/openstack/compute/v2/attachinterfaces"
	"github.com/gophercloud/gophercloud/v2/openstack/networking/v2/ports"

	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/domain"
)

// Interfaces lists the ports of a server, in the order of their networks.
func (s *Session) Interfaces(ctx context.Context, serverID string) ([]domain.Interface, error) {
	neutron, err := s.neutron(ctx)
	if err != nil {
		return nil, err
	}
	type port struct {
		ID        string   `json:"id"`
		Owner     string   `json:"device_owner"`
		NetworkID string   `json:"network_id"`
		MAC       string   `json:"mac_address"`
		Status    string   `json:"status"`
		Groups    []string `json:"security_groups"`
		IsSecured *bool    `json:"port_security_enabled"` // nil = a port cannot be without security groups
		Revision  int      `json:"revision_number"`
		Addresses []struct {
			SubnetID string `json:"subnet_id"`
			IP       string `json:"ip_address"`
		} `json:"fixed_ips"`
	}
	type page struct {
		Ports []port `json:"ports"`
		Links []link `json:"ports_links"`
	}
	query := url.Values{"limit": {pageLimit}, "device_id": {serverID}, "fields": {
		"id", "device_owner", "network_id", "mac_address", "status", "security_groups", "port_security_enabled",
		"revision_number", "fixed_ips",
	}}
	found, err := everyPage(ctx, neutron, neutron.ServiceURL("ports"), query,
		func(p *page) ([]port, string) { return p.Ports, linkTo(p.Links) },
		func(p port) string { return p.ID })
	all := []domain.Interface{}
	for _, p := range found {
		if !strings.HasPrefix(p.Owner, "compute:") {
			continue
		}
		i := domain.Interface{
			ID: p.ID, NetworkID: p.NetworkID, MAC: p.MAC, Status: p.Status, Groups: p.Groups,
			IsSecured: p.IsSecured == nil || *p.IsSecured, Revision: p.Revision, Addresses: []domain.FixedIP{},
		}
		for _, a := range p.Addresses {
			i.Addresses = append(i.Addresses, domain.FixedIP{SubnetID: a.SubnetID, IP: a.IP})
		}
		all = append(all, i)
	}
	slices.SortFunc(all, func(a, b domain.Interface) int {
		return cmp.Or(strings.Compare(a.NetworkID, b.NetworkID), strings.Compare(a.ID, b.ID))
	})
	return all, err
}

// SetInterfaceGroups gives a port other security groups, by their ids, unless the port has changed since it was read:
// then it is a Precondition.
func (s *Session) SetInterfaceGroups(ctx context.Context, i domain.Interface, groups []string) error {
	neutron, err := s.neutron(ctx)
	if err != nil {
		return err
	}
	err = ports.Update(ctx, neutron, i.ID, ports.UpdateOpts{SecurityGroups: &groups, RevisionNumber: &i.Revision}).Err
	if gophercloud.ResponseCodeIs(err, http.StatusPreconditionFailed) {
		return apperr.Wrap(apperr.Precondition, err, "neutron: the port %s was changed meanwhile", i.ID)
	}
	return classify("neutron", err)
}

// SetNetworkGroups gives the ports of a server the security groups of its attachments, but for ports that existed
// before it. areFound reports whether each attachment with groups has a port. A network without port security is a
// Conflict. While others change a port it is a Precondition.
func (s *Session) SetNetworkGroups(
	ctx context.Context, serverID string, attachments []domain.Attachment,
) (areFound bool, err error) {
	found, err := s.Interfaces(ctx, serverID)
	if err != nil {
		return false, err
	}
	isOwn := func(port domain.Interface) bool {
		return slices.ContainsFunc(attachments, func(a domain.Attachment) bool { return a.PortID == port.ID })
	}
	found = slices.DeleteFunc(found, isOwn)
	areFound = true
	for _, a := range attachments {
		if a.SecurityGroups == nil {
			continue
		}
		wanted, isFound := domain.InterfaceRequest{NetworkID: a.NetworkID, FixedIP: a.FixedIP}, false
		for _, port := range found {
			if !wanted.Matches(port) {
				continue
			}
			isSet, err := s.setNetworkGroups(ctx, serverID, port, a.SecurityGroups)
			if err != nil {
				return false, err
			}
			isFound = isFound || isSet
		}
		areFound = areFound && isFound
	}
	return areFound, nil
}

// setNetworkGroups gives a port of a server its security groups. isSet is false if the server has lost the port: then
// Neutron's answer is the same as when a group does not exist.
func (s *Session) setNetworkGroups(
	ctx context.Context, serverID string, port domain.Interface, groups []string,
) (isSet bool, err error) {
	if !port.IsSecured {
		return false, apperr.New(apperr.Conflict,
			"the port %s on the network %s takes no security groups: its port security is off", port.ID, port.NetworkID)
	}
	if slices.Equal(slices.Sorted(slices.Values(port.Groups)), slices.Sorted(slices.Values(groups))) {
		return true, nil
	}
	refusal := s.SetInterfaceGroups(ctx, port, groups)
	if apperr.CodeOf(refusal) != apperr.NotFound {
		return refusal == nil, refusal
	}
	now, err := s.Interfaces(ctx, serverID)
	if err == nil && slices.ContainsFunc(now, func(i domain.Interface) bool { return i.ID == port.ID }) {
		err = refusal
	}
	return false, err
}

// AttachPort gives a server an interface, and returns the id of its port. One that Nova makes on a network is deleted
// with the interface, and has the project's default security group.
func (s *Session) AttachPort(ctx context.Context, serverID string, r domain.InterfaceRequest) (string, error) {
	nova, err := s.compute(ctx, computeBase)
	if err != nil {
		return "", err
	}
	opts := attachinterfaces.CreateOpts{NetworkID: r.NetworkID, PortID: r.PortID}
	if r.FixedIP != "" {
		opts.FixedIPs = []attachinterfaces.FixedIP{{IPAddress: r.FixedIP}}
	}
	made, err := attachinterfaces.Create(ctx, nova, serverID, opts).Extract()
	if err != nil {
		return "", classify("nova", err)
	}
	return made.PortID, nil
}

// DetachPort has Nova take an interface from a server.
func (s *Session) DetachPort(ctx context.Context, serverID, portID string) error {
	return s.act(ctx, func(nova *gophercloud.ServiceClient) error {
		return attachinterfaces.Delete(ctx, nova, serverID, portID).ExtractErr()
	})
}
