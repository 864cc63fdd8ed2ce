package managed

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"

	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/testkit"
)

// recorded is a cloud that records the changes of load balancers, and how many of them Octavia has refused.
type recorded struct {
	Cloud

	mu      sync.Mutex
	changes []string
	refused int
}

func (r *recorded) add(change string, err error) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if err != nil {
		r.refused++
	}
	r.changes = append(r.changes, change)
	return err
}

func (r *recorded) AddListener(ctx context.Context, balancerID string, l domain.Listener) error {
	return r.add("add listener "+l.Name, r.Cloud.AddListener(ctx, balancerID, l))
}

func (r *recorded) DeleteListener(ctx context.Context, id string) error {
	return r.add("delete listener "+id, r.Cloud.DeleteListener(ctx, id))
}

func (r *recorded) AddPool(ctx context.Context, l domain.Listener) error {
	return r.add("add pool "+l.Name, r.Cloud.AddPool(ctx, l))
}

func (r *recorded) SetPoolAlgorithm(ctx context.Context, id, algorithm string) error {
	return r.add("set algorithm "+id, r.Cloud.SetPoolAlgorithm(ctx, id, algorithm))
}

func (r *recorded) SetPoolMembers(ctx context.Context, id string, members []domain.PoolMember) error {
	return r.add("set members "+id, r.Cloud.SetPoolMembers(ctx, id, members))
}

func (r *recorded) DeletePool(ctx context.Context, id string) error {
	return r.add("delete pool "+id, r.Cloud.DeletePool(ctx, id))
}

// taken returns the changes since the last call. None may have been refused: each waits for the one before.
func (r *recorded) taken(t *testing.T) []string {
	t.Helper()
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.refused > 0 {
		t.Errorf("Octavia has refused %d of %q", r.refused, r.changes)
	}
	changes := r.changes
	r.changes = nil
	return changes
}

// part is a listener with what hangs off it, by id.
type part struct {
	Listener, Pool string
	Members        map[string]string // by address
}

func parts(o Object) map[string]part {
	all := map[string]part{}
	for _, l := range o.Raw.(loadBalancer).Listeners {
		p := part{Listener: l.ID, Pool: l.Pool.ID, Members: map[string]string{}}
		for _, m := range l.Pool.Members {
			p.Members[m.Address] = m.ID
		}
		all[listenerField(l.Protocol, l.Port)] = p
	}
	return all
}

func listenerTo(protocol string, port int, addresses ...string) domain.ListenerSpec {
	return domain.ListenerSpec{Protocol: protocol, Port: port, MemberPort: port, Addresses: addresses}
}

