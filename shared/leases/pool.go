package leases

import (
	"context"
	"fmt"
	"log/slog"
	"slices"

	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/domain"
)

// PoolStore stores the hosts of the reservable pool.
type PoolStore interface {
	Nodes
	Seen(ctx context.Context, hosts []domain.ComputeHost) error
	SetUp(ctx context.Context, name string, isUp bool) error
	Left(ctx context.Context, name string) (ok bool, err error)
}

// Pool keeps the pool of reservable hosts. One replica at a time works on it.
type Pool struct {
	Nodes PoolStore
	Cloud HostCloud
}

// Survey records what Nova and Placement show of the pool's hosts: what they have, and whether they are up.
func (p Pool) Survey(ctx context.Context) error {
	nodes, err := p.Nodes.Pool(ctx)
	if err != nil || len(nodes) == 0 {
		return err
	}
	all, err := p.Cloud.ComputeHosts(ctx)
	if err != nil {
		return err
	}
	var pooled []domain.ComputeHost
	for _, node := range nodes {
		n := slices.IndexFunc(all, func(h domain.ComputeHost) bool { return h.Name == node.Name })
		if n >= 0 && all[n].CellDown {
			continue // it stays as it was
		} else if n >= 0 {
			pooled = append(pooled, all[n])
		} else if err := p.Nodes.SetUp(ctx, node.Name, false); err != nil {
			return err
		}
	}
	if err := p.Cloud.HostInventories(ctx, pooled); err != nil {
		return err
	}
	return p.Nodes.Seen(ctx, pooled)
}

// Move moves the hosts that are joining or leaving, and reports whether one has joined.
func (p Pool) Move(ctx context.Context) (joined bool, err error) {
	nodes, err := p.Nodes.Pool(ctx)
	if err != nil {
		return false, err
	}
	trait, err := p.Nodes.PoolTrait(ctx)
	if err != nil {
		return false, err
	}
	stay := len(nodes)
	for _, node := range nodes {
		var reason error
		switch node.Pool {
		case domain.NodeJoining:
			var isIn bool
			isIn, reason = p.join(ctx, node, trait)
			joined = joined || isIn
		case domain.NodeLeaving:
			if reason = p.leave(ctx, node, trait, stay == 1); reason == nil {
				stay--
			}
		}
		if reason == nil {
			continue
		}
		slog.WarnContext(ctx, "a host of the pool", "host", node.Name, "pool", node.Pool, "error", reason)
		if _, err := p.Nodes.SetPool(ctx, node.Name, node.Pool, node.Pool, apperr.As(reason).Message); err != nil {
			return joined, err
		}
	}
	return joined, nil
}

// IsMoving reports whether a host is joining or leaving. One that could not, and has a reason, waits for the next
// survey.
func (p Pool) IsMoving(ctx context.Context) (bool, error) {
	nodes, err := p.Nodes.Pool(ctx)
	return slices.ContainsFunc(nodes, func(n domain.Node) bool {
		return n.Pool != domain.NodeReservable && n.Reason == ""
	}), err
}

// join isolates a host without servers. One that got a server at the last moment is opened again.
func (p Pool) join(ctx context.Context, node domain.Node, trait string) (joined bool, err error) {
	if node.ProviderID == "" {
		return false, apperr.New(apperr.Conflict, "Placement has no resource provider of the host")
	}
	err = CheckIsolation(ctx, p.Cloud, node.Name)
	if err == nil {
		err = p.isFree(ctx, node.Name)
	}
	if err != nil {
		return false, err
	}
	if err := isolate(ctx, p.Cloud, PoolAggregate, trait, node); err != nil {
		return false, err
	}
	if err := p.isFree(ctx, node.Name); err != nil {
		if undo := p.open(ctx, node, trait, false); undo != nil {
			return false, fmt.Errorf("%w; and it stays isolated: %w", err, undo)
		}
		return false, err
	}
	return p.Nodes.SetPool(ctx, node.Name, domain.NodeJoining, domain.NodeReservable, "")
}

// isFree fails if servers run on the host.
func (p Pool) isFree(ctx context.Context, host string) error {
	servers, err := p.Cloud.HostServers(ctx, host)
	if err == nil {
		err = CheckServers(host, len(servers))
	}
	return err
}

// leave opens a host for everybody's servers again.
func (p Pool) leave(ctx context.Context, node domain.Node, trait string, isLast bool) error {
	if err := p.open(ctx, node, trait, isLast); err != nil {
		return err
	}
	_, err := p.Nodes.Left(ctx, node.Name) // false if it joins again: then the next pass isolates it
	return err
}

// open takes a host out of the pool's aggregate, and the trait off it. The last one takes the aggregate along.
func (p Pool) open(ctx context.Context, node domain.Node, trait string, isLast bool) error {
	aggregate, found, err := p.Cloud.FindAggregate(ctx, PoolAggregate)
	if err != nil {
		return err
	}
	if found {
		if err := p.Cloud.RemoveHost(ctx, aggregate, node.Name, node.ProviderID); err != nil {
			return err
		}
	}
	err = p.Cloud.SetProviderTrait(ctx, node.ProviderID, trait, false)
	hasMore := slices.ContainsFunc(aggregate.Hosts, func(name string) bool { return name != node.Name })
	if err != nil || !found || !isLast || hasMore {
		return err
	}
	if err := p.Cloud.DeleteAggregate(ctx, aggregate.ID); err != nil {
		return err
	}
	return p.Cloud.DeleteTrait(ctx, trait)
}
