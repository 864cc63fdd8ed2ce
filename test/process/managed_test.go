package process_test

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	pollinstances "github.com/cloudfn/cloudfn/functions/poll-instances"
	reconcilemanaged "github.com/cloudfn/cloudfn/functions/reconcile-managed"
	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/eventx"
	"github.com/cloudfn/cloudfn/shared/postgres"
	"github.com/cloudfn/cloudfn/shared/run"
	"github.com/cloudfn/cloudfn/shared/testkit"
)

// declarer is a project whose user declares resources, with replicas of reconcile-managed.
type declarer struct {
	*testkit.Project

	env      map[string]string
	store    postgres.Managed
	conn     *pgx.Conn
	replicas []*testkit.Process
	poller   *testkit.Client    // poll-instances, whose events poll once
	trust    *domain.Connection // until the first declaration has stored it
}

func newDeclarer(t *testing.T, replicas int, more map[string]string) *declarer {
	t.Helper()
	database := testkit.Database(t)
	d := &declarer{Project: testkit.NewProject(t), conn: testkit.Connect(t, database)}
	db, err := postgres.Open(postgres.Config{URL: domain.Secret(database), MaxConns: 4}, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(db.Close)
	d.store = postgres.Managed{DB: db}
	d.env = testkit.Env(t, testkit.As(t, database, reconcilemanaged.Function), map[string]string{
		"FUNCTION_TARGET": "reconcile-managed",
	})
	maps.Copy(d.env, more)
	for range replicas {
		d.replicas = append(d.replicas, testkit.Spawn(t, d.env))
	}
	poll := pollinstances.Function
	poll.Build = func(cfg pollinstances.Config, d run.Deps) (eventx.Func, error) {
		cfg.Follow = time.Nanosecond
		return pollinstances.Function.Build(cfg, d)
	}
	d.poller = testkit.Start(t, testkit.Env(t, database, nil), poll)
	until := time.Now().Add(2 * time.Hour).UTC()
	d.trust = &domain.Connection{
		ID: uuid.Must(uuid.NewV7()), ProjectID: d.ID, DomainID: d.DomainID, UserID: d.UserID, Name: "managed resources",
		Kind: domain.TrustConnection, Managed: true, Status: domain.ConnectionActive,
		DelegationID: d.Trust(t, testkit.Trustee(t), true, until.Add(time.Hour)), TrustExpiresAt: until.Add(time.Hour),
		ActsAs:  domain.ActsAs{UserID: d.UserID, ProjectID: d.ID, Roles: []string{"member"}},
		Actions: []domain.Permission{}, UsableBy: []string{}, Flavors: []domain.Flavor{}, ExpiresAt: until,
	}
	return d
}

// declare stores a declaration as the function managed does; repeats is the revision that it rolls back to.
func (d *declarer) declare(
	t *testing.T, spec domain.DeploymentSpec, change func(*domain.NewManaged),
) domain.Managed {
	t.Helper()
	const kind, name = domain.KindDeployment, deployed
	text, err := json.Marshal(spec)
	if err != nil {
		t.Fatal(err)
	}
	made := domain.NewManaged{Managed: domain.Managed{
		ID: uuid.Must(uuid.NewV7()), ProjectID: d.ID, DomainID: d.DomainID, UserID: d.UserID, Kind: kind, Name: name,
		Provider: "nova", Labels: map[string]string{}, Repair: domain.RepairManual, MaxRevisions: 10, Spec: text,
		Actor: &domain.Actor{UserID: d.UserID, ProjectID: d.ID},
	}}
	if before, err := d.store.Get(t.Context(), d.ID, kind, name); err == nil {
		made.Managed, made.Before, made.Spec, made.KeepSecrets = before, before.Version, text, true
	}
	made.Delegation = domain.ManagedDelegation{ConnectionID: d.trust.ID}
	if testkit.Scalar[int](t, d.conn, "select count(*)::int from connections") == 0 {
		made.Delegation = domain.ManagedDelegation{New: d.trust}
	}
	if change != nil {
		change(&made)
	}
	stored, _, err := d.store.Declare(t.Context(), made)
	if err != nil {
		t.Fatal(err)
	}
	return stored
}

func (d *declarer) delete(t *testing.T, kind domain.Kind, name string) {
	t.Helper()
	before, err := d.store.Get(t.Context(), d.ID, kind, name)
	if err == nil {
		_, err = d.store.Delete(t.Context(), before, nil)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// due has all of the project looked at, as if ten minutes had passed.
func (d *declarer) due(t *testing.T) {
	t.Helper()
	const dueSQL = "update managed_projects set due_at = least(due_at, clock_timestamp()), scan_at = clock_timestamp()"
	if _, err := d.conn.Exec(t.Context(), dueSQL); err != nil {
		t.Fatal(err)
	}
}

// tick sends an event to poll-instances, and then one to every replica at the same time, as if a minute had passed
// since the last ones.
func (d *declarer) tick(t *testing.T) {
	t.Helper()
	for _, minuteSQL := range []string{
		"update instances set missed_at = missed_at - interval '1 minute'",
		"update managed_projects set due_at = due_at - interval '1 minute', " +
			"claimed_until = claimed_until - interval '1 minute'", // of a replica that was killed
		"update orders set claimed_until = claimed_until - interval '1 minute'",
		"update managed set next_at = next_at - interval '1 minute'",
		"update managed_members set missed_at = missed_at - interval '1 minute'",
	} {
		if _, err := d.conn.Exec(t.Context(), minuteSQL); err != nil {
			t.Fatal(err)
		}
	}
	d.poller.Tick(t, "poll-instances")
	var all sync.WaitGroup
	for _, p := range d.replicas {
		all.Go(func() { _, _ = p.TryTick(t, "reconcile-managed") })
	}
	all.Wait()
}

// mostTicks is how many ticks a change may take.
const mostTicks = 3

// within sends mostTicks at most until the check finds nothing wrong.
func (d *declarer) within(t *testing.T, what string, check func() string) {
	t.Helper()
	began := time.Now()
	for n := 1; ; n++ {
		d.tick(t)
		wrong := check()
		if wrong == "" {
			t.Logf("%s: after %d ticks and %s", what, n, time.Since(began).Round(time.Second))
			return
		}
		if n == mostTicks {
			for _, p := range d.replicas {
				p.Kill()
				log := p.Log()
				t.Logf("a replica said: %s", log[max(0, len(log)-20000):])
			}
			t.Fatalf("%s: after %d ticks and %s: %s", what, n, time.Since(began).Round(time.Second), wrong)
		}
	}
}

// names are the names of the project's servers that are ACTIVE, sorted, and the names and statuses of the others.
func (d *declarer) names(t *testing.T) (active []string, others []string) {
	t.Helper()
	for _, s := range d.Servers(t) {
		if s.Status == "ACTIVE" {
			active = append(active, s.Name)
		} else {
			others = append(others, s.Name+" "+s.Status)
		}
	}
	slices.Sort(active)
	return active, others
}

// isExactly says what Nova lacks or has too much: "" when it has exactly these, and the resource is ready.
func (d *declarer) isExactly(t *testing.T, name string, count int, flavor string) string {
	t.Helper()
	var want []string
	for n := range count {
		want = append(want, fmt.Sprintf("%s-%d", name, n))
	}
	slices.Sort(want)
	got, others := d.names(t)
	m, err := d.store.Get(t.Context(), d.ID, domain.KindDeployment, name)
	if err != nil {
		t.Fatal(err)
	}
	said := fmt.Sprintf("nova has %v and %v; %s, %s, revision %d of %d, %+v", got, others, m.Status, m.Reason,
		m.ObservedRevision, m.Revision, m.Conditions)
	if !slices.Equal(got, want) || len(others) > 0 || m.Status != domain.ManagedReady ||
		m.ObservedRevision != m.Revision || len(m.Members) != count {
		return said
	}
	for _, s := range d.Servers(t) {
		if was, _ := s.Flavor["original_name"].(string); flavor != "" && was != "" && was != flavor {
			return fmt.Sprintf("%s has the flavor %s", s.Name, was)
		}
	}
	return ""
}

// deployed is the name of the deployment.
const deployed = "web"

// deployment declares servers; half of them may be interrupted at a time.
func deployment(t *testing.T, count int, flavor string) domain.DeploymentSpec {
	t.Helper()
	s, most := testkit.Sandbox(t), max(1, count/2)
	return domain.DeploymentSpec{
		MachineSpec: domain.MachineSpec{Flavor: flavor, Image: s.Image, Networks: []string{s.Network}},
		Count:       count, MaxUnavailable: &most,
	}
}

// TestLongDeployment: five servers are declared, scaled to eight, given another flavor one by one, rolled back, scaled
// to none and deleted, by two replicas, while servers are deleted by hand. Nova has exactly what is declared each time,
// after three ticks at most, and never too few that are ACTIVE.
func TestLongDeployment(t *testing.T) {
	t.Parallel()
	testkit.Heavy(t)
	d, tiny := newDeclarer(t, 2, nil), testkit.Sandbox(t).Flavor
	is := func(count int, flavor string) func() string {
		return func() string { return d.isExactly(t, deployed, count, flavor) }
	}
	d.declare(t, deployment(t, 5, tiny), nil)
	d.within(t, "declared 5", is(5, tiny))

	d.Delete(t, d.Servers(t)[0].ID)
	d.within(t, "one deleted by hand", is(5, tiny))

	d.Delete(t, d.Servers(t)[1].ID)
	d.declare(t, deployment(t, 8, tiny), nil)
	d.within(t, "scaled to 8 with one deleted by hand", is(8, tiny))

	fewest := d.watch(t)
	d.declare(t, deployment(t, 8, "m1.small"), nil)
	d.within(t, "another flavor", is(8, "m1.small"))
	if n := fewest(); n < 4 {
		t.Errorf("while the flavor was changed only %d servers were ACTIVE", n)
	}

	replaced := deployment(t, 8, tiny)
	replaced.Update = domain.UpdateReplace
	d.declare(t, replaced, nil)
	d.within(t, "replaced", is(8, tiny))
	if n := fewest(); n < 4 {
		t.Errorf("while servers were replaced only %d were ACTIVE", n)
	}

	rolledBack := d.declare(t, deployment(t, 8, tiny), func(made *domain.NewManaged) {
		made.Repeats = 3
	})
	d.within(t, "rolled back", is(8, "m1.small"))
	if n := fewest(); n < 4 {
		t.Errorf("while the deployment was rolled back only %d servers were ACTIVE", n)
	}

	d.declare(t, deployment(t, 0, "m1.small"), nil)
	d.within(t, "scaled to 0", is(0, ""))
	revisions, err := d.store.Revisions(t.Context(), d.ID, rolledBack.ID)
	if err != nil || len(revisions) != 6 || revisions[1].RolledBack != 3 {
		t.Errorf("its revisions are %+v, %v", revisions, err)
	}

	d.delete(t, domain.KindDeployment, deployed)
	d.within(t, "deleted", func() string {
		if n := testkit.Scalar[int](t, d.conn, `
select (select count(*) from managed) + (select count(*) from managed_projects)
     + (select count(*) from connections where status = 'active')`); n > 0 {
			return fmt.Sprintf("%d rows are left", n)
		}
		return ""
	})
	for _, p := range d.replicas {
		p.Kill()
		if log := p.Log(); strings.Contains(log, "panic") {
			t.Error(log)
		}
	}
}

// TestLongRollingUpdate: three servers get another flavor and are rolled back, with none and with one that may be
// missing: Nova never has fewer that are ACTIVE. In between others delete servers and an admin makes them ERROR, which
// poll-instances sees, and Nova has exactly what is declared after three ticks.
func TestLongRollingUpdate(t *testing.T) {
	t.Parallel()
	testkit.Heavy(t)
	for most := range 2 {
		t.Run(fmt.Sprintf("max_unavailable %d", most), func(t *testing.T) {
			d, tiny := newDeclarer(t, 2, nil), testkit.Sandbox(t).Flavor
			spread := func(made *domain.NewManaged) {
				made.Schedule.Affinity, made.Repair = "spread", domain.RepairAuto
			}
			is := func(count int, flavor string) func() string {
				return func() string { return d.isExactly(t, deployed, count, flavor) }
			}
			spec := func(count int, flavor string) domain.DeploymentSpec {
				s := deployment(t, count, flavor)
				s.MaxUnavailable = &most
				if most == 1 { // with none that may be missing, servers are replaced anyway
					s.Update = domain.UpdateReplace
				}
				return s
			}
			broken := map[string]any{"os-resetState": map[string]any{"state": "error"}}
			d.declare(t, spec(3, tiny), spread)
			d.within(t, "declared 3", is(3, tiny))
			if groups := d.ServerGroups(t); len(groups) != 1 || len(groups[0].Members) != 3 ||
				groups[0].Policies[0] != "soft-anti-affinity" {
				t.Errorf("the three servers should be spread by one group: %+v", groups)
			}

			fewest := d.watch(t)
			keeps := func(what string) {
				t.Helper()
				if n := fewest(); n < int64(3-most) {
					t.Errorf("%s: only %d of 3 servers were ACTIVE", what, n)
				}
			}
			d.declare(t, spec(3, "m1.small"), spread)
			d.within(t, "another flavor", is(3, "m1.small"))
			keeps("another flavor")

			testkit.Act(t, d.Servers(t)[0].ID, broken)
			d.within(t, "one made ERROR", is(3, "m1.small"))
			d.Delete(t, d.Servers(t)[0].ID)
			d.within(t, "one deleted by hand", is(3, "m1.small"))

			fewest()
			d.declare(t, spec(3, tiny), func(made *domain.NewManaged) {
				spread(made)
				made.Repeats = 1
			})
			d.within(t, "rolled back", is(3, tiny))
			keeps("rolled back")

			all := d.Servers(t)
			testkit.Act(t, all[0].ID, broken)
			d.Delete(t, all[1].ID)
			d.declare(t, spec(4, tiny), spread)
			d.within(t, "scaled to 4 with one in ERROR and one deleted", is(4, tiny))

			testkit.Act(t, d.Servers(t)[0].ID, broken)
			d.declare(t, spec(0, tiny), spread)
			d.within(t, "scaled to 0 with one in ERROR", is(0, ""))
			d.delete(t, domain.KindDeployment, deployed)
			d.within(t, "deleted", func() string {
				if n := testkit.Scalar[int](t, d.conn, "select count(*)::int from managed_projects"); n > 0 {
					return "its project is left"
				}
				return ""
			})
			if groups := d.ServerGroups(t); len(groups) > 0 {
				t.Errorf("server groups are left: %+v", groups)
			}
		})
	}
}

// watch counts the servers that are ACTIVE in Nova all the while, and returns the fewest since the last call.
func (d *declarer) watch(t *testing.T) (fewest func() int64) {
	t.Helper()
	var least atomic.Int64
	least.Store(1 << 30)
	ended := make(chan struct{})
	ctx, cancel := context.WithCancel(context.Background())
	session := d.Session(t)
	go func() {
		defer close(ended)
		for ctx.Err() == nil {
			page, _, err := session.Servers(ctx, domain.ServerQuery{Limit: 1000})
			if err == nil {
				n := int64(0)
				for _, s := range page {
					if s.Status == "ACTIVE" && s.Task != "deleting" {
						n++
					}
				}
				if n < least.Load() {
					least.Store(n)
				}
			}
			time.Sleep(700 * time.Millisecond) // more often would take the time of Nova that the test waits for
		}
	}()
	t.Cleanup(func() { cancel(); <-ended })
	return func() int64 { return least.Swap(1 << 30) }
}

// TestLongDeploymentSurvivesKills: one of two replicas is killed at random moments, while a deployment is scaled up and
// down and servers are replaced. After each kill the others end with exactly what is declared.
func TestLongDeploymentSurvivesKills(t *testing.T) {
	t.Parallel()
	testkit.Heavy(t)
	d, s := newDeclarer(t, 2, nil), testkit.Sandbox(t)
	for n, count := range []int{5, 1, 4, 4} {
		spec := deployment(t, count, s.Flavor)
		if n == 3 {
			spec.Flavor, spec.Update = "m1.small", "replace"
		}
		d.declare(t, spec, nil)
		for range 2 {
			d.strike(t)
		}
		d.within(t, "after a kill", func() string { return d.isExactly(t, deployed, count, spec.Flavor) })
	}
	if made := testkit.Scalar[int](t, d.conn, `
select count(*)::int from (select from create_calls group by instance_id having count(*) > 1) doubled`); made > 0 {
		t.Logf("%d create calls were sent twice, as far as the dead process had not noted their answers", made)
	}
}

// strike kills a replica at a random moment of a round, and starts another one. A round without changes may end before.
func (d *declarer) strike(t *testing.T) {
	t.Helper()
	d.due(t)
	const claimedSQL = "select exists (select from managed_projects where claimed_until > clock_timestamp())"
	testkit.Eventually(t, 30*time.Second, "the claim of the last one ends", func() bool {
		return !testkit.Scalar[bool](t, d.conn, claimedSQL)
	})
	victim, done := d.replicas[0], make(chan struct{})
	go func() {
		defer close(done)
		_, _ = victim.TryTick(t, "reconcile-managed")
	}()
	time.Sleep(rand.N(4 * time.Second))
	for end := time.Now().Add(3 * time.Second); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
		if testkit.Scalar[bool](t, d.conn, claimedSQL) {
			time.Sleep(rand.N(500 * time.Millisecond))
			break
		}
	}
	victim.Kill()
	<-done
	t.Logf("killed in a round: %t", testkit.Scalar[bool](t, d.conn, claimedSQL))
	d.replicas[0] = testkit.Spawn(t, d.env)
}
