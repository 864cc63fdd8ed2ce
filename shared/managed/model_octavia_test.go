package managed

import (
	"context"
	"slices"
	"time"

	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/domain"
)

// modelBalancer is a load balancer as its list shows it: of the members of its pools only the ids.
func modelBalancer(o *modelObject) domain.LoadBalancer {
	b := o.balancer
	b.Tags, b.Listeners, b.Unused = slices.Clone(b.Tags), slices.Clone(b.Listeners), slices.Clone(b.Unused)
	for n := range b.Listeners {
		if own := b.Listeners[n].Pool; own != nil {
			pool := *own
			pool.Members, pool.MemberIDs = nil, nil
			for _, m := range own.Members {
				pool.MemberIDs = append(pool.MemberIDs, m.ID)
			}
			b.Listeners[n].Pool = &pool
		}
	}
	return b
}

// isBalancer gives a load balancer and all that is in it a status, now.
func (o *modelObject) isBalancer(status string) {
	o.balancer.Status, o.balancer.UpdatedAt = status, time.Now()
	o.hasData = o.hasData || status == active
	for n := range o.balancer.Listeners {
		l := &o.balancer.Listeners[n]
		if l.Status = status; l.Pool != nil {
			l.Pool.Status = status
			for i := range l.Pool.Members {
				l.Pool.Members[i].Status = status
			}
		}
	}
}

func (v modelView) LoadBalancers(ctx context.Context, _, tag string) ([]domain.LoadBalancer, error) {
	key := "mark"
	if tag == markTag {
		key = ""
	}
	return modelList(ctx, v, "LoadBalancers", key, func() (all []domain.LoadBalancer, err error) {
		for _, o := range v.c.of(domain.KindBalancer) {
			if slices.Contains(o.balancer.Tags, tag) {
				all = append(all, modelBalancer(o))
			}
		}
		return all, nil
	})
}

func (v modelView) LoadBalancer(ctx context.Context, _, id string) (domain.LoadBalancer, error) {
	return modelRead(ctx, v, "LoadBalancer", domain.KindBalancer, id, modelBalancer)
}

// part finds the load balancer with a listener or pool.
func (c *modelCloud) part(holds func(b *domain.LoadBalancer) bool) *modelObject {
	for _, o := range c.of(domain.KindBalancer) {
		if holds(&o.balancer) {
			return o
		}
	}
	return nil
}

func hasPool(id string) func(b *domain.LoadBalancer) bool {
	return func(b *domain.LoadBalancer) bool { return poolOf(b, id) != nil }
}

func poolOf(b *domain.LoadBalancer, id string) *domain.ServerPool {
	for n := range b.Listeners {
		if b.Listeners[n].Pool != nil && b.Listeners[n].Pool.ID == id {
			return b.Listeners[n].Pool
		}
	}
	for n := range b.Unused {
		if b.Unused[n].ID == id {
			return &b.Unused[n]
		}
	}
	return nil
}

func (v modelView) PoolMembers(ctx context.Context, poolID string) ([]domain.PoolMember, error) {
	return modelList(ctx, v, "PoolMembers", "pool", func() ([]domain.PoolMember, error) {
		o := v.c.part(hasPool(poolID))
		if o == nil {
			return nil, apperr.New(apperr.NotFound, "there is no pool %s", poolID)
		}
		return slices.Clone(poolOf(&o.balancer, poolID).Members), nil
	})
}

func (v modelView) CreateLoadBalancer(ctx context.Context, r domain.LoadBalancerRequest) (id string, err error) {
	id = v.run.newID("load balancer " + r.Name)
	return id, v.write(ctx, "CreateLoadBalancer", r.Name, func(breaks bool) error {
		member, _ := taggedMember(r.Tags)
		o := v.c.add(&modelObject{
			kind: domain.KindBalancer, id: id, label: r.Name, member: member, balancer: domain.LoadBalancer{
				ID: id, Name: r.Name, Address: "10.0.0.9", NetworkID: r.NetworkID, Tags: slices.Clone(r.Tags),
				CreatedAt: time.Now(),
			},
		})
		for _, l := range r.Listeners {
			pool := *l.Pool
			pool.ID, pool.Name, pool.Members = v.run.newID("part"), l.Name, v.run.withIDs(l.Pool.Members)
			l.ID, l.Pool = v.run.newID("part"), &pool
			o.balancer.Listeners = append(o.balancer.Listeners, l)
		}
		o.isBalancer("PENDING_CREATE")
		o.after(4*time.Second, func() {
			if breaks {
				o.isBalancer("ERROR")
				return
			}
			o.isBalancer(active)
		})
		return nil
	})
}

func (r *modelRun) withIDs(members []domain.PoolMember) []domain.PoolMember {
	members = slices.Clone(members)
	for n := range members {
		members[n].ID = r.newID("part")
	}
	return members
}

// immutable is a change that Octavia takes only of a load balancer at which it does not work.
func (v modelView) immutable(
	ctx context.Context, method string, holds func(b *domain.LoadBalancer) bool, do func(b *domain.LoadBalancer) error,
) error {
	v.c.mu.Lock()
	found := v.c.part(holds)
	v.c.mu.Unlock()
	if found == nil {
		return errorsOr(v.run.begin(ctx, method, ""), apperr.New(apperr.NotFound, "%s: no such object", method))
	}
	return v.change(ctx, method, domain.KindBalancer, found.id, func(o *modelObject, _ bool) error {
		if o.balancer.Status != active {
			return apperr.New(apperr.Conflict, "load balancer %s is immutable: %s", o.id, o.balancer.Status)
		}
		if !holds(&o.balancer) {
			return apperr.New(apperr.NotFound, "%s: it is deleted", method)
		}
		if err := do(&o.balancer); err != nil {
			return err
		}
		o.balancer.Status, o.balancer.UpdatedAt = "PENDING_UPDATE", time.Now()
		o.after(time.Second, func() { o.isBalancer(active) })
		return nil
	})
}

