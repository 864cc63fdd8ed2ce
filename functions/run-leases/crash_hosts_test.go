package runleases

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/leases"
	"github.com/cloudfn/cloudfn/shared/openstack"
	"github.com/cloudfn/cloudfn/shared/postgres"
	"github.com/cloudfn/cloudfn/shared/testkit"
)

// life is a lease of a host: its start, the failure of its host, the return of that, and its end. A host that comes
// back with servers of the reservation is neither the pool's nor another lease's until they are deleted.
func (w *hostWorld) life(t *testing.T) (passes int) {
	t.Helper()
	r := w.lease(t, nil)
	passes = w.becomes(t, domain.LeaseActive)
	id, old := w.cloud.launch(r.Flavors[0].ID)
	if old == "" {
		t.Fatal("no server gets onto the reserved host")
	}
	w.down(t, old, true)
	moved := func() bool { held := w.held(t); return len(held) > 0 && (len(held) > 1 || held[0] != old) }
	for ; !moved() || w.dies.names == nil; passes++ {
		w.pass(t)
	}
	for w.pass(t) { // the move is whole
		passes++
	}
	w.down(t, old, false)
	for w.pass(t) {
		passes++
	}
	if held := w.held(t); len(held) != 2 || !slices.Contains(held, old) {
		t.Errorf("the reservation has %v, and server %s is on %s", held, id, old)
	}
	if other, host := w.cloud.launch(r.Flavors[0].ID); host == old || host == "" {
		t.Errorf("a new server is on %q, and %s was replaced", host, old)
	} else {
		delete(w.cloud.servers, other)
	}
	delete(w.cloud.servers, id)
	for ; len(w.held(t)) > 1; passes++ {
		w.pass(t)
	}
	if _, host := w.cloud.launch(r.Flavors[0].ID); host == "" || host == old {
		t.Errorf("after the move a server gets onto %q", host)
	}
	w.end(t)
	passes += w.becomes(t, domain.LeaseEnded)
	w.clean(t)
	return passes
}

// TestHostCrashPoints: a replica dies once after each different call to the cloud and each write of a lease's life. The
// next one continues, and nothing is left.
func TestHostCrashPoints(t *testing.T) {
	t.Parallel()
	w := newHostWorld(t)
	w.dies = &crasher{everyNew: map[string]bool{}}
	w.life(t)
	t.Logf("it died at %d points", len(w.dies.everyNew))
	if len(w.dies.everyNew) < 30 {
		t.Errorf("it died only at %v", w.dies.names)
	}
}

// TestLongHostCrashPoints: one replica dies at one of the points, and the state is right two passes later at most.
func TestLongHostCrashPoints(t *testing.T) {
	t.Parallel()
	whole := newHostWorld(t)
	usual := whole.life(t)
	points := whole.dies.names
	for at := range points {
		t.Run(fmt.Sprintf("%d after %s", at+1, points[at]), func(t *testing.T) {
			t.Parallel()
			w := newHostWorld(t)
			w.dies = &crasher{at: at + 1}
			if passes := w.life(t); passes > usual+2 {
				t.Errorf("it took %d passes, and %d without a crash", passes, usual)
			}
		})
	}
}

// crashingCloud is the sandbox's Nova and Placement. A replica dies right after one of the calls that change something.
type crashingCloud struct {
	leases.Cloud
	*crasher
}

func (c crashingCloud) EnsureTrait(ctx context.Context, name string) error {
	defer c.wrote("trait " + kindOf(name))
	return c.Cloud.EnsureTrait(ctx, name)
}

func (c crashingCloud) EnsureAggregate(
	ctx context.Context, name string, metadata map[string]string,
) (domain.Aggregate, error) {
	defer c.wrote("aggregate " + kindOf(name))
	return c.Cloud.EnsureAggregate(ctx, name, metadata)
}

func (c crashingCloud) SetProviderTrait(ctx context.Context, provider, trait string, present bool) error {
	defer c.wrote(fmt.Sprintf("host's trait %s %t", kindOf(trait), present))
	return c.Cloud.SetProviderTrait(ctx, provider, trait, present)
}

func (c crashingCloud) AddHost(ctx context.Context, a domain.Aggregate, host, provider string) error {
	defer c.wrote("host added " + kindOf(a.Name))
	return c.Cloud.AddHost(ctx, a, host, provider)
}

func (c crashingCloud) RemoveHost(ctx context.Context, a domain.Aggregate, host, provider string) error {
	defer c.wrote("host removed " + kindOf(a.Name))
	return c.Cloud.RemoveHost(ctx, a, host, provider)
}

func (c crashingCloud) EnsureFlavor(ctx context.Context, f domain.PrivateFlavor) error {
	defer c.wrote("flavor")
	return c.Cloud.EnsureFlavor(ctx, f)
}

func (c crashingCloud) GrantFlavor(ctx context.Context, id, project string) error {
	defer c.wrote("access")
	return c.Cloud.GrantFlavor(ctx, id, project)
}

func (c crashingCloud) DeleteFlavor(ctx context.Context, id string) error {
	defer c.wrote("flavor deleted")
	return c.Cloud.DeleteFlavor(ctx, id)
}

func (c crashingCloud) DeleteAggregate(ctx context.Context, id int) error {
	defer c.wrote("aggregate deleted")
	return c.Cloud.DeleteAggregate(ctx, id)
}

