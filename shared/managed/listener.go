package managed

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/domain"
)

const roundRobin = "ROUND_ROBIN"

// declaredListener is a listener with its pool as it is declared, without members.
func declaredListener(l domain.ListenerSpec) domain.Listener {
	return domain.Listener{
		Name: listenerName(l.Protocol, l.Port), Protocol: l.Protocol, Port: l.Port,
		Pool: &domain.ServerPool{Protocol: l.Protocol, Algorithm: cmp.Or(l.Algorithm, roundRobin)},
	}
}

// listenerField is the name of a listener in differences.
func listenerField(protocol string, port int) string {
	return fmt.Sprintf("listeners.%s-%d", strings.ToLower(protocol), port)
}

// Differences implements Driver.
func (*BalancerDriver) Differences(in Desired, o Object) []Difference {
	b, spec := raw[loadBalancer](o), read[domain.BalancerSpec](in.Spec)
	out := compare("name", in.Name, b.Name, InPlace)
	out = append(out, missing("tags", set(memberTags(in.Member.ID)), set(b.Tags))...)
	made := read[domain.BalancerSpec](in.Made.Spec)
	isSame := spec.Network == b.NetworkID || spec.Network == b.network
	if in.Made.Number != 0 && spec.Network != made.Network && !isSame {
		out = append(out, compare("network", spec.Network, b.network, Replace)...)
	}
	if spec.Address != "" {
		out = append(out, compare("address", spec.Address, b.Address, Replace)...)
	}
	out = append(out, compare(adminState, true, !b.IsOff, InPlace)...)
	return append(out, listenerDifferences(in, b)...)
}

// adminState is the field of what others have switched off: it is ACTIVE, and serves nothing. Members that others have
// switched off stay so, as they stay with the weight that others gave them: a server is drained that way.
const adminState = "admin_state_up"

// listenerDifferences compares all listeners. They are removed one after the other, in their order: first comes what is
// in the way of others, last what is not declared any more.
func listenerDifferences(in Desired, b loadBalancer) []Difference {
	declared := read[domain.BalancerSpec](in.Spec).Listeners
	out := unusedDifferences(declared, b)
	var last []Difference
	for _, l := range b.Listeners {
		isOurs := l.Name == listenerName(l.Protocol, l.Port)
		if !isOurs || slices.ContainsFunc(declared, func(other domain.ListenerSpec) bool {
			return other.Protocol == l.Protocol && other.Port == l.Port
		}) {
			continue
		}
		surplus := Difference{Field: listenerField(l.Protocol, l.Port), Actual: l.Protocol, Way: InPlace}
		if slices.ContainsFunc(declared, func(other domain.ListenerSpec) bool {
			return other.Port == l.Port && (other.Protocol == udp) == (l.Protocol == udp)
		}) {
			out = append(out, surplus)
		} else {
			last = append(last, surplus)
		}
	}
	for _, l := range declared {
		out = append(out, differencesOf(in, b, l)...)
	}
	return append(out, last...)
}

// udp has ports of its own; all other protocols share theirs.
const udp = "UDP"

// unusedDifferences are our pools that no listener has, because others have deleted it. One whose listener is to be
// made again is used for it.
func unusedDifferences(declared []domain.ListenerSpec, b loadBalancer) (out []Difference) {
	for _, pool := range b.Unused {
		isOurs := strings.HasPrefix(pool.Name, listenerPrefix)
		isToBeUsed := slices.ContainsFunc(declared, func(l domain.ListenerSpec) bool {
			_, isThere := listenerOf(b, listenerField(l.Protocol, l.Port))
			found, _ := unusedPool(b, declaredListener(l))
			return !isThere && found.ID == pool.ID
		})
		if isOurs && !isToBeUsed {
			out = append(out, Difference{Field: unusedField + pool.ID, Actual: pool.Name, Way: InPlace})
		}
	}
	return out
}

// unusedField is before the id of an unused pool in differences.
const unusedField = "pools."

// unusedPool is the pool that a listener had before others deleted it.
func unusedPool(b loadBalancer, l domain.Listener) (domain.ServerPool, bool) {
	return firstOf(b.Unused, func(p domain.ServerPool) bool {
		return p.Name == l.Name && p.Protocol == l.Pool.Protocol
	})
}

