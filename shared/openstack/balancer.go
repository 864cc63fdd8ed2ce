package openstack

import (
	"cmp"
	"context"
	"maps"
	"net/netip"
	"net/url"
	"slices"

	"github.com/gophercloud/gophercloud/v2"
	"github.com/gophercloud/gophercloud/v2/openstack/loadbalancer/v2/listeners"
	"github.com/gophercloud/gophercloud/v2/openstack/loadbalancer/v2/loadbalancers"
	"github.com/gophercloud/gophercloud/v2/openstack/loadbalancer/v2/pools"

	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/flow"
)

// Load balancers. Octavia refuses every change of one, with a Conflict, until the last change of it is done.

type balancer struct {
	ID      string    `json:"id"`
	Name    string    `json:"name"`
	Status  string    `json:"provisioning_status"`
	Address string    `json:"vip_address"`
	Network string    `json:"vip_network_id"`
	IsUp    *bool     `json:"admin_state_up"`
	Tags    []string  `json:"tags"`
	Created naiveTime `json:"created_at"`
	Updated naiveTime `json:"updated_at"` // null until its first change
}

type objectID struct {
	ID string `json:"id"`
}

type listener struct {
	ID        string     `json:"id"`
	Name      string     `json:"name"`
	Protocol  string     `json:"protocol"`
	Port      int        `json:"protocol_port"`
	Status    string     `json:"provisioning_status"`
	IsUp      *bool      `json:"admin_state_up"`
	PoolID    string     `json:"default_pool_id"` // "" = none
	Balancers []objectID `json:"loadbalancers"`
}

type serverPool struct {
	ID        string     `json:"id"`
	Name      string     `json:"name"`
	Protocol  string     `json:"protocol"`
	Algorithm string     `json:"lb_algorithm"`
	Status    string     `json:"provisioning_status"`
	IsUp      *bool      `json:"admin_state_up"`
	Members   []objectID `json:"members"`
	Balancers []objectID `json:"loadbalancers"`
	Listeners []objectID `json:"listeners"`
}

func (p serverPool) domain() domain.ServerPool {
	out := domain.ServerPool{
		ID: p.ID, Name: p.Name, Protocol: p.Protocol, Algorithm: p.Algorithm, IsOff: isOff(p.IsUp), Status: p.Status,
	}
	for _, m := range p.Members {
		out.MemberIDs = append(out.MemberIDs, m.ID)
	}
	return out
}

// isOff reports whether an admin state is down. One that Octavia does not show is up.
func isOff(isUp *bool) bool { return isUp != nil && !*isUp }

// inside is what is in a load balancer.
type inside struct {
	listeners []domain.Listener
	unused    []domain.ServerPool
}

// octavia is a client of the load balancers' service.
func (s *Session) octavia(ctx context.Context) (*gophercloud.ServiceClient, error) {
	return s.clientOf(ctx, "load-balancer", "v2.0/", "")
}

// lbaas reads a whole list of Octavia. It fails with 500 while a load balancer is deleted whose listeners are in the
// list ("'NoneType' object has no attribute 'to_dict'"), so it is read again then.
func lbaas[P, T any](
	ctx context.Context, octavia *gophercloud.ServiceClient, list string, query url.Values,
	split func(*P) ([]T, string), id func(T) string,
) ([]T, error) {
	query.Set("limit", "1000")
	for try := 1; ; try++ {
		found, err := everyPage(ctx, octavia, octavia.ServiceURL("lbaas", list), maps.Clone(query), split, id)
		if apperr.CodeOf(err) != apperr.BadGateway || try == pageTries {
			return found, err
		}
		if !flow.Sleep(ctx, firstPause<<try) {
			return nil, classify("octavia", ctx.Err())
		}
	}
}

// LoadBalancers lists the project's load balancers with the tag, and their listeners and pools; of the pools' members
// only their ids. tag "" means all. It makes three calls, or one when there is no such load balancer.
func (s *Session) LoadBalancers(ctx context.Context, projectID, tag string) ([]domain.LoadBalancer, error) {
	octavia, err := s.octavia(ctx)
	if err != nil {
		return nil, err
	}
	type page struct {
		Balancers []balancer `json:"loadbalancers"`
		Links     []link     `json:"loadbalancers_links"`
	}
	query := url.Values{"project_id": {projectID}}
	if tag != "" {
		query.Set("tags", tag)
	}
	found, err := lbaas(ctx, octavia, "loadbalancers", query,
		func(p *page) ([]balancer, string) { return p.Balancers, linkTo(p.Links) },
		func(b balancer) string { return b.ID })
	if err != nil {
		return nil, err
	}
	return s.withInside(ctx, octavia, projectID, found...)
}

