package managed

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"

	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/testkit"
)

// deployed is a deployment whose servers have the addresses on the network.
func deployed(network string, addresses ...string) Inventory {
	m := domain.Managed{Kind: domain.KindDeployment, Name: "web"}
	objects := map[uuid.UUID]Object{}
	for _, address := range addresses {
		member := domain.Member{ID: uuid.New()}
		m.Members = append(m.Members, member)
		objects[member.ID] = Object{State: ObjectReady, Raw: domain.Server{
			Name: "web", Status: "ACTIVE",
			Addresses: []domain.Address{{Network: network, IP: address, Version: 4, Type: "fixed"}},
		}}
	}
	return NewInventory([]domain.Managed{m}, objects)
}

// ports are the listeners of a load balancer with their members.
func ports(o Object) map[string]string {
	all := map[string]string{}
	for _, l := range o.Raw.(loadBalancer).Listeners {
		text := "no pool"
		if l.Pool != nil {
			text = l.Pool.Algorithm + " " + endpoints(l.Pool.Members)
		}
		all[listenerField(l.Protocol, l.Port)] = text
	}
	return all
}

func (s *sandbox) shows(t *testing.T, o Object, want map[string]string) {
	t.Helper()
	if diff := cmp.Diff(want, ports(o)); diff != "" {
		t.Error(diff)
	}
}

// oneByOne is a cloud whose Octavia takes no listeners with a load balancer, as some of its drivers do.
type oneByOne struct{ Cloud }

func (c oneByOne) CreateLoadBalancer(ctx context.Context, r domain.LoadBalancerRequest) (string, error) {
	if len(r.Listeners) > 0 {
		return "", apperr.New(apperr.Unsupported, "octavia: the provider does not support this")
	}
	return c.Cloud.CreateLoadBalancer(ctx, r)
}

func webSpec(network string) domain.BalancerSpec {
	return domain.BalancerSpec{Network: network, Listeners: []domain.ListenerSpec{
		{Protocol: "HTTP", Port: 80, MemberPort: 8080, Deployment: "web"},
		{Protocol: "TCP", Port: 5432, MemberPort: 5432, Addresses: []string{"192.0.2.7"}, Algorithm: "SOURCE_IP"},
	}}
}

// TestLongBalancerOneByOne: a driver of Octavia that takes no listeners with a load balancer gets them one after the
// other, and a process that begins again goes on where the last one ended.
func TestLongBalancerOneByOne(t *testing.T) {
	t.Parallel()
	network := testkit.Sandbox(t).Network
	s := newSandbox(t, NewBalancerDriver(), webSpec(network))
	s.Cloud = oneByOne{s.Cloud}
	s.in.Inventory = deployed(network, "192.0.2.1")
	id, err := s.driver.Create(t.Context(), s.Session, s.in)
	if err != nil {
		t.Fatal(err)
	}
	testkit.Eventually(t, time.Minute, "it can be changed", func() bool {
		o, _ := s.list(t)
		return o.State == ObjectIncomplete
	})
	s.driver = NewBalancerDriver()
	made, updates := s.settle(t)
	if made.ID != id || updates != 0 {
		t.Errorf("%d updates of %+v", updates, made)
	}
	s.shows(t, made, map[string]string{
		"listeners.http-80":  "ROUND_ROBIN 192.0.2.1:8080",
		"listeners.tcp-5432": "SOURCE_IP 192.0.2.7:5432",
	})
}

// counting counts the reads of members.
type counting struct {
	Cloud

	reads *int
}

func (c counting) PoolMembers(ctx context.Context, id string) ([]domain.PoolMember, error) {
	*c.reads++
	return c.Cloud.PoolMembers(ctx, id)
}