// differencesOf compares one listener.
func differencesOf(in Desired, b loadBalancer, l domain.ListenerSpec) []Difference {
	field, declared := listenerField(l.Protocol, l.Port), declaredListener(l)
	actual, ok := listenerOf(b, field)
	if !ok {
		return []Difference{{Field: field, Declared: l.Protocol, Way: InPlace}}
	}
	if actual.Pool == nil {
		return []Difference{{Field: field + ".pool", Declared: declared.Pool.Algorithm, Way: InPlace}}
	}
	out := compare(field+"."+adminState, true, !actual.IsOff, InPlace)
	out = append(out, compare(field+".pool."+adminState, true, !actual.Pool.IsOff, InPlace)...)
	out = append(out, compare(field+".algorithm", declared.Pool.Algorithm, actual.Pool.Algorithm, InPlace)...)
	members, err := in.Inventory.poolMembers(l, b.network)
	if err != nil { // they are not known at the moment
		return out
	}
	out = append(out, compare(field+".members", endpoints(members), endpoints(actual.Pool.Members), InPlace)...)
	if all := statusesOf(actual); slices.ContainsFunc(all, isPending) { // with those that are ACTIVE: they are progress
		out = append(out, compare(field+".state", active, strings.Join(all, ", "), InPlace)...)
	}
	for i := range out {
		out[i].Follows = out[i].Field == field+".members" || out[i].Field == field+".state"
	}
	return out
}

// active is Octavia's provisioning status of what serves.
const active = "ACTIVE"

func isPending(status string) bool { return strings.HasPrefix(status, "PENDING_") }

// statusesOf are the provisioning statuses of a listener, its pool and the pool's members.
func statusesOf(l domain.Listener) []string {
	all := []string{l.Status}
	if l.Pool != nil {
		all = append(all, l.Pool.Status)
		for _, m := range l.Pool.Members {
			all = append(all, m.Status)
		}
	}
	return all
}

// statuses are those of our listeners, by their names.
func statuses(b loadBalancer) map[string][]string {
	all := map[string][]string{}
	for _, l := range b.Listeners {
		if strings.HasPrefix(l.Name, listenerPrefix) {
			all[l.Name] = statusesOf(l)
		}
	}
	return all
}

// partsInError says which of our listeners does not work although its load balancer is ACTIVE; "" = none.
func partsInError(b loadBalancer) string {
	for name, all := range statuses(b) {
		if slices.Contains(all, "ERROR") {
			return "Octavia's status of the listener " + strings.TrimPrefix(name, listenerPrefix) +
				", its pool or a member is ERROR"
		}
	}
	return ""
}

func listenerOf(b loadBalancer, field string) (domain.Listener, bool) {
	return firstOf(b.Listeners, func(l domain.Listener) bool { return listenerField(l.Protocol, l.Port) == field })
}

// endpoints is a list of members as text.
func endpoints(members []domain.PoolMember) string {
	all := make([]string, len(members))
	for i, m := range members {
		all[i] = fmt.Sprintf("%s:%d", m.Address, m.Port)
		if address, err := netip.ParseAddr(m.Address); err == nil {
			all[i] = netip.AddrPortFrom(address, uint16(m.Port)).String()
		}
	}
	slices.Sort(all)
	return strings.Join(all, " ")
}

// Update implements Driver. Octavia takes one change of a load balancer at a time, so it removes the first difference
// only: the next one is removed when the load balancer is ACTIVE again.
func (*BalancerDriver) Update(ctx context.Context, s Session, in Desired, o Object, differences []Difference) error {
	b, first := raw[loadBalancer](o), differences[0]
	change := func() error { return changeListener(ctx, s, in, b, first) }
	if first.Field == adminState {
		change = func() error { return s.Cloud.EnableLoadBalancer(ctx, o.ID) }
	}
	if first.Field == "name" || first.IsMark {
		change = func() error {
			marks, _ := changes("tags", differences)
			tags, name := slices.Concat(b.Tags, slices.Sorted(maps.Keys(marks))), b.Name
			if differs(differences, "name") {
				name = in.Name
			}
			return s.Cloud.RenameLoadBalancer(ctx, o.ID, name, tags)
		}
	}
	err := change()
	if isBusy(err) {
		return Waits("Busy", "%s", apperr.As(err).Message)
	}
	return err
}

// isBusy reports whether Octavia has refused a change only because the last one is not done. Other conflicts stay, such
// as a port that another listener has.
func isBusy(err error) bool {
	return apperr.CodeOf(err) == apperr.Conflict && strings.Contains(apperr.As(err).Message, "immutable")
}