// LoadBalancer reads one load balancer of the project, as LoadBalancers does.
func (s *Session) LoadBalancer(ctx context.Context, projectID, id string) (domain.LoadBalancer, error) {
	octavia, err := s.octavia(ctx)
	if err != nil {
		return domain.LoadBalancer{}, err
	}
	var found struct {
		Balancer balancer `json:"loadbalancer"`
	}
	if err := get(ctx, octavia, octavia.ServiceURL("lbaas", "loadbalancers", url.PathEscape(id)), &found); err != nil {
		return domain.LoadBalancer{}, err
	}
	all, err := s.withInside(ctx, octavia, projectID, found.Balancer)
	if err != nil {
		return domain.LoadBalancer{}, err
	}
	return all[0], nil
}

// withInside adds the listeners and pools of load balancers.
func (s *Session) withInside(
	ctx context.Context, octavia *gophercloud.ServiceClient, projectID string, found ...balancer,
) ([]domain.LoadBalancer, error) {
	if len(found) == 0 {
		return nil, nil
	}
	parts, err := s.inside(ctx, octavia, projectID)
	if err != nil {
		return nil, err
	}
	out := make([]domain.LoadBalancer, len(found))
	for i, b := range found {
		out[i] = domain.LoadBalancer{
			ID: b.ID, Name: b.Name, Status: b.Status, IsOff: isOff(b.IsUp), Address: b.Address, NetworkID: b.Network,
			Tags: b.Tags, Listeners: parts[b.ID].listeners, Unused: parts[b.ID].unused, CreatedAt: b.Created.Time,
			UpdatedAt: cmp.Or(b.Updated.Time, b.Created.Time),
		}
	}
	return out, nil
}

// inside reads the project's listeners and pools, by the ids of their load balancers.
func (s *Session) inside(
	ctx context.Context, octavia *gophercloud.ServiceClient, projectID string,
) (map[string]inside, error) {
	type listenerPage struct {
		Listeners []listener `json:"listeners"`
		Links     []link     `json:"listeners_links"`
	}
	query := url.Values{"project_id": {projectID}}
	ports, err := lbaas(ctx, octavia, "listeners", query,
		func(p *listenerPage) ([]listener, string) { return p.Listeners, linkTo(p.Links) },
		func(l listener) string { return l.ID })
	if err != nil {
		return nil, err
	}
	type poolPage struct {
		Pools []serverPool `json:"pools"`
		Links []link       `json:"pools_links"`
	}
	targets, err := lbaas(ctx, octavia, "pools", url.Values{"project_id": {projectID}},
		func(p *poolPage) ([]serverPool, string) { return p.Pools, linkTo(p.Links) },
		func(p serverPool) string { return p.ID })
	if err != nil {
		return nil, err
	}
	byID, all := map[string]*domain.ServerPool{}, map[string]inside{}
	for _, p := range targets {
		pool := p.domain()
		byID[p.ID] = &pool
		for _, b := range p.Balancers {
			if part := all[b.ID]; len(p.Listeners) == 0 {
				part.unused = append(part.unused, pool)
				all[b.ID] = part
			}
		}
	}
	for _, l := range ports {
		for _, b := range l.Balancers {
			part := all[b.ID]
			part.listeners = append(part.listeners, domain.Listener{
				ID: l.ID, Name: l.Name, Protocol: l.Protocol, Port: l.Port, Status: l.Status,
				IsOff: isOff(l.IsUp), Pool: byID[l.PoolID],
			})
			all[b.ID] = part
		}
	}
	return all, nil
}

// poolMember is a member of a pool, with what others may have set of it.
type poolMember struct {
	ID             string  `json:"id"`
	Name           string  `json:"name"`
	Address        string  `json:"address"`
	Port           int     `json:"protocol_port"`
	Status         string  `json:"provisioning_status"`
	Weight         *int    `json:"weight"`
	Backup         *bool   `json:"backup"`
	AdminStateUp   *bool   `json:"admin_state_up"`
	MonitorAddress *string `json:"monitor_address"`
	MonitorPort    *int    `json:"monitor_port"`
}

