package orders_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/cloudfn/cloudfn/shared/actions"
	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/orders"
	"github.com/cloudfn/cloudfn/shared/postgres"
)

// mortal is a process that dies at one of its calls that change something, before or after that has worked.
type mortal struct {
	kill  context.CancelFunc
	at    int // which of its calls; 0 = none
	after bool

	mu     sync.Mutex
	calls  []string
	isDead bool
}

var errDead = errors.New("the process is dead")

func (m *mortal) do(name string, call func() error) error {
	m.mu.Lock()
	if m.isDead {
		m.mu.Unlock()
		return errDead
	}
	m.calls = append(m.calls, name)
	m.isDead = len(m.calls) == m.at
	dies := m.isDead
	m.mu.Unlock()
	if !dies {
		return call()
	}
	if m.after {
		_ = call()
	}
	m.kill()
	return errDead
}

// mortalStore and mortalInstances are the database of a mortal process.
type mortalStore struct {
	postgres.Orders
	*mortal
}

func (s mortalStore) Renew(ctx context.Context, o domain.Order, c domain.Claim, d time.Duration) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.isDead {
		return errDead
	}
	return s.Orders.Renew(ctx, o, c, d) // when, is the clock's
}

func (s mortalStore) Release(ctx context.Context, o domain.Order, c domain.Claim) error {
	return s.do("store release", func() error { return s.Orders.Release(ctx, o, c) })
}

func (s mortalStore) BeginCall(
	ctx context.Context, o domain.Order, c domain.Claim, call domain.CreateCall, claimFor, fence time.Duration,
) error {
	return s.do("store call", func() error { return s.Orders.BeginCall(ctx, o, c, call, claimFor, fence) })
}

func (s mortalStore) Decide(ctx context.Context, c domain.Claim, i domain.Instance) error {
	return s.do("store server", func() error { return s.Orders.Decide(ctx, c, i) })
}

func (s mortalStore) RecordVolumes(ctx context.Context, o domain.Order, c domain.Claim, id uuid.UUID) error {
	return s.do("store volumes", func() error { return s.Orders.RecordVolumes(ctx, o, c, id) })
}

func (s mortalStore) RecordGroups(
	ctx context.Context, o domain.Order, c domain.Claim, id uuid.UUID, g domain.PortGroups,
) error {
	return s.do("store groups", func() error { return s.Orders.RecordGroups(ctx, o, c, id, g) })
}

func (s mortalStore) RecordFloatingIP(
	ctx context.Context, o domain.Order, c domain.Claim, id uuid.UUID, f domain.InstanceFloatingIP,
) error {
	return s.do("store floating IP", func() error { return s.Orders.RecordFloatingIP(ctx, o, c, id, f) })
}

func (s mortalStore) Finalize(ctx context.Context, o domain.Order) error {
	return s.do("store status", func() error { return s.Orders.Finalize(ctx, o) })
}

type mortalInstances struct {
	postgres.Instances
	*mortal
}

func (s mortalInstances) Change(ctx context.Context, known []domain.Instance) (n int, err error) {
	err = s.do("store state", func() error { n, err = s.Instances.Change(ctx, known); return err })
	return n, err
}

func (s mortalInstances) RecordDeleteAttempt(ctx context.Context, i domain.Instance, since time.Time) error {
	return s.do("store attempt", func() error { return s.Instances.RecordDeleteAttempt(ctx, i, since) })
}

// partsCloud is a project with servers, volumes and floating IPs. It is a fake: no process can be killed between two
// calls to a real cloud by their number. A server named bad ends in ERROR.
type partsCloud struct {
	actions.Cloud // what is not used
	*mortal

	parts *parts
}

type parts struct {
	mu      sync.Mutex
	servers []domain.Server
	volumes map[string][]domain.ServerVolume // by server; "" = of none
	ips     map[string]string                // the servers that have them, by description
	groups  map[string]string                // of a server's port
}

func (c partsCloud) Quota(context.Context) (domain.Quota, error) { return domain.Quota{}, nil } // one by one

func (c partsCloud) CreateServer(
	_ context.Context, spec domain.LaunchSpec, name string, _ domain.Secret, tags []string,
) (id string, err error) {
	err = c.do("create server", func() error {
		c.parts.mu.Lock()
		defer c.parts.mu.Unlock()
		id = uuid.NewString()
		server := domain.Server{
			ID: id, ProjectID: "p1", Name: name, Status: "ACTIVE", CreatedAt: time.Now(), UpdatedAt: time.Now(),
			Tags: tags,
		}
		if name == "bad" {
			server.Status = "ERROR"
		}
		c.parts.servers = append(c.parts.servers, server)
		c.parts.volumes[id] = spec.CreatedVolumes()
		return nil
	})
	return id, err
}

func (c partsCloud) SetVolumes(_ context.Context, id string, volumes []domain.ServerVolume) error {
	return c.do("set volumes", func() error {
		c.parts.mu.Lock()
		defer c.parts.mu.Unlock()
		c.parts.volumes[id] = slices.Clone(volumes)
		return nil
	})
}

