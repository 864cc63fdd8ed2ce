package openstack

import (
	"context"
	"net/netip"
	"slices"

	"github.com/gophercloud/gophercloud/v2"
	"github.com/gophercloud/gophercloud/v2/openstack/loadbalancer/v2/listeners"
	"github.com/gophercloud/gophercloud/v2/openstack/loadbalancer/v2/loadbalancers"
	"github.com/gophercloud/gophercloud/v2/openstack/loadbalancer/v2/pools"

	"github.com/cloudfn/cloudfn/shared/domain"
)

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