// PoolMembers lists the members of a pool.
func (s *Session) PoolMembers(ctx context.Context, poolID string) ([]domain.PoolMember, error) {
	found, err := s.poolMembers(ctx, poolID)
	out := make([]domain.PoolMember, len(found))
	for i, m := range found {
		out[i] = domain.PoolMember{ID: m.ID, Name: m.Name, Address: m.Address, Port: m.Port, Status: m.Status}
	}
	return out, err
}

func (s *Session) poolMembers(ctx context.Context, poolID string) ([]poolMember, error) {
	octavia, err := s.octavia(ctx)
	if err != nil {
		return nil, err
	}
	type page struct {
		Members []poolMember `json:"members"`
		Links   []link       `json:"members_links"`
	}
	return lbaas(ctx, octavia, "pools/"+poolID+"/members", url.Values{},
		func(p *page) ([]poolMember, string) { return p.Members, linkTo(p.Links) },
		func(m poolMember) string { return m.ID })
}

// onOctavia makes a call of Octavia's.
func (s *Session) onOctavia(ctx context.Context, call func(*gophercloud.ServiceClient) error) error {
	octavia, err := s.octavia(ctx)
	if err != nil {
		return err
	}
	return classify("octavia", call(octavia))
}

// CreateLoadBalancer begins to make a load balancer with its listeners, their pools and members, in one call. Not every
// driver of Octavia takes listeners with it: then it is Unsupported, and they are made one by one.
func (s *Session) CreateLoadBalancer(ctx context.Context, r domain.LoadBalancerRequest) (id string, err error) {
	opts := loadbalancers.CreateOpts{
		Name: r.Name, VipNetworkID: r.NetworkID, VipAddress: r.Address, Tags: r.Tags,
	}
	for _, l := range r.Listeners {
		pool := poolOpts(l)
		for _, m := range l.Pool.Members {
			pool.Members = append(pool.Members, pools.CreateMemberOpts{
				Name: m.Name, Address: m.Address, ProtocolPort: m.Port,
			})
		}
		one := listenerOpts(l)
		one.DefaultPool = &pool
		opts.Listeners = append(opts.Listeners, one)
	}
	err = s.onOctavia(ctx, func(octavia *gophercloud.ServiceClient) error {
		made, err := loadbalancers.Create(ctx, octavia, opts).Extract()
		if err == nil {
			id = made.ID
		}
		return err
	})
	return id, err
}

func listenerOpts(l domain.Listener) listeners.CreateOpts {
	return listeners.CreateOpts{Name: l.Name, Protocol: listeners.Protocol(l.Protocol), ProtocolPort: l.Port}
}

func poolOpts(l domain.Listener) pools.CreateOpts {
	return pools.CreateOpts{
		Name: l.Name, Protocol: pools.Protocol(l.Pool.Protocol), LBMethod: pools.LBMethod(l.Pool.Algorithm),
	}
}

// RenameLoadBalancer changes the name and the tags of a load balancer.
func (s *Session) RenameLoadBalancer(ctx context.Context, id, name string, tags []string) error {
	return s.onOctavia(ctx, func(octavia *gophercloud.ServiceClient) error {
		return loadbalancers.Update(ctx, octavia, id, loadbalancers.UpdateOpts{Name: &name, Tags: &tags}).Err
	})
}

// EnableLoadBalancer sets the admin state of a load balancer to up.
func (s *Session) EnableLoadBalancer(ctx context.Context, id string) error {
	return s.onOctavia(ctx, func(octavia *gophercloud.ServiceClient) error {
		isUp := true
		return loadbalancers.Update(ctx, octavia, id, loadbalancers.UpdateOpts{AdminStateUp: &isUp}).Err
	})
}

// EnableListener sets the admin state of a listener to up.
func (s *Session) EnableListener(ctx context.Context, id string) error {
	return s.onOctavia(ctx, func(octavia *gophercloud.ServiceClient) error {
		isUp := true
		return listeners.Update(ctx, octavia, id, listeners.UpdateOpts{AdminStateUp: &isUp}).Err
	})
}