func isBalancerID(id string) func(b *domain.LoadBalancer) bool {
	return func(b *domain.LoadBalancer) bool { return b.ID == id }
}

func hasListener(id string) func(b *domain.LoadBalancer) bool {
	return func(b *domain.LoadBalancer) bool {
		return slices.ContainsFunc(b.Listeners, func(l domain.Listener) bool { return l.ID == id })
	}
}

func (v modelView) RenameLoadBalancer(ctx context.Context, id, name string, tags []string) error {
	return v.immutable(ctx, "RenameLoadBalancer", isBalancerID(id), func(b *domain.LoadBalancer) error {
		b.Name, b.Tags = name, slices.Clone(tags)
		return nil
	})
}

func (v modelView) AddListener(ctx context.Context, balancerID string, l domain.Listener) error {
	return v.immutable(ctx, "AddListener", isBalancerID(balancerID), func(b *domain.LoadBalancer) error {
		if slices.ContainsFunc(b.Listeners, func(one domain.Listener) bool { return one.Port == l.Port }) {
			return apperr.New(apperr.Conflict, "another listener has the port %d", l.Port)
		}
		desired := l.Pool
		l.ID, l.Pool = v.run.newID("part"), nil
		if desired != nil && desired.ID != "" {
			l.Pool = poolOf(b, desired.ID)
			pool := *l.Pool
			l.Pool = &pool
			b.Unused = slices.DeleteFunc(b.Unused, func(p domain.ServerPool) bool { return p.ID == pool.ID })
		}
		b.Listeners = append(b.Listeners, l)
		return nil
	})
}

func (v modelView) DeleteListener(ctx context.Context, id string) error {
	return absentIsDeleted(v.immutable(ctx, "DeleteListener", hasListener(id), func(b *domain.LoadBalancer) error {
		deleteListener(b, id)
		return nil
	}))
}

// deleteListener deletes a listener, whose pool stays.
func deleteListener(b *domain.LoadBalancer, id string) {
	n := slices.IndexFunc(b.Listeners, func(l domain.Listener) bool { return l.ID == id })
	if pool := b.Listeners[n].Pool; pool != nil {
		b.Unused = append(b.Unused, *pool)
	}
	b.Listeners = slices.Delete(b.Listeners, n, n+1)
}

func (v modelView) AddPool(ctx context.Context, l domain.Listener) error {
	return v.immutable(ctx, "AddPool", hasListener(l.ID), func(b *domain.LoadBalancer) error {
		n := slices.IndexFunc(b.Listeners, func(one domain.Listener) bool { return one.ID == l.ID })
		if b.Listeners[n].Pool != nil {
			return apperr.New(apperr.Conflict, "the listener has a pool")
		}
		b.Listeners[n].Pool = &domain.ServerPool{
			ID: v.run.newID("part"), Name: l.Name, Protocol: l.Pool.Protocol, Algorithm: l.Pool.Algorithm,
		}
		return nil
	})
}

func (v modelView) SetPoolAlgorithm(ctx context.Context, id, algorithm string) error {
	return v.immutable(ctx, "SetPoolAlgorithm", hasPool(id), func(b *domain.LoadBalancer) error {
		poolOf(b, id).Algorithm = algorithm
		return nil
	})
}

func (v modelView) SetPoolMembers(ctx context.Context, id string, members []domain.PoolMember) error {
	return v.immutable(ctx, "SetPoolMembers", hasPool(id), func(b *domain.LoadBalancer) error {
		pool := poolOf(b, id)
		all := slices.Clone(members)
		for n := range all {
			same := slices.IndexFunc(pool.Members, func(m domain.PoolMember) bool {
				return m.Address == all[n].Address && m.Port == all[n].Port
			})
			if all[n].ID = v.run.newID("part"); same >= 0 {
				all[n].ID = pool.Members[same].ID
			}
		}
		pool.Members = all
		return nil
	})
}

func (v modelView) DeletePool(ctx context.Context, id string) error {
	return absentIsDeleted(v.immutable(ctx, "DeletePool", hasPool(id), func(b *domain.LoadBalancer) error {
		for n := range b.Listeners {
			if pool := b.Listeners[n].Pool; pool != nil && pool.ID == id {
				b.Listeners[n].Pool = nil
			}
		}
		b.Unused = slices.DeleteFunc(b.Unused, func(p domain.ServerPool) bool { return p.ID == id })
		return nil
	}))
}

func (v modelView) DeleteLoadBalancer(ctx context.Context, id string) error {
	return absentIsDeleted(v.change(ctx, "DeleteLoadBalancer", domain.KindBalancer, id,
		func(o *modelObject, _ bool) error {
			if o.balancer.Status != active && o.balancer.Status != "ERROR" {
				return apperr.New(apperr.Conflict, "load balancer %s is immutable: %s", id, o.balancer.Status)
			}
			v.c.deletes(o, v.run)
			o.isBalancer("PENDING_DELETE")
			o.after(2*time.Second, func() { o.isDeleted = true })
			return nil
		}))
}