func (c partsCloud) SetNetworkGroups(_ context.Context, id string, attachments []domain.Attachment) (bool, error) {
	return true, c.do("set groups", func() error {
		c.parts.mu.Lock()
		defer c.parts.mu.Unlock()
		c.parts.groups[id] = attachments[0].SecurityGroups[0]
		return nil
	})
}

func (c partsCloud) EnsureFloatingIP(
	_ context.Context, id string, a domain.FloatingIPAttach,
) (f domain.FloatingIP, isChanged bool, err error) {
	err = c.do("give floating IP", func() error {
		c.parts.mu.Lock()
		defer c.parts.mu.Unlock()
		isChanged, c.parts.ips[a.Description] = c.parts.ips[a.Description] == "", id
		f = domain.FloatingIP{ID: "ip", Address: "203.0.113.7", UpdatedAt: time.Now().Add(-time.Hour)}
		return nil
	})
	return f, isChanged, err
}

func (c partsCloud) ReleaseFloatingIPs(_ context.Context, _, mark string) error {
	return c.do("release floating IP", func() error {
		c.parts.mu.Lock()
		defer c.parts.mu.Unlock()
		delete(c.parts.ips, mark)
		return nil
	})
}

func (c partsCloud) DeleteServer(_ context.Context, id string) error {
	return c.do("delete server", func() error {
		c.parts.mu.Lock()
		defer c.parts.mu.Unlock()
		c.parts.servers = slices.DeleteFunc(c.parts.servers, func(s domain.Server) bool { return s.ID == id })
		for _, v := range c.parts.volumes[id] {
			if !v.DeleteOnTermination {
				c.parts.volumes[""] = append(c.parts.volumes[""], v)
			}
		}
		delete(c.parts.volumes, id)
		return nil
	})
}

func (c partsCloud) Servers(_ context.Context, q domain.ServerQuery) (all []domain.Server, more bool, err error) {
	c.parts.mu.Lock()
	defer c.parts.mu.Unlock()
	for _, s := range c.parts.servers {
		if len(q.Tags) == 0 || slices.Contains(s.Tags, q.Tags[0]) {
			all = append(all, s)
		}
	}
	return all, false, nil
}

func (c partsCloud) Server(_ context.Context, id string) (domain.Server, error) {
	c.parts.mu.Lock()
	defer c.parts.mu.Unlock()
	n := slices.IndexFunc(c.parts.servers, func(s domain.Server) bool { return s.ID == id })
	if n < 0 {
		return domain.Server{}, apperr.New(apperr.NotFound, "there is no server %s", id)
	}
	return c.parts.servers[n], nil
}

// String lists all that there is.
func (p *parts) String() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	var all []string
	for _, s := range p.servers {
		all = append(all, "server "+s.Name+p.groups[s.ID])
	}
	for server, volumes := range p.volumes {
		for _, v := range volumes {
			text := "volume " + v.Name + v.ID
			if server == "" {
				text = "detached " + text
			} else if !v.DeleteOnTermination {
				text += " stays"
			}
			all = append(all, text)
		}
	}
	for range p.ips {
		all = append(all, "address")
	}
	slices.Sort(all)
	return strings.Join(all, ", ")
}

// crashLife is an order with volumes and floating IPs, and what happens to it.
type crashLife struct {
	names      []string // of its servers
	onFailure  domain.OnFailure
	isDeleted  bool // afterwards, and the process dies then
	want, ends string
}

var crashLives = map[string]crashLife{
	"launched": {
		[]string{"web"},
		domain.Keep, false, "done",
		"address, server web in g, volume boot, volume data stays, volume old stays",
	},
	"rolled back": {[]string{"web", "bad"}, domain.Rollback, false, "rolled_back", "detached volume old"},
	"deleted":     {[]string{"web"}, domain.Keep, true, "done", "detached volume data, detached volume old"},
}

// TestLongCrashPointsOfOrders: a process dies before and after each of its calls, and another one continues. In the end
// there is exactly what was ordered, and after a rollback or a deletion nothing of it but the volumes that stay.
func TestLongCrashPointsOfOrders(t *testing.T) {
	t.Parallel()
	store, engine := replica(t, 600*time.Millisecond)
	for name, l := range crashLives {
		calls := l.run(t, store, engine, 0, false)
		t.Logf("%s: %s", name, strings.Join(calls, ", "))
		if len(calls) < 3 {
			t.Fatalf("%s: it has the calls %q", name, calls)
		}
		for at, call := range calls {
			for _, after := range []bool{false, true} {
				t.Run(fmt.Sprintf("%s/%d %s/after %t", name, at+1, call, after), func(t *testing.T) {
					t.Parallel()
					l.run(t, store, engine, at+1, after)
				})
			}
		}
	}
}