// TestMembersAreReadOnce: the pools of a load balancer that no one changes cost no calls.
func TestMembersAreReadOnce(t *testing.T) {
	t.Parallel()
	network := testkit.Sandbox(t).Network
	s := newSandbox(t, NewBalancerDriver(), domain.BalancerSpec{Network: network, Listeners: []domain.ListenerSpec{
		{Protocol: "UDP", Port: 53, MemberPort: 53, Addresses: []string{"192.0.2.1", "192.0.2.2"}},
	}})
	s.settle(t)
	reads := 0
	s.Cloud, s.driver = counting{s.Cloud, &reads}, NewBalancerDriver()
	for range 3 {
		o, _ := s.list(t)
		s.shows(t, o, map[string]string{"listeners.udp-53": "ROUND_ROBIN 192.0.2.1:53 192.0.2.2:53"})
	}
	if reads != 1 {
		t.Errorf("the members were read %d times", reads)
	}
}

// TestPoolMembers: which servers get requests, and at which address.
func TestPoolMembers(t *testing.T) {
	t.Parallel()
	inventory := deployed("private", "192.0.2.1", "192.0.2.2")
	web, _ := inventory.Resource(domain.KindDeployment, "web")
	change := func(f func(*domain.Server)) Inventory {
		a := NewInventory([]domain.Managed{web}, map[uuid.UUID]Object{})
		for n, m := range web.Members {
			o := inventory.objects[m.ID]
			if server := o.Raw.(domain.Server); n == 0 {
				f(&server)
				o.Raw = server
			}
			a.objects[m.ID] = o
		}
		return a
	}
	several := []domain.Address{
		{Network: "public", IP: "203.0.113.1", Version: 4, Type: "fixed"},
		{Network: "private", IP: "198.51.100.9", Version: 4, Type: "floating"},
		{Network: "private", IP: "2001:db8::1", Version: 6, Type: "fixed"},
		{Network: "private", IP: "192.0.2.9", Version: 4, Type: "fixed"},
	}
	for name, tc := range map[string]struct {
		inventory Inventory
		want      string
		wait      string
	}{
		"all":          {inventory, "192.0.2.1:80 192.0.2.2:80 192.0.2.77:80", ""},
		"restarted":    {change(func(s *domain.Server) { s.Status = "HARD_REBOOT" }), "192.0.2.1:80 192.0.2.2:80 192.0.2.77:80", ""},
		"stopped":      {change(func(s *domain.Server) { s.Status = "SHUTOFF" }), "192.0.2.2:80 192.0.2.77:80", ""},
		"no address":   {change(func(s *domain.Server) { s.Addresses = nil }), "192.0.2.2:80 192.0.2.77:80", ""},
		"several":      {change(func(s *domain.Server) { s.Addresses = several }), "192.0.2.2:80 192.0.2.77:80 192.0.2.9:80", ""},
		"other":        {change(func(s *domain.Server) { s.Addresses = several[:1] }), "192.0.2.2:80 192.0.2.77:80 203.0.113.1:80", ""},
		"a down cell":  {change(func(s *domain.Server) { s.Partial = true }), "", "ServersUnknown"},
		"no such name": {NewInventory(nil, nil), "", "Missing"},
	} {
		members, err := tc.inventory.poolMembers(domain.ListenerSpec{
			MemberPort: 80, Deployment: "web", Addresses: []string{"192.0.2.77"},
		}, "private")
		wait, _ := errors.AsType[WaitError](err)
		if endpoints(members) != tc.want || wait.Reason != tc.wait {
			t.Errorf("%s: %q %v", name, endpoints(members), err)
		}
	}
	refs := NewBalancerDriver().Needs(asJSON(t, domain.BalancerSpec{Listeners: []domain.ListenerSpec{
		{Deployment: "web", Machines: []string{"b", "a"}}, {Machines: []string{"a"}},
	}}))
	want := []Ref{{domain.KindMachine, "a"}, {domain.KindMachine, "b"}, {domain.KindDeployment, "web"}}
	if diff := cmp.Diff(want, refs); diff != "" {
		t.Error(diff)
	}
}