func (c crashingCloud) DeleteTrait(ctx context.Context, name string) error {
	defer c.wrote("trait deleted")
	return c.Cloud.DeleteTrait(ctx, name)
}

// kindOf reports whether a name is the pool's or a lease's.
func kindOf(name string) string {
	if name == leases.PoolAggregate || strings.HasPrefix(name, "CUSTOM_CLOUDFN_POOL_") {
		return "pool"
	}
	return "lease"
}

// TestLongCrashPointsInOpenStack: a replica dies after one of the changes that the start and the end of a lease of a
// host make in the real Nova and Placement. The state is right two passes later at most, and nothing is left.
func TestLongCrashPointsInOpenStack(t *testing.T) {
	hosts := testkit.ReservableHosts(t)
	cloud, project := testkit.Session(t, "leases"), testkit.NewProject(t).ID
	points := []string{
		"", // no crash
		// of the start
		"prepared", "trait lease", "aggregate lease", "host's trait lease true", "host added lease",
		"host removed pool", "flavor", "access", "save active",
		// of the end
		"flavor deleted", "trait pool", "aggregate pool", "host's trait pool true", "host added pool",
		"host removed lease", "host's trait lease false", "released", "aggregate deleted", "trait deleted",
	}
	w, usual := newSandboxWorld(t, cloud, hosts), 0
	for _, point := range points {
		w.dies = &crasher{after: point}
		w.exec(t, "delete from leases")
		passes := w.liveInOpenStack(t, cloud, project)
		if point == "" {
			usual = passes
			for _, name := range w.dies.names {
				isOfLease := strings.HasPrefix(name, "save") || strings.HasPrefix(name, "finish")
				if !isOfLease && !slices.Contains(points, name) {
					t.Errorf("the table lacks %q", name)
				}
			}
		} else if w.dies.after != "" {
			t.Errorf("it did not die after %q, but did %v", point, w.dies.names)
		}
		t.Logf("%d passes, dead after %q", passes, point)
		if passes > usual+2 {
			t.Errorf("after %q it took %d passes, and %d without a crash", point, passes, usual)
		}
	}
}

// newSandboxWorld is the sandbox's reservable hosts and a real Postgres.
func newSandboxWorld(t *testing.T, cloud *openstack.Session, hosts []string) *hostWorld {
	t.Helper()
	w := newHostWorld(t)
	w.real = cloud
	w.exec(t, "delete from nodes")
	w.exec(t, "insert into nodes (name, pool) select unnest($1::text[]), 'joining'", hosts)
	pool := leases.Pool{Nodes: postgres.Nodes{DB: w.db}, Cloud: cloud}
	if err := pool.Survey(t.Context()); err != nil {
		t.Fatal(err)
	}
	if joined, err := pool.Move(t.Context()); err != nil || !joined {
		t.Fatalf("the hosts have not joined: %v", err)
	}
	return w
}

// liveInOpenStack is the start and the end of a lease.
func (w *hostWorld) liveInOpenStack(t *testing.T, cloud *openstack.Session, project string) (passes int) {
	t.Helper()
	r := w.lease(t, func(l *domain.Lease) {
		l.ProjectID, l.Reservations[0].Flavors[0].BaseID = project, testkit.Sandbox(t).FlavorID
	})
	passes = w.becomes(t, domain.LeaseActive)
	held, trait := w.held(t), testkit.Scalar[string](t, w.rows, "select trait from reservations")
	own, _, err := cloud.FindAggregate(t.Context(), leases.AggregateName(r.ID))
	pool, _, poolErr := cloud.FindAggregate(t.Context(), leases.PoolAggregate)
	if err != nil || poolErr != nil || !slices.Equal(own.Hosts, held) || slices.Contains(pool.Hosts, held[0]) {
		t.Errorf("held are %v, the aggregates are %+v and %+v: %v %v", held, own, pool, err, poolErr)
	}
	specs, err := cloud.FlavorSpecs(t.Context(), r.Flavors[0].ID)
	if err != nil || specs["trait:"+trait] != "required" {
		t.Errorf("the flavor requires %v: %v", specs, err)
	}
	w.end(t)
	passes += w.becomes(t, domain.LeaseEnded)
	if _, found, err := cloud.FindAggregate(t.Context(), leases.AggregateName(r.ID)); found || err != nil {
		t.Errorf("the aggregate is left: %v", err)
	}
	if _, err := cloud.FlavorSpecs(t.Context(), r.Flavors[0].ID); err == nil {
		t.Error("the flavor is left")
	}
	pool, _, err = cloud.FindAggregate(t.Context(), leases.PoolAggregate)
	if err != nil || !slices.Contains(pool.Hosts, held[0]) {
		t.Errorf("the pool is %+v: %v", pool, err)
	}
	node := testkit.Scalar[string](t, w.rows, "select provider_id from nodes where name = $1", held[0])
	if traits := testkit.ProviderTraits(t, node); slices.Contains(traits, trait) {
		t.Errorf("the host has %v", traits)
	}
	if err := cloud.SetProviderTrait(t.Context(), node, trait, true); err == nil { // it is unknown
		t.Errorf("the trait %s is left", trait)
	}
	return passes
}
