package reconcilemanaged

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

	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/managed"
	"github.com/cloudfn/cloudfn/shared/orders"
)

var errCrash = errors.New("the replica has died")

// crasher ends a replica right after one of its writes or calls: it does nothing more, and no answer reaches it. A
// crash right before a write is one after the write before.
type crasher struct {
	mu    sync.Mutex
	at    int // the number of the write; 0 = none
	names []string
}

func (c *crasher) isDead() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.at > 0 && len(c.names) >= c.at
}

// do writes, unless the replica is dead.
func (c *crasher) do(name string, write func() error) error {
	if c.isDead() {
		return errCrash
	}
	err := write()
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.names = append(c.names, name); c.at > 0 && len(c.names) >= c.at {
		return errCrash
	}
	return err
}

type crashingStore struct {
	managed.Store
	*crasher
}

func (s crashingStore) SaveMember(ctx context.Context, c domain.Claim, p string, m domain.Member) error {
	return s.do("member "+string(m.Status), func() error { return s.Store.SaveMember(ctx, c, p, m) })
}

func (s crashingStore) DeleteMember(ctx context.Context, c domain.Claim, p string, id uuid.UUID) error {
	return s.do("forget", func() error { return s.Store.DeleteMember(ctx, c, p, id) })
}

func (s crashingStore) SaveStatus(ctx context.Context, c domain.Claim, all ...*domain.Managed) error {
	return s.do("status "+string(all[0].Status), func() error { return s.Store.SaveStatus(ctx, c, all...) })
}

func (s crashingStore) Remove(ctx context.Context, c domain.Claim, m domain.Managed) error {
	return s.do("remove", func() error { return s.Store.Remove(ctx, c, m) })
}

func (s crashingStore) ReleaseProject(
	ctx context.Context, c domain.Claim, p domain.ManagedProject, d time.Duration,
) error {
	if s.isDead() {
		return errCrash
	}
	return s.Store.ReleaseProject(ctx, c, p, d)
}

type crashingOrders struct {
	orders.Store
	*crasher
}

func (o crashingOrders) Place(ctx context.Context, order domain.Order, d time.Duration) (c domain.Claim, err error) {
	return c, o.do("order", func() error {
		c, err = o.Store.Place(ctx, order, d)
		return err
	})
}

func (o crashingOrders) BeginCall(
	ctx context.Context, order domain.Order, c domain.Claim, call domain.CreateCall, d, fence time.Duration,
) error {
	return o.do("call", func() error { return o.Store.BeginCall(ctx, order, c, call, d, fence) })
}

func (o crashingOrders) Decide(ctx context.Context, c domain.Claim, i domain.Instance) error {
	return o.do("decide", func() error { return o.Store.Decide(ctx, c, i) })
}

func (o crashingOrders) Release(ctx context.Context, order domain.Order, c domain.Claim) error {
	if o.isDead() {
		return errCrash
	}
	return o.Store.Release(ctx, order, c)
}

// crashingNova does the calls of a replica, whose answers are lost when it dies.
type crashingNova struct {
	*fakeNova
	*crasher
}

func (n crashingNova) CreateServer(
	ctx context.Context, spec domain.LaunchSpec, name string, userData domain.Secret, tags []string,
) (id string, err error) {
	return id, n.do("create", func() error {
		id, err = n.fakeNova.CreateServer(ctx, spec, name, userData, tags)
		return err
	})
}

func (n crashingNova) DeleteServer(ctx context.Context, id string) error {
	return n.do("delete", func() error { return n.fakeNova.DeleteServer(ctx, id) })
}

// life is what is declared one after the other, and what Nova has in the end. The replica dies in the last one.
type life struct {
	steps   []func(*testing.T, *fakeWorld)
	writes  string // of the last step, sorted; a new write is added here
	servers string
	creates int
}