func changeListener(ctx context.Context, s Session, in Desired, b loadBalancer, d Difference) error {
	for _, l := range read[domain.BalancerSpec](in.Spec).Listeners {
		field, declared := listenerField(l.Protocol, l.Port), declaredListener(l)
		actual, _ := listenerOf(b, field)
		switch d.Field {
		case field:
			if pool, ok := unusedPool(b, declared); ok {
				declared.Pool.ID = pool.ID
			}
			return s.Cloud.AddListener(ctx, b.ID, declared)
		case field + ".pool":
			declared.ID = actual.ID
			return s.Cloud.AddPool(ctx, declared)
		case field + "." + adminState:
			return s.Cloud.EnableListener(ctx, actual.ID)
		case field + ".pool." + adminState:
			return s.Cloud.EnablePool(ctx, actual.Pool.ID)
		case field + ".algorithm":
			return s.Cloud.SetPoolAlgorithm(ctx, actual.Pool.ID, declared.Pool.Algorithm)
		case field + ".members":
			members, err := in.Inventory.poolMembers(l, b.network)
			switch {
			case err != nil:
				return err
			case actual.Pool.Status != active:
				return s.Cloud.SetPoolAlgorithm(ctx, actual.Pool.ID, actual.Pool.Algorithm)
			}
			return s.Cloud.SetPoolMembers(ctx, actual.Pool.ID, members)
		case field + ".state":
			// Octavia 11 leaves PENDING what was made with its load balancer. A change that changes nothing makes it
			// ACTIVE: of the pool first, which takes no other members before.
			if actual.Status == active && actual.Pool.Status == active {
				return s.Cloud.SetPoolMembers(ctx, actual.Pool.ID, actual.Pool.Members)
			}
			return s.Cloud.SetPoolAlgorithm(ctx, actual.Pool.ID, actual.Pool.Algorithm)
		}
	}
	if id, ok := strings.CutPrefix(d.Field, unusedField); ok {
		return s.Cloud.DeletePool(ctx, id)
	}
	surplus, ok := listenerOf(b, d.Field)
	switch {
	case !ok:
		return nil
	case surplus.Pool != nil: // first, because nothing would find it without its listener
		return s.Cloud.DeletePool(ctx, surplus.Pool.ID)
	}
	return s.Cloud.DeleteListener(ctx, surplus.ID)
}

// notServing are the statuses of servers that get no requests. A server that is restarted or moved stays a member.
var notServing = []string{
	"BUILD", "DELETED", "ERROR", "PAUSED", "RESCUE", "SHELVED", "SHELVED_OFFLOADED", "SHUTOFF", "SOFT_DELETED",
	"SUSPENDED",
}

// poolMembers are the members that a listener should have, sorted by address. It waits while a resource is missing, or
// while Nova does not know the addresses of a server because its cell is down.
func (a Inventory) poolMembers(l domain.ListenerSpec, network string) ([]domain.PoolMember, error) {
	byAddress := map[string]domain.PoolMember{}
	add := func(name, address string) {
		byAddress[address] = domain.PoolMember{Name: name, Address: address, Port: l.MemberPort}
	}
	for _, address := range l.Addresses {
		add("", address)
	}
	for _, ref := range targets(l) {
		m, ok := a.Resource(ref.Kind, ref.Name)
		if !ok {
			return nil, Waits("Missing", "%s does not exist", ref)
		}
		for _, o := range a.Objects(m) {
			server, ok := o.Raw.(domain.Server)
			switch {
			case !ok || server.Partial:
				return nil, Waits("ServersUnknown", "Nova does not show the addresses of server %s", o.ID)
			case slices.Contains(notServing, server.Status):
			default:
				if address := serverAddress(server, network); address != "" {
					add(server.Name, address)
				}
			}
		}
	}
	members := make([]domain.PoolMember, 0, len(byAddress))
	for _, m := range byAddress {
		members = append(members, m)
	}
	slices.SortFunc(members, func(a, b domain.PoolMember) int { return strings.Compare(a.Address, b.Address) })
	return members, nil
}

// serverAddress chooses a fixed address of a server: the first one on the load balancer's network, or else the first
// one; IPv4 before IPv6.
func serverAddress(server domain.Server, network string) string {
	best, rank := "", 0
	for _, a := range server.Addresses {
		now := 1
		if a.Network == network {
			now += 2
		}
		if a.Version == 4 { //nolint:mnd // IPv4
			now++
		}
		if a.Type == "fixed" && now > rank {
			best, rank = a.IP, now
		}
	}
	return best
}