// EnablePool sets the admin state of a pool to up.
func (s *Session) EnablePool(ctx context.Context, id string) error {
	return s.onOctavia(ctx, func(octavia *gophercloud.ServiceClient) error {
		isUp := true
		return pools.Update(ctx, octavia, id, pools.UpdateOpts{AdminStateUp: &isUp}).Err
	})
}

// AddListener makes a listener. Of its pool only the id is used: that of an existing one; "" = none.
func (s *Session) AddListener(ctx context.Context, balancerID string, l domain.Listener) error {
	return s.onOctavia(ctx, func(octavia *gophercloud.ServiceClient) error {
		opts := listenerOpts(l)
		opts.LoadbalancerID = balancerID
		if l.Pool != nil {
			opts.DefaultPoolID = l.Pool.ID
		}
		return listeners.Create(ctx, octavia, opts).Err
	})
}

// DeleteListener deletes a listener. Its pool stays.
func (s *Session) DeleteListener(ctx context.Context, id string) error {
	return absentIsDone(s.onOctavia(ctx, func(octavia *gophercloud.ServiceClient) error {
		return listeners.Delete(ctx, octavia, id).ExtractErr()
	}))
}

// AddPool makes the default pool of a listener, without members.
func (s *Session) AddPool(ctx context.Context, l domain.Listener) error {
	return s.onOctavia(ctx, func(octavia *gophercloud.ServiceClient) error {
		opts := poolOpts(l)
		opts.ListenerID = l.ID
		return pools.Create(ctx, octavia, opts).Err
	})
}

// SetPoolAlgorithm changes how a pool chooses among its members.
func (s *Session) SetPoolAlgorithm(ctx context.Context, id, algorithm string) error {
	return s.onOctavia(ctx, func(octavia *gophercloud.ServiceClient) error {
		return pools.Update(ctx, octavia, id, pools.UpdateOpts{LBMethod: pools.LBMethod(algorithm)}).Err
	})
}

// SetPoolMembers gives a pool exactly these members. Those that it has already stay, with the weight, the states and
// the monitor that others gave them: Octavia sets to its defaults what the list leaves out.
func (s *Session) SetPoolMembers(ctx context.Context, id string, members []domain.PoolMember) error {
	found, err := s.poolMembers(ctx, id)
	if err != nil {
		return err
	}
	opts := make([]pools.BatchUpdateMemberOpts, len(members))
	for i, m := range members {
		opts[i] = pools.BatchUpdateMemberOpts{Name: &m.Name, Address: m.Address, ProtocolPort: m.Port}
		n := slices.IndexFunc(found, func(have poolMember) bool {
			return have.Port == m.Port && isSameAddress(have.Address, m.Address)
		})
		if n >= 0 {
			have := found[n]
			opts[i].Address, opts[i].Weight, opts[i].Backup = have.Address, have.Weight, have.Backup
			opts[i].AdminStateUp = have.AdminStateUp
			opts[i].MonitorAddress, opts[i].MonitorPort = have.MonitorAddress, have.MonitorPort
		}
	}
	return s.onOctavia(ctx, func(octavia *gophercloud.ServiceClient) error {
		return pools.BatchUpdateMembers(ctx, octavia, id, opts).ExtractErr()
	})
}

// isSameAddress compares two addresses, which may be written otherwise.
func isSameAddress(a, b string) bool {
	one, err := netip.ParseAddr(a)
	other, otherErr := netip.ParseAddr(b)
	return a == b || err == nil && otherErr == nil && one == other
}

// DeletePool deletes a pool with its members.
func (s *Session) DeletePool(ctx context.Context, id string) error {
	return absentIsDone(s.onOctavia(ctx, func(octavia *gophercloud.ServiceClient) error {
		return pools.Delete(ctx, octavia, id).ExtractErr()
	}))
}

// DeleteLoadBalancer begins to delete a load balancer with all that is in it.
func (s *Session) DeleteLoadBalancer(ctx context.Context, id string) error {
	return absentIsDone(s.onOctavia(ctx, func(octavia *gophercloud.ServiceClient) error {
		return loadbalancers.Delete(ctx, octavia, id, loadbalancers.DeleteOpts{Cascade: true}).ExtractErr()
	}))
}
