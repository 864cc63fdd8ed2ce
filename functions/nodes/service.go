package nodes

import (
	"context"
	"slices"
	"strings"

	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/leases"
	"github.com/cloudfn/cloudfn/shared/nodes"
	"github.com/cloudfn/cloudfn/shared/postgres"
	"github.com/cloudfn/cloudfn/shared/webhook"
)

// session is the part of OpenStack that this function needs, with the caller's own token: Nova's policy decides who
// sees hosts, who may disable them, and who may make them reservable.
type session interface {
	ComputeHosts(context.Context) ([]domain.ComputeHost, error)
	HostInventories(ctx context.Context, hosts []domain.ComputeHost) error
	HostServers(ctx context.Context, host string) ([]domain.Server, error)
	Aggregates(context.Context) ([]domain.Aggregate, error)
	MayChangeAggregates(context.Context) error
	MayChangeServices(context.Context) error
	ProbeHost(ctx context.Context, name string) (domain.Isolation, error)
	DisableService(ctx context.Context, id, reason string) error
	EnableService(ctx context.Context, id string) error
	DeleteService(ctx context.Context, id string) error
}

// openStack opens sessions.
type openStack interface {
	As(token domain.Secret, scope string) session
	Region() string
}

// adminSession replaces the words in which Nova's policy forbids a call.
type adminSession struct{ session }

func (s adminSession) ComputeHosts(ctx context.Context) ([]domain.ComputeHost, error) {
	hosts, err := s.session.ComputeHosts(ctx)
	return hosts, nodes.ForAdmins(err, "nodes are for the cloud's admins")
}

const changesAreForAdmins = "changes of nodes are for the cloud's admins"

func (s adminSession) MayChangeServices(ctx context.Context) error {
	return nodes.ForAdmins(s.session.MayChangeServices(ctx), changesAreForAdmins)
}

func (s adminSession) MayChangeAggregates(ctx context.Context) error {
	return nodes.ForAdmins(s.session.MayChangeAggregates(ctx), changesAreForAdmins)
}

type service struct {
	nodes      postgres.Nodes
	drains     postgres.Drains
	isolations postgres.Isolations
	leases     postgres.Leases
	cloud      openStack
	statusURLs *webhook.Guard // which of them may be
	wake       func(functions ...string)
}

// List returns a page of the hosts, by name. hasMore says that another page follows.
func (s service) List(
	ctx context.Context, who domain.Identity, token domain.Secret, f filter, limit int, marker string,
) (page []node, hasMore bool, err error) {
	cloud := s.cloud.As(token, who.ProjectID)
	all, err := s.all(ctx, cloud)
	if err != nil {
		return nil, false, err
	}
	all = slices.DeleteFunc(all, func(n node) bool { return n.Name <= marker || !f.matches(n) })
	page, hasMore = all[:min(limit, len(all))], len(all) > limit
	return page, hasMore, s.fill(ctx, cloud, page)
}

// all are the hosts that Nova has, and those that are stored besides, without Placement's part and drains.
func (s service) all(ctx context.Context, cloud session) ([]node, error) {
	hosts, err := cloud.ComputeHosts(ctx) // first: it is Nova that says who may see them
	if err != nil {
		return nil, err
	}
	stored, err := s.nodes.All(ctx)
	if err != nil {
		return nil, err
	}
	isolation, err := s.isolations.Get(ctx, s.cloud.Region())
	if err != nil {
		return nil, err
	}
	byName := map[string]domain.Node{}
	for _, n := range stored {
		byName[n.Name] = n
	}
	out := make([]node, 0, len(hosts))
	for _, h := range hosts {
		if before := byName[h.Name]; h.CellDown {
			h.Zone, h.IsUp, h.IsEnabled, h.ServiceID = before.Zone, before.IsUp, before.Enabled, before.ServiceID
			h.DisabledReason, h.SeenAt = before.DisabledReason, before.ServiceAt
		}
		out = append(out, node{
			ComputeHost: h, region: s.cloud.Region(), isThere: true, stored: byName[h.Name], isolation: isolation,
		})
		delete(byName, h.Name)
	}
	for _, gone := range byName {
		host := domain.ComputeHost{Name: gone.Name, Zone: gone.Zone}
		out = append(out, node{ComputeHost: host, region: gone.Region, stored: gone, isolation: isolation})
	}
	slices.SortFunc(out, func(a, b node) int { return strings.Compare(a.Name, b.Name) })
	return out, nil
}