// TestLongListenersOneByOne: a change of one listener leaves the others, their pools and their members as they are.
// Each step waits until the load balancer is ACTIVE, and takes what has to change only.
func TestLongListenersOneByOne(t *testing.T) {
	t.Parallel()
	spec := domain.BalancerSpec{Network: testkit.Sandbox(t).Network, Listeners: []domain.ListenerSpec{
		listenerTo("HTTP", 80, "192.0.2.1", "192.0.2.2"), listenerTo("TCP", 5432, "192.0.2.7"),
		listenerTo("UDP", 5432, "192.0.2.8"),
	}}
	s := newSandbox(t, NewBalancerDriver(), spec)
	calls := &recorded{Cloud: s.Cloud}
	s.Cloud = calls
	made, _ := s.settle(t)
	before := parts(made)
	calls.taken(t)

	// members and algorithm of one, the protocol of another, the third stays
	spec.Listeners = []domain.ListenerSpec{
		listenerTo("UDP", 5432, "192.0.2.8"), listenerTo("HTTP", 5432, "192.0.2.7"),
		listenerTo("HTTP", 80, "192.0.2.2", "192.0.2.3"),
	}
	spec.Listeners[2].Algorithm = "SOURCE_IP"
	s.declare(t, spec)
	s.differ(t, made, "listeners.tcp-5432 in_place", "listeners.http-5432 in_place",
		"listeners.http-80.algorithm in_place", "listeners.http-80.members in_place")
	changed, _ := s.settle(t)
	after := parts(changed)
	want := []string{
		"delete pool " + before["listeners.tcp-5432"].Pool, "delete listener " + before["listeners.tcp-5432"].Listener,
		"add listener cloudfn-http-5432", "add pool cloudfn-http-5432",
		"set members " + after["listeners.http-5432"].Pool,
		"set algorithm " + before["listeners.http-80"].Pool, "set members " + before["listeners.http-80"].Pool,
	}
	if diff := cmp.Diff(want, calls.taken(t)); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff(before["listeners.udp-5432"], after["listeners.udp-5432"]); diff != "" {
		t.Errorf("a listener that no one has changed: %s", diff)
	}
	old, now := before["listeners.http-80"], after["listeners.http-80"]
	if changed.ID != made.ID || old.Listener != now.Listener || old.Pool != now.Pool ||
		old.Members["192.0.2.2"] != now.Members["192.0.2.2"] {
		t.Errorf("a listener that was changed: %+v was %+v", now, old)
	}
	s.shows(t, changed, map[string]string{
		"listeners.http-80":   "SOURCE_IP 192.0.2.2:80 192.0.2.3:80",
		"listeners.http-5432": "ROUND_ROBIN 192.0.2.7:5432",
		"listeners.udp-5432":  "ROUND_ROBIN 192.0.2.8:5432",
	})
}

// active waits until the load balancer can be changed.
func (s *sandbox) active(t *testing.T) (o Object) {
	t.Helper()
	testkit.Eventually(t, settleFor, "the load balancer is ACTIVE", func() bool {
		o, _ = s.list(t)
		return o.State == ObjectReady
	})
	return o
}

// TestLongNewBalancerServes: Octavia 11 leaves PENDING_CREATE what it makes with a load balancer. A new one is as
// declared when all of it is ACTIVE, and keeps then what others set of its members when the list of them changes.
func TestLongNewBalancerServes(t *testing.T) {
	t.Parallel()
	spec := domain.BalancerSpec{Network: testkit.Sandbox(t).Network, Listeners: []domain.ListenerSpec{
		listenerTo("TCP", 80, "192.0.2.1", "192.0.2.2"), listenerTo("TCP", 81, "192.0.2.1"),
	}}
	s := newSandbox(t, NewBalancerDriver(), spec)
	made, _ := s.settle(t)
	if all := fmt.Sprint(statuses(raw[loadBalancer](made))); strings.Contains(all, "PENDING") {
		t.Errorf("it counts as declared with %s", all)
	}

	octavia, pool := s.project.Service(t, "octavia"), parts(made)["listeners.tcp-80"]
	for address, change := range map[string]map[string]any{
		"192.0.2.1": {"weight": 0, "monitor_port": 8080}, "192.0.2.2": {"admin_state_up": false, "backup": true},
	} {
		path := "pools/" + pool.Pool + "/members/" + pool.Members[address]
		if status := octavia.Do(t, "PUT", "lbaas/"+path, map[string]any{"member": change}); status != 200 {
			t.Fatalf("%s: %d", path, status)
		}
		made = s.active(t)
	}
	s.differ(t, made)
	spec.Listeners[0].Addresses = []string{"192.0.2.1", "192.0.2.2", "192.0.2.3"}
	s.declare(t, spec)
	changed, updates := s.settle(t)
	s.shows(t, changed, map[string]string{
		"listeners.tcp-80": "ROUND_ROBIN 192.0.2.1:80 192.0.2.2:80 192.0.2.3:80",
		"listeners.tcp-81": "ROUND_ROBIN 192.0.2.1:81",
	})
	if updates != 1 {
		t.Errorf("it took %d updates", updates)
	}
	type poolMember struct {
		Address     string `json:"address"`
		Weight      int    `json:"weight"`
		Backup      bool   `json:"backup"`
		IsUp        bool   `json:"admin_state_up"`
		MonitorPort int    `json:"monitor_port"`
	}
	var found struct {
		Members []poolMember `json:"members"`
	}
	octavia.Get(t, "lbaas/pools/"+pool.Pool+"/members", &found)
	slices.SortFunc(found.Members, func(a, b poolMember) int { return strings.Compare(a.Address, b.Address) })
	want := []poolMember{
		{"192.0.2.1", 0, false, true, 8080}, {"192.0.2.2", 1, true, false, 0}, {"192.0.2.3", 1, false, true, 0},
	}
	if diff := cmp.Diff(want, found.Members); diff != "" {
		t.Error(diff)
	}
}

