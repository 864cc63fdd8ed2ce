package openstack

import (
	"cmp"
	"context"
	"slices"
	"strings"

	"github.com/gophercloud/gophercloud/v2"
	"github.com/gophercloud/gophercloud/v2/openstack/networking/v2/extensions/external"
	"github.com/gophercloud/gophercloud/v2/openstack/networking/v2/extensions/security/groups"
	"github.com/gophercloud/gophercloud/v2/openstack/networking/v2/networks"
	"github.com/gophercloud/gophercloud/v2/openstack/networking/v2/subnets"

	"golang.org/x/sync/errgroup"

	"github.com/cloudfn/cloudfn/shared/domain"
)

// pageLimit is asked of Neutron, which gives everything at once unless it is asked for less.
const pageLimit = 1000

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
		found, err = networkPages(ctx, neutron, nil)
		return err
	})
	group.Go(func() (err error) {
		// Neutron's policy hides router:external of another project's network from plain members, so the
		// attribute cannot be read; it can only be asked for.
		yes := true
		outside, err = networkPages(ctx, neutron, &yes)
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
	return networkPages(ctx, neutron, nil)
}

func networkPages(ctx context.Context, neutron *gophercloud.ServiceClient, isExternal *bool) ([]domain.Network, error) {
	opts := external.ListOptsExt{ListOptsBuilder: networks.ListOpts{Limit: pageLimit}, External: isExternal}
	pages, err := networks.List(neutron, opts).AllPages(ctx)
	if err != nil {
		return nil, classify("neutron", err)
	}
	found, err := networks.ExtractNetworks(pages)
	if err != nil {
		return nil, classify("neutron", err)
	}
	out := make([]domain.Network, len(found))
	for i, n := range found {
		out[i] = domain.Network{ID: n.ID, Name: n.Name, Status: n.Status, Shared: n.Shared, Subnets: []domain.Subnet{}}
	}
	return out, nil
}

func subnetPages(ctx context.Context, neutron *gophercloud.ServiceClient) (map[string][]domain.Subnet, error) {
	pages, err := subnets.List(neutron, subnets.ListOpts{Limit: pageLimit}).AllPages(ctx)
	if err != nil {
		return nil, classify("neutron", err)
	}
	found, err := subnets.ExtractSubnets(pages)
	if err != nil {
		return nil, classify("neutron", err)
	}
	by := map[string][]domain.Subnet{}
	for _, n := range found {
		by[n.NetworkID] = append(by[n.NetworkID], domain.Subnet{ID: n.ID, Name: n.Name, CIDR: n.CIDR, IPVersion: n.IPVersion})
	}
	for _, list := range by {
		slices.SortFunc(list, func(a, b domain.Subnet) int { return a.IPVersion - b.IPVersion })
	}
	return by, nil
}

// SecurityGroups lists the project's security groups.
func (s *Session) SecurityGroups(ctx context.Context) ([]domain.SecurityGroup, error) {
	neutron, err := s.neutron(ctx)
	if err != nil {
		return nil, err
	}
	pages, err := groups.List(neutron, groups.ListOpts{}).AllPages(ctx)
	if err != nil {
		return nil, classify("neutron", err)
	}
	found, err := groups.ExtractGroups(pages)
	if err != nil {
		return nil, classify("neutron", err)
	}
	out := make([]domain.SecurityGroup, len(found))
	for i, g := range found {
		out[i] = domain.SecurityGroup{ID: g.ID, Name: g.Name, Description: g.Description}
	}
	return out, nil
}
