package leases

import (
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/domain"
)

// PoolStore stores the hosts of the reservable pool.
type PoolStore interface {
	Nodes
	RecordHosts(ctx context.Context, hosts []domain.ComputeHost) error
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
	return p.Nodes.RecordHosts(ctx, pooled)
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
		slog.WarnContext(ctx, "host could not join or leave the pool",
			"host", node.Name, "pool", node.Pool, "error", reason)
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

// leave opens a host for the servers of all projects again.
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

// A host of the pool is in one aggregate at least: the pool's while it is idle, its reservation's while it has one, and
// both on the way between them, when no flavor and no image requires both traits. No flavor shows the pool's trait, so
// no server gets onto an idle host: not by an image, and not by a flavor that is private to a project.

// PoolAggregate is its name in Nova. A user who may change this aggregate decides which hosts are in it.
const PoolAggregate = "cloudfn-reservable"

// required is the metadata key of an aggregate, and the extra spec of a flavor, that requires a trait.
func required(trait string) string { return "trait:" + trait }

// requires is the metadata of an aggregate that keeps servers without the trait off its hosts.
func requires(trait string) map[string]string { return map[string]string{required(trait): "required"} }

// isolate puts a host into an aggregate that requires the trait, which the host gets before.
func isolate(ctx context.Context, cloud HostCloud, name, trait string, node domain.Node) error {
	aggregate, err := isolation(ctx, cloud, name, trait)
	if err != nil {
		return err
	}
	return enter(ctx, cloud, aggregate, trait, node)
}

// isolation makes an aggregate that requires the trait.
func isolation(ctx context.Context, cloud HostCloud, name, trait string) (aggregate domain.Aggregate, err error) {
	if err := cloud.EnsureTrait(ctx, trait); err != nil {
		return aggregate, err
	}
	return cloud.EnsureAggregate(ctx, name, requires(trait))
}

// enter puts a host into an aggregate, and gives it the trait before.
func enter(ctx context.Context, cloud HostCloud, aggregate domain.Aggregate, trait string, node domain.Node) error {
	if err := cloud.SetProviderTrait(ctx, node.ProviderID, trait, true); err != nil {
		return err
	}
	return cloud.AddHost(ctx, aggregate, node.Name, node.ProviderID)
}

// foreignAggregate is what the owner of a lease reads of such an aggregate.
const foreignAggregate = "an aggregate of the cloud keeps servers off a reserved host: the cloud's admin has to take " +
	"the host out of it"

// CheckAggregates returns a Conflict when the host is in an isolating aggregate that is not cloudfn's, such as one of
// hosts with GPUs: a server must have the required traits of each aggregate of its host, and the flavors of a
// reservation require no traits but its own. So it does when aggregates keep the host for other projects than this
// one; "" stands for all.
func CheckAggregates(all []domain.Aggregate, host, projectID string) error {
	if err := tenancy(all, host, projectID); err != nil {
		return err
	}
	for _, a := range all {
		isOurs := a.Name == PoolAggregate || strings.HasPrefix(a.Name, leaseAggregate)
		if isOurs || !slices.Contains(a.Hosts, host) {
			continue
		}
		for key, value := range a.Metadata {
			if strings.HasPrefix(key, required("")) && value == "required" {
				return public(apperr.New(apperr.Conflict, "host %s is in the aggregate %q, whose property %s=required "+
					"keeps servers of reservations off it: take the host out of that aggregate first", host, a.Name,
					key), foreignAggregate)
			}
		}
	}
	return nil
}

// CheckIsolation is CheckAggregates with the aggregates that the cloud has, for all projects: each may get the host.
func CheckIsolation(
	ctx context.Context, cloud interface {
		Aggregates(ctx context.Context) ([]domain.Aggregate, error)
	}, host string,
) error {
	aggregates, err := cloud.Aggregates(ctx)
	if err != nil {
		return err
	}
	return CheckAggregates(aggregates, host, "")
}

// tenantKey begins the properties of aggregates that keep hosts for projects: Nova's AggregateMultiTenancyIsolation
// reads the key itself, with ids between commas, and Placement's tenant aggregates any key that begins so.
const tenantKey = "filter_tenant_id"

// tenancy is a Conflict when aggregates keep a host for other projects; "" stands for all. The projects of several
// aggregates count together, as in Nova.
func tenancy(all []domain.Aggregate, host, projectID string) error {
	var conflict error
	for _, a := range all {
		if !slices.Contains(a.Hosts, host) {
			continue
		}
		for key, value := range a.Metadata {
			if !strings.HasPrefix(key, tenantKey) {
				continue
			}
			for id := range strings.SplitSeq(value, ",") {
				switch strings.TrimSpace(id) {
				case "":
				case projectID:
					return nil
				default:
					conflict = public(apperr.New(apperr.Conflict, "host %s is in the aggregate %q, whose property %s "+
						"keeps servers of other projects off it: take the host out of that aggregate first",
						host, a.Name, key), foreignAggregate)
				}
			}
		}
	}
	return conflict
}

const (
	probeTime     = time.Minute // bounds the self-test of a host
	parallelHosts = 4           // hosts
	// The setting that keeps servers off is the scheduler's, for all hosts. So of a large pool some are tested.
	mostProbed = 40
	// ProbeMargin is how long before its next lease a host is not tested on any more.
	ProbeMargin = 10 * time.Minute
)

// Probe tests on idle hosts, at most mostProbed random ones, whether the cloud keeps servers without the trait off
// them. One host that lets them in is enough for unproven. ok is false when no host could be tested; err is then the
// last reason.
func (p Pool) Probe(ctx context.Context, busy []domain.Allocation) (result domain.Isolation, ok bool, err error) {
	nodes, err := p.Nodes.Pool(ctx)
	if err != nil {
		return result, false, err
	}
	nodes = slices.DeleteFunc(nodes, func(n domain.Node) bool {
		isBusy := slices.ContainsFunc(busy, func(a domain.Allocation) bool { return a.Node == n.Name })
		return n.Pool != domain.NodeReservable || !n.IsUp || isBusy
	})
	idle := len(nodes)
	if idle > mostProbed {
		rand.Shuffle(idle, func(i, j int) { nodes[i], nodes[j] = nodes[j], nodes[i] }) //nolint:gosec // only a sample
		nodes = nodes[:mostProbed]
	}
	found, errs := make([]domain.Isolation, len(nodes)), make([]error, len(nodes))
	var all errgroup.Group
	all.SetLimit(parallelHosts)
	for n, node := range nodes {
		all.Go(func() error {
			ctx, cancel := context.WithTimeout(ctx, probeTime)
			defer cancel()
			found[n], errs[n] = p.Cloud.ProbeHost(ctx, node.Name)
			return nil
		})
	}
	_ = all.Wait()
	proven := 0
	for n, node := range nodes {
		switch {
		case errs[n] != nil:
			err = errs[n]
			slog.WarnContext(ctx, "isolation self-test failed", "host", node.Name, "error", err)
		case found[n].Result == domain.IsolationUnproven:
			return found[n], true, nil
		default:
			result, proven = found[n], proven+1
		}
	}
	if proven == 0 || ctx.Err() != nil { // hosts that were not tested prove nothing
		return result, false, err
	}
	if idle > 1 {
		result.Detail = fmt.Sprintf("a server without the trait was refused on %d of %d idle hosts", proven, idle)
	}
	return result, true, nil
}