// TestLongSwitchedOff: a load balancer, a listener or a pool that others switch off serves nothing. It is drift, and is
// switched on again.
func TestLongSwitchedOff(t *testing.T) {
	t.Parallel()
	spec := domain.BalancerSpec{Network: testkit.Sandbox(t).Network, Listeners: []domain.ListenerSpec{
		listenerTo("TCP", 80, "192.0.2.1"), listenerTo("TCP", 81, "192.0.2.1"),
	}}
	s := newSandbox(t, NewBalancerDriver(), spec)
	made, _ := s.settle(t)
	octavia, all := s.project.Service(t, "octavia"), parts(made)
	for path, kind := range map[string]string{
		"loadbalancers/" + made.ID:                      "loadbalancer",
		"listeners/" + all["listeners.tcp-80"].Listener: "listener",
		"pools/" + all["listeners.tcp-81"].Pool:         "pool",
	} {
		change := map[string]any{kind: map[string]any{"admin_state_up": false}}
		if status := octavia.Do(t, "PUT", "lbaas/"+path, change); status != 200 {
			t.Fatalf("%s: %d", path, status)
		}
		made = s.active(t)
	}
	s.differ(t, made, "admin_state_up in_place", "listeners.tcp-80.admin_state_up in_place",
		"listeners.tcp-81.pool.admin_state_up in_place")
	for _, d := range s.driver.Differences(s.in, made) {
		if d.Follows || d.Declared != true || d.Actual != false {
			t.Errorf("it is no drift: %+v", d)
		}
	}
	if made, updates := s.settle(t); updates != 3 || !cmp.Equal(parts(made), all) {
		t.Errorf("after %d updates there are %+v, before %+v", updates, parts(made), all)
	}
}

// TestPartsOfABalancer: a load balancer whose listener, pool or member is in ERROR is ready and does not work. One that
// is not ACTIVE yet says so.
func TestPartsOfABalancer(t *testing.T) {
	t.Parallel()
	spec := domain.BalancerSpec{Listeners: []domain.ListenerSpec{listenerTo("TCP", 80, "192.0.2.1")}}
	in, traces := Desired{Spec: asJSON(t, spec)}, map[string]bool{}
	for _, status := range []string{"ACTIVE", "ERROR", "PENDING_CREATE", "PENDING_UPDATE"} {
		for part := range 3 {
			all := []string{active, active, active}
			all[part] = status
			b := domain.LoadBalancer{Status: active, Tags: memberTags(uuid.Nil), Listeners: []domain.Listener{{
				Name: "cloudfn-tcp-80", Protocol: "TCP", Port: 80, Status: all[0],
				Pool: &domain.ServerPool{Status: all[1], Algorithm: roundRobin, Members: []domain.PoolMember{
					{Address: "192.0.2.1", Port: 80, Status: all[2]},
				}},
			}}}
			o := balancerObject(loadBalancer{LoadBalancer: b})
			differences := NewBalancerDriver().Differences(in, o)
			isPending := len(differences) == 1 && differences[0].Actual == strings.Join(all, ", ") &&
				differences[0].Follows
			if isPending != strings.HasPrefix(status, "PENDING") || (o.Reason != "") != (status == "ERROR") ||
				o.State != ObjectReady {
				t.Errorf("%s: %+v, %+v", all, o, differences)
			}
			traces[observed{object: o, differences: differences}.trace()] = true
		}
	}
	if len(traces) != 7 { // nothing is PENDING, or one of three parts in one of two statuses
		t.Errorf("a part that becomes ACTIVE is no progress: there are %d traces", len(traces))
	}
}

