package managed

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"github.com/google/uuid"
	lru "github.com/hashicorp/golang-lru/v2"
	"golang.org/x/sync/errgroup"

	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/lookup"
)

// BalancerCloud is the part of OpenStack that load balancers need.
type BalancerCloud interface {
	NetworkNames(ctx context.Context) ([]domain.Network, error)
	LoadBalancers(ctx context.Context, projectID, tag string) ([]domain.LoadBalancer, error)
	LoadBalancer(ctx context.Context, projectID, id string) (domain.LoadBalancer, error)
	PoolMembers(ctx context.Context, poolID string) ([]domain.PoolMember, error)
	CreateLoadBalancer(ctx context.Context, r domain.LoadBalancerRequest) (id string, err error)
	RenameLoadBalancer(ctx context.Context, id, name string, tags []string) error
	EnableLoadBalancer(ctx context.Context, id string) error
	EnableListener(ctx context.Context, id string) error
	EnablePool(ctx context.Context, id string) error
	AddListener(ctx context.Context, balancerID string, l domain.Listener) error
	DeleteListener(ctx context.Context, id string) error
	AddPool(ctx context.Context, l domain.Listener) error
	SetPoolAlgorithm(ctx context.Context, id, algorithm string) error
	SetPoolMembers(ctx context.Context, id string, members []domain.PoolMember) error
	DeletePool(ctx context.Context, id string) error
	DeleteLoadBalancer(ctx context.Context, id string) error
}

// BalancerDriver makes load balancers of Octavia. Their mark is a tag.
type BalancerDriver struct {
	members  *lru.Cache[string, domain.PoolMember] // that are ACTIVE, by id: a member never changes its address
	networks *lru.Cache[string, string]            // names by id
}

const (
	maxPoolMembers = 50_000
	maxNetworks    = 1_000
	poolCalls      = 4 // at a time
)

// incompleteTag is on a load balancer whose listeners are made one by one, until all of them are there.
const incompleteTag = "cloudfn:incomplete"

// NewBalancerDriver returns a driver with empty caches.
func NewBalancerDriver() *BalancerDriver {
	members, _ := lru.New[string, domain.PoolMember](maxPoolMembers) // it fails for no size only
	networks, _ := lru.New[string, string](maxNetworks)
	return &BalancerDriver{members: members, networks: networks}
}

// loadBalancer is a load balancer with the name of its network.
type loadBalancer struct {
	domain.LoadBalancer

	network string
}

// Kinds implements Driver.
func (*BalancerDriver) Kinds() []domain.Kind { return []domain.Kind{domain.KindBalancer} }

// Needs implements Driver.
func (*BalancerDriver) Needs(spec json.RawMessage) []Ref {
	var all []Ref
	for _, l := range read[domain.BalancerSpec](spec).Listeners {
		all = append(all, targets(l)...)
	}
	slices.SortFunc(all, func(a, b Ref) int { return strings.Compare(a.String(), b.String()) })
	return slices.Compact(all)
}

// targets are the resources whose servers a listener balances.
func targets(l domain.ListenerSpec) []Ref {
	var all []Ref
	if l.Deployment != "" {
		all = append(all, Ref{domain.KindDeployment, l.Deployment})
	}
	if l.Pods != "" {
		all = append(all, Ref{domain.KindPodDeployment, l.Pods})
	}
	for _, name := range l.Machines {
		all = append(all, Ref{domain.KindMachine, name})
	}
	return all
}

// List implements Driver. Besides the listing it reads the members of each pool that has one that is not in the cache.
func (d *BalancerDriver) List(
	ctx context.Context, s Session, members []domain.Member,
) (map[uuid.UUID]Object, error) {
	all, err := s.Cloud.LoadBalancers(ctx, s.ProjectID, markTag)
	if err != nil || len(all) == 0 {
		return nil, err
	}
	objects, err := d.objects(ctx, s, all)
	found := map[uuid.UUID][]Object{}
	for i, o := range objects {
		if member, ok := taggedMember(all[i].Tags); ok {
			found[member] = append(found[member], o)
		}
	}
	return byMark(found, members), err
}

// Find implements Driver.
func (d *BalancerDriver) Find(ctx context.Context, s Session, id string) (Object, error) {
	b, err := s.Cloud.LoadBalancer(ctx, s.ProjectID, id)
	if err != nil {
		return Object{}, err
	}
	objects, err := d.objects(ctx, s, []domain.LoadBalancer{b})
	if err != nil {
		return Object{}, err
	}
	return objects[0], nil
}

// objects are load balancers with the members of their pools and the names of their networks.
func (d *BalancerDriver) objects(ctx context.Context, s Session, all []domain.LoadBalancer) ([]Object, error) {
	if err := d.readMembers(ctx, s, all); err != nil {
		return nil, ofAnother(err)
	}
	if err := d.readNetworks(ctx, s, all); err != nil {
		return nil, ofAnother(err)
	}
	objects := make([]Object, len(all))
	for i, b := range all {
		network, _ := d.networks.Get(b.NetworkID)
		objects[i] = balancerObject(loadBalancer{b, network})
	}
	return objects, nil
}

// readMembers fills in the members of all pools.
func (d *BalancerDriver) readMembers(ctx context.Context, s Session, all []domain.LoadBalancer) error {
	pools := map[string]*domain.ServerPool{} // listeners may share one
	for _, b := range all {
		for _, l := range b.Listeners {
			if l.Pool != nil && !d.fill(l.Pool) {
				pools[l.Pool.ID] = l.Pool
			}
		}
	}
	calls, ctx := errgroup.WithContext(ctx)
	calls.SetLimit(poolCalls)
	for _, pool := range pools {
		calls.Go(func() error {
			found, err := s.Cloud.PoolMembers(ctx, pool.ID)
			for _, m := range found {
				if m.Status == active { // others are read again until they are
					d.members.Add(m.ID, m)
				}
			}
			pool.Members = found
			if apperr.CodeOf(err) == apperr.NotFound { // it was deleted meanwhile
				return nil
			}
			return err
		})
	}
	return calls.Wait()
}