// fill reads from Placement what the hosts have, and what is used of it, and reads their drains and next leases.
func (s service) fill(ctx context.Context, cloud session, nodes []node) error {
	if len(nodes) == 0 {
		return nil
	}
	hosts, names := make([]domain.ComputeHost, len(nodes)), make([]string, len(nodes))
	for n := range nodes {
		hosts[n], names[n] = nodes[n].ComputeHost, nodes[n].Name
	}
	if err := cloud.HostInventories(ctx, hosts); err != nil {
		return err
	}
	next, err := s.leases.NextOf(ctx, names...)
	if err != nil {
		return err
	}
	drains, err := s.drains.Last(ctx, names...)
	for n := range nodes {
		nodes[n].ComputeHost = hosts[n]
		if a, ok := next[nodes[n].Name]; ok {
			nodes[n].lease = &a
		}
		if d, ok := drains[nodes[n].Name]; ok && nodes[n].shows(d) {
			nodes[n].drain = &d
		}
	}
	return err
}

// Get returns a host.
func (s service) Get(ctx context.Context, who domain.Identity, token domain.Secret, name string) (node, error) {
	return s.get(ctx, s.cloud.As(token, who.ProjectID), name)
}

func (s service) get(ctx context.Context, cloud session, name string) (node, error) {
	all, err := s.all(ctx, cloud)
	if err != nil {
		return node{}, err
	}
	return s.find(ctx, cloud, all, name)
}

// find returns one of the hosts, filled.
func (s service) find(ctx context.Context, cloud session, all []node, name string) (node, error) {
	n := slices.IndexFunc(all, func(n node) bool { return n.Name == name })
	if n < 0 {
		return node{}, apperr.New(apperr.NotFound, "the cloud has no host of compute %.64q", name)
	}
	found := all[n : n+1]
	return found[0], s.fill(ctx, cloud, found)
}

// Servers returns a page of the servers on a host, of all projects, by their ids.
func (s service) Servers(
	ctx context.Context, who domain.Identity, token domain.Secret, name string, limit int, marker string,
) (page []domain.Server, hasMore bool, err error) {
	cloud := s.cloud.As(token, who.ProjectID)
	if _, err := s.get(ctx, cloud, name); err != nil {
		return nil, false, err
	}
	all, err := cloud.HostServers(ctx, name)
	if err != nil {
		return nil, false, err
	}
	slices.SortFunc(all, func(a, b domain.Server) int { return strings.Compare(a.ID, b.ID) })
	all = slices.DeleteFunc(all, func(v domain.Server) bool { return v.ID <= marker })
	return all[:min(limit, len(all))], len(all) > limit, nil
}

// Join makes a host reservable. run-leases does so in Nova and Placement, and checks once more that it has no servers.
func (s service) Join(ctx context.Context, who domain.Identity, token domain.Secret, name string) (node, error) {
	cloud := s.cloud.As(token, who.ProjectID)
	found, err := s.get(ctx, cloud, name)
	if err == nil {
		err = cloud.MayChangeAggregates(ctx)
	}
	if err != nil || found.stored.Pool == domain.NodeJoining || found.stored.Pool == domain.NodeReservable {
		return found, err
	}
	if found.ProviderID == "" {
		return found, apperr.New(apperr.Conflict, "host %s has no hypervisor, or several: only hosts with one can be "+
			"reserved", name)
	}
	if err = leases.CheckServers(name, found.Servers); err == nil {
		err = leases.CheckIsolation(ctx, cloud, name)
	}
	if err != nil {
		return found, err
	}
	found.stored, err = s.nodes.Join(ctx, domain.Node{
		Name: name, Region: s.cloud.Region(), Zone: found.Zone, IsUp: found.IsUp && found.IsEnabled,
		ProviderID: found.ProviderID, VCPUs: found.VCPUs, RAMMB: found.RAMMB, DiskGB: found.DiskGB,
		Traits: found.Traits, Attributes: found.Attributes, RequestedBy: who.UserID,
	})
	if err == nil {
		s.wake("run-leases")
	}
	return found, err
}

// Leave makes a host an ordinary one again. It is a Conflict while reservations have it, now or later.
func (s service) Leave(ctx context.Context, who domain.Identity, token domain.Secret, name string) (node, error) {
	cloud := s.cloud.As(token, who.ProjectID)
	found, err := s.get(ctx, cloud, name)
	if err == nil {
		err = cloud.MayChangeAggregates(ctx)
	}
	if err != nil || found.stored.Pool == "" {
		return found, err
	}
	left, err := s.nodes.Leave(ctx, name, who.UserID)
	if apperr.CodeOf(err) == apperr.NotFound { // it has left meanwhile
		found.stored.Pool = ""
		return found, nil
	}
	if err == nil {
		found.stored = left
		s.wake("run-leases")
	}
	return found, err
}