// renaming notes how load balancers are renamed.
type renaming struct {
	Cloud

	name string
	tags []string
}

func (r *renaming) RenameLoadBalancer(_ context.Context, _, name string, tags []string) error {
	r.name, r.tags = name, tags
	return nil
}

// TestMarkOfRenamedBalancer: a mark is put back, and the name that others have given stays until it is repaired.
func TestMarkOfRenamedBalancer(t *testing.T) {
	t.Parallel()
	for repairs, want := range map[bool]string{false: "theirs", true: "thing"} {
		b := domain.LoadBalancer{ID: "b", Name: "theirs", Status: active, Tags: []string{"other"}}
		s := observed{member: domain.Member{ID: uuid.New(), Revision: 1, Status: domain.MemberReady, WasReady: true}}
		in := Desired{Name: "thing", Spec: []byte("{}"), Member: s.member}
		driver, octavia := NewBalancerDriver(), &renaming{}
		s.object, s.isFound = balancerObject(loadBalancer{LoadBalancer: b}), true
		s.differences = driver.Differences(in, s.object)
		p := decide(target{count: 1, revision: 1, repairs: repairs}, []observed{s}, testNow)
		if stepsOf(p) != "update 0" {
			t.Fatalf("it takes the steps %q", stepsOf(p))
		}
		err := driver.Update(t.Context(), Session{Cloud: octavia}, in, s.object, p.steps[0].differences)
		if err != nil || octavia.name != want || len(octavia.tags) != 3 {
			t.Errorf("repair %t: it is named %q, with the tags %q: %v", repairs, octavia.name, octavia.tags, err)
		}
	}
}

// TestLongBusyBalancer: a change that comes too early waits, and a port that is taken for good is a failure that is
// shown.
func TestLongBusyBalancer(t *testing.T) {
	t.Parallel()
	spec := domain.BalancerSpec{Network: testkit.Sandbox(t).Network, Listeners: []domain.ListenerSpec{
		listenerTo("TCP", 80, "192.0.2.1"),
	}}
	s := newSandbox(t, NewBalancerDriver(), spec)
	made, _ := s.settle(t)
	foreign := domain.Listener{Name: "others", Protocol: "TCP", Port: 81}
	if err := s.Cloud.AddListener(t.Context(), made.ID, foreign); err != nil {
		t.Fatal(err)
	}
	for n := range 5 { // without a pause, so that some of them are too early
		spec.Listeners[0].Algorithm = []string{"SOURCE_IP", "LEAST_CONNECTIONS"}[n%2]
		s.declare(t, spec)
		err := s.driver.Update(t.Context(), s.Session, s.in, made, s.driver.Differences(s.in, made))
		if wait, isWait := errors.AsType[WaitError](err); err != nil && (!isWait || wait.Reason != "Busy") {
			t.Errorf("too early: %v", err)
		}
	}
	made = s.active(t)
	if fields := fmt.Sprint(ports(made)); !strings.Contains(fields, "tcp-81") {
		t.Errorf("the listeners are %s", fields)
	}
	spec.Listeners = append(spec.Listeners, listenerTo("HTTP", 81, "192.0.2.1"))
	s.declare(t, spec)
	left := slices.DeleteFunc(s.driver.Differences(s.in, made), func(d Difference) bool {
		return d.Field != "listeners.http-81"
	})
	err := s.driver.Update(t.Context(), s.Session, s.in, made, left)
	if apperr.CodeOf(err) != apperr.Conflict {
		t.Errorf("a port that others have: %v", err)
	}
}