// lives are the lives of a deployment.
func lives() map[string]life {
	declare := func(count int, flavor string) func(*testing.T, *fakeWorld) {
		return func(t *testing.T, w *fakeWorld) { w.declare(t, count, flavor, 0) }
	}
	rollback := func(t *testing.T, w *fakeWorld) { w.declare(t, 0, "", 1) }
	type steps = []func(*testing.T, *fakeWorld)
	made := "call, create, decide, member creating, member creating, member ready, order, "
	removed := "delete, forget, member deleting, member deleting, "
	updating := "status updating, status updating, status updating, status ready"
	return map[string]life{
		"create": {
			steps:  steps{declare(2, "tiny")},
			writes: made + made + "status creating, status ready", servers: "web-0:tiny web-1:tiny", creates: 2,
		},
		"scale up": {
			steps:  steps{declare(1, "tiny"), declare(2, "tiny")},
			writes: made + "member ready, status updating, status ready", servers: "web-0:tiny web-1:tiny", creates: 2,
		},
		"scale down": {
			steps:   steps{declare(3, "tiny"), declare(1, "tiny")},
			writes:  removed + removed + "member ready, status updating, status ready",
			servers: "web-0:tiny", creates: 3,
		},
		"rolling update": {
			steps:  steps{declare(2, "tiny"), declare(2, "small")},
			writes: made + made + removed + removed + updating, servers: "web-0:small web-1:small", creates: 4,
		},
		"rollback": {
			steps:  steps{declare(2, "tiny"), declare(2, "small"), rollback},
			writes: made + made + removed + removed + updating, servers: "web-0:tiny web-1:tiny", creates: 6,
		},
		"delete": {
			steps:  steps{declare(2, "tiny"), func(t *testing.T, w *fakeWorld) { w.delete(t) }},
			writes: removed + removed + "status deleting, remove", creates: 2,
		},
	}
}

// mostTicks is how many ticks a change may take, also when a replica dies in it.
const mostTicks = 3

// run lives a life, in whose last step a replica dies where c says, and checks what is left.
func (l life) run(t *testing.T, c *crasher) {
	t.Helper()
	w := newFakeWorld(t)
	for _, step := range l.steps[:len(l.steps)-1] {
		step(t, w)
		w.becomesQuiet(t, &crasher{})
	}
	l.steps[len(l.steps)-1](t, w)
	w.becomesQuiet(t, c)
	w.check(t, l.servers, l.creates)
}

// TestWrites: these are the writes and calls after which TestLongCrashPoints has a replica die.
func TestWrites(t *testing.T) {
	t.Parallel()
	for name, l := range lives() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := &crasher{}
			l.run(t, c)
			writes := strings.Split(l.writes, ", ")
			slices.Sort(c.names)
			if slices.Sort(writes); !slices.Equal(c.names, writes) {
				t.Errorf("it wrote\n%q, the table has\n%q", c.names, writes)
			}
		})
	}
}

// TestLongCrashPoints: a replica dies after each write and each call of a deployment's life, and another one continues:
// Nova has exactly what is declared within three ticks, nothing was made twice, and nothing is left.
func TestLongCrashPoints(t *testing.T) {
	t.Parallel()
	for name, l := range lives() {
		for at := range len(strings.Split(l.writes, ", ")) {
			t.Run(fmt.Sprintf("%s/%d", name, at+1), func(t *testing.T) {
				t.Parallel()
				c := &crasher{at: at + 1}
				if l.run(t, c); !c.isDead() {
					t.Errorf("it did not die: it wrote %q", c.names)
				}
			})
		}
	}
}

// TestTwoReplicas: two replicas that tick concurrently make and delete nothing twice.
func TestTwoReplicas(t *testing.T) {
	t.Parallel()
	for name, l := range lives() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newFakeWorld(t)
			for _, step := range l.steps {
				step(t, w)
				w.becomesQuiet(t, &crasher{}, &crasher{})
			}
			w.check(t, l.servers, l.creates)
		})
	}
}