// fill takes the members of a pool from the cache, if it has all of them.
func (d *BalancerDriver) fill(pool *domain.ServerPool) bool {
	members := make([]domain.PoolMember, len(pool.MemberIDs))
	for i, id := range pool.MemberIDs {
		m, ok := d.members.Get(id)
		if !ok {
			return false
		}
		members[i] = m
	}
	pool.Members = members
	return true
}

// readNetworks reads the names of networks, if one is not in the cache.
func (d *BalancerDriver) readNetworks(ctx context.Context, s Session, all []domain.LoadBalancer) error {
	if !slices.ContainsFunc(all, func(b domain.LoadBalancer) bool { return !d.networks.Contains(b.NetworkID) }) {
		return nil
	}
	found, err := s.Cloud.NetworkNames(ctx)
	for _, b := range all { // one that the project does not see has no name
		d.networks.Add(b.NetworkID, "")
	}
	for _, n := range found {
		d.networks.Add(n.ID, n.Name)
	}
	return err
}

func balancerObject(b loadBalancer) Object {
	o := Object{
		ID: b.ID, Name: b.Name, State: ObjectWorking, CreatedAt: b.CreatedAt, Raw: b, Keep: true,
		Phase: "Octavia's status of the load balancer is " + b.Status, ChangedAt: b.UpdatedAt,
	}
	switch b.Status {
	case active:
		o.State, o.Reason = ObjectReady, partsInError(b)
		if slices.Contains(b.Tags, incompleteTag) {
			o.State = ObjectIncomplete
			o.Phase += fmt.Sprintf(", with %v", statuses(b)) // each step of its completion changes them
		}
	case "ERROR":
		o.State, o.Reason = ObjectError, o.Phase
	case "PENDING_DELETE", "DELETED":
		o.State = ObjectDeleting
	}
	return o
}

// Create implements Driver.
func (d *BalancerDriver) Create(ctx context.Context, s Session, in Desired) (string, error) {
	if in.Member.ObjectID != "" { // it is incomplete
		o, err := d.Find(ctx, s, in.Member.ObjectID)
		if err == nil && o.State == ObjectIncomplete {
			err = d.complete(ctx, s, in, o)
		}
		return in.Member.ObjectID, err
	}
	made, err := s.Cloud.LoadBalancers(ctx, s.ProjectID, memberTag(in.Member.ID))
	if err != nil {
		return "", unsent(err)
	}
	for _, b := range made {
		if balancerObject(loadBalancer{LoadBalancer: b}).State != ObjectDeleting {
			in.found()
			return b.ID, nil // the next pass completes it
		}
	}
	return d.begin(ctx, s, in)
}

// begin makes the load balancer with everything in one call, or without its listeners if the driver of Octavia does not
// take them.
func (d *BalancerDriver) begin(ctx context.Context, s Session, in Desired) (string, error) {
	spec := read[domain.BalancerSpec](in.Spec)
	networks, err := s.Cloud.NetworkNames(ctx)
	if err != nil {
		return "", unsent(err)
	}
	chosen, err := lookup.PickNetworks(networks, []lookup.Ref{{Field: "spec.network", Value: spec.Network}})
	if err != nil {
		return "", unsent(err)
	}
	n := slices.IndexFunc(networks, func(n domain.Network) bool { return n.ID == chosen[0].Value })
	request := domain.LoadBalancerRequest{
		Name: in.Name, NetworkID: networks[n].ID, Address: spec.Address, Tags: memberTags(in.Member.ID),
	}
	for _, l := range spec.Listeners {
		one := declaredListener(l)
		if one.Pool.Members, err = in.Inventory.poolMembers(l, networks[n].Name); err != nil {
			return "", unsent(err)
		}
		request.Listeners = append(request.Listeners, one)
	}
	id, err := s.Cloud.CreateLoadBalancer(ctx, request)
	if apperr.CodeOf(err) != apperr.Unsupported || len(request.Listeners) == 0 {
		return sent(id, err)
	}
	request.Listeners, request.Tags = nil, append(request.Tags, incompleteTag)
	return sent(s.Cloud.CreateLoadBalancer(ctx, request))
}

// complete takes the next step of a load balancer that was begun without its listeners.
func (d *BalancerDriver) complete(ctx context.Context, s Session, in Desired, o Object) error {
	if left := listenerDifferences(in, raw[loadBalancer](o)); len(left) > 0 {
		return d.Update(ctx, s, in, o, left)
	}
	return s.Cloud.RenameLoadBalancer(ctx, o.ID, in.Name, memberTags(in.Member.ID))
}

// Delete implements Driver.
func (*BalancerDriver) Delete(ctx context.Context, s Session, o Object) error {
	if o.State == ObjectDeleting {
		return nil
	}
	return waitsOn(s.Cloud.DeleteLoadBalancer(ctx, o.ID), "Busy", apperr.Conflict)
}

// listenerName tells our listeners from others' on a load balancer.
func listenerName(protocol string, port int) string {
	return fmt.Sprintf("%s%s-%d", listenerPrefix, strings.ToLower(protocol), port)
}

// listenerPrefix begins the names of our listeners and their pools.
const listenerPrefix = "cloudfn-"