// run lives the order by a process that dies at a call, and another one after it. It returns the calls of the first.
func (l crashLife) run(t *testing.T, store postgres.Orders, engine orders.Engine, at int, after bool) []string {
	t.Helper()
	p := &parts{volumes: map[string][]domain.ServerVolume{}, ips: map[string]string{}, groups: map[string]string{}}
	order := domain.Order{
		ID: uuid.New(), ProjectID: "p1", DomainID: "d", UserID: "u", BodySHA256: []byte{1}, Status: domain.OrderRunning,
		Spec: domain.OrderSpec{OnFailure: l.onFailure, SetsVolumes: true, SetsGroups: true, FloatingIPs: true},
	}
	for n, name := range l.names {
		i := domain.Instance{ID: uuid.New(), ProjectID: "p1", Name: name, State: domain.InstanceRequested}
		if i.Spec.FloatingIP = (&domain.ServerFloatingIP{NetworkID: "public"}); n == 0 {
			i.Spec.Attachments = []domain.Attachment{{NetworkID: "n", SecurityGroups: []string{" in g"}}}
			i.Spec.Volumes = []domain.ServerVolume{
				{IsBoot: true, Name: "boot", SizeGB: 1, DeleteOnTermination: true},
				{Name: "data", SizeGB: 1},
				{ID: "old"},
			}
		}
		order.Instances = append(order.Instances, i)
	}
	claim, err := store.Place(t.Context(), order, 600*time.Millisecond)
	if err != nil {
		t.Fatal(err)
	}
	order = get(t, store, order)
	dies := &mortal{at: at, after: after}
	if l.isDeleted { // nothing happens to the order
		l.work(t, engine, &mortal{}, p, order, claim)
	} else {
		l.work(t, engine, dies, p, order, claim)
	}
	for end := time.Now().Add(30 * time.Second); ; time.Sleep(100 * time.Millisecond) {
		if order = get(t, store, order); order.Status != domain.OrderRunning {
			break
		}
		if time.Now().After(end) {
			t.Fatalf("the order is %+v, and there is %s", order, p)
		}
		if claim, err := engine.Claim(t.Context(), order); err == nil && claim.Acquired {
			l.work(t, engine, &mortal{}, p, order, claim)
		}
	}
	if l.isDeleted {
		l.delete(t, engine, dies, p, order)
		l.delete(t, engine, &mortal{}, p, order)
		instances, _ := engine.Instances.(postgres.Instances)
		for end := time.Now().Add(10 * time.Second); strings.Contains(p.String(), "address") &&
			time.Now().Before(end); {
			l.poll(t, store, instances, p, order)
		}
	}
	if got := p.String(); string(order.Status) != l.want || got != l.ends {
		t.Errorf("the order is %s, and there is %q, want %s and %q", order.Status, got, l.want, l.ends)
	}
	return dies.calls
}

func (l crashLife) work(
	t *testing.T, engine orders.Engine, m *mortal, p *parts, order domain.Order, claim domain.Claim,
) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	m.kill = cancel
	store, _ := engine.Orders.(postgres.Orders)
	instances, _ := engine.Instances.(postgres.Instances)
	engine.Orders, engine.Instances = mortalStore{store, m}, mortalInstances{instances, m}
	_, _, _ = engine.Run(ctx, orders.Session{
		Cloud: partsCloud{mortal: m, parts: p}, UserData: make([]domain.Secret, len(l.names)), Follows: true,
	}, order, claim)
}

// delete deletes the server as a user does.
func (crashLife) delete(t *testing.T, engine orders.Engine, m *mortal, p *parts, order domain.Order) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	m.kill = cancel
	instances, _ := engine.Instances.(postgres.Instances)
	i := order.Instances[0]
	action := actions.Action{
		ActionRequest: domain.ActionRequest{Action: domain.Delete}, ServerID: i.ServerID, Instance: i, ProjectID: "p1",
	}
	_, _ = actions.Engine{Instances: mortalInstances{instances, m}}.Run(ctx, partsCloud{mortal: m, parts: p}, action)
}

// releases are the parts of each instance: an event of poll-instances releases what it has claimed, of any order.
var releases sync.Map

// poll is an event of poll-instances: it sees that the server is deleted, and releases what the deletion has left.
func (crashLife) poll(t *testing.T, store postgres.Orders, instances postgres.Instances, p *parts, order domain.Order) {
	t.Helper()
	i := get(t, store, order).Instances[0]
	releases.Store(i.ID, p)
	if i.Found(domain.Server{ID: i.ServerID, Status: "DELETED", Partial: true}) {
		i.SeenAt = time.Time{} // now
		if _, err := instances.Change(t.Context(), []domain.Instance{i}); err != nil {
			t.Fatal(err)
		}
	}
	polls := postgres.Polls(store)
	claimed, err := polls.ClaimReleases(t.Context(), 20, 200)
	if err != nil {
		t.Fatal(err)
	}
	for _, one := range claimed {
		found, _ := releases.Load(one.ID)
		if of, ok := found.(*parts); ok {
			cloud := partsCloud{mortal: &mortal{}, parts: of}
			_ = cloud.ReleaseFloatingIPs(t.Context(), "", domain.FloatingIPMark(one.ID))
		}
		if err := polls.FinishRelease(t.Context(), one.ProjectID, one.ID); err != nil {
			t.Fatal(err)
		}
	}
}
