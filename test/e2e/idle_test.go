//go:build e2e

package e2e

import (
	"encoding/json"
	"flag"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"slices"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/testkit"
)

var (
	idleInstances = flag.Int("idle-instances", 50, "how many stopped instances the installation of TestIdle has")
	idleMinutes   = flag.Int("idle-minutes", 5,
		"for how long TestIdle leaves its installation alone, 4 at least; 10 give the figures of docs/measurements.md")
)

const (
	// judged are the last minutes of these. Before, the pods end of the functions that have made the installation.
	judged = 3 * time.Minute
	// podFor is for how long one event may keep a pod: it starts and works for some seconds, then it has no event for
	// its window of 10 s, and it may stay for the grace period of 30 s.
	podFor = 45 * time.Second
)

// pollers follow each minute what is outside of Postgres (docs/adr/0126-one-clock.md): Nova's changes, and nodes.
var pollers = []string{"poll-instances", "watch-nodes"}

// TestIdle makes an installation in which nothing happens, with the autoscaling that Knative has by default: the clock
// keeps its pod, those that poll have one for a part of each minute, and no other function has one, unless it has
// something due. Then what comes due, and what is ordered, is done in time, from zero.
func TestIdle(t *testing.T) {
	testkit.Heavy(t)
	autoscaleByDefault(t)
	idle := time.Duration(*idleMinutes) * time.Minute
	// The lease begins when its server is shelved, the idle time has ended, and a change was found.
	i := newInstallation(t, *idleInstances, idle+150*time.Second)
	samples := startSampler(t)
	time.Sleep(idle - judged - podFor)
	from := time.Now()
	due := dueUntil(t, from.Add(podFor+judged))
	time.Sleep(podFor + judged)
	until := time.Now()
	samples.end()
	fmt.Printf("\n%s, %s\n", t.Name(), samples.table(until))
	if samples.usage != nil {
		fmt.Println(" ", samples.usage)
	}
	events := momentsOf(t, "select 'deliver-events', at from events where at >= $1", from)
	due["deliver-events"] = append(due["deliver-events"], events["deliver-events"]...)
	checkIdle(t, samples, until, due)

	fmt.Printf("\n%s, from zero:\n", t.Name())
	changeByClient(t, i)
	beginLease(t, i)
	countHour(t)
	orderByConnection(t, i)
}

// autoscaleByDefault gives Knative its own defaults during the test: the test cluster has shorter times.
func autoscaleByDefault(t *testing.T) {
	t.Helper()
	set := func(values map[string]any) {
		patch, _ := json.Marshal(map[string]any{"data": values})
		command(t, "kubectl", "patch", "configmap", "config-autoscaler", "-n", "knative-serving", "--type=merge",
			"-p", string(patch))
	}
	var config struct{ Data map[string]string }
	out := command(t, "kubectl", "get", "configmap", "config-autoscaler", "-n", "knative-serving", "-o", "json")
	if err := json.Unmarshal([]byte(out), &config); err != nil {
		t.Fatal(err)
	}
	before := map[string]any{}
	for _, name := range []string{"stable-window", "scale-to-zero-grace-period"} {
		before[name] = nil // removes it
		if value, isSet := config.Data[name]; isSet {
			before[name] = value
		}
	}
	t.Cleanup(func() { set(before) })
	set(map[string]any{"stable-window": "60s", "scale-to-zero-grace-period": "30s"})
}

// dueUntil returns when something of each function is due until then, by the rows that say so. What recurs within these
// minutes is in it once.
func dueUntil(t *testing.T, until time.Time) map[string][]time.Time {
	t.Helper()
	moments := momentsOf(t, `
select function, greatest(due_at, now()) from (
    select kind as function, due_at from jobs
    union all select 'reconcile-managed', due_at from managed_projects
    union all select 'run-leases', due_at from leases
    union all select kind, claimed_until from jobs -- an hour that is counted again, because a project was not readable
    where kind = 'collect-stats' and due_at is null and done_at is null
    union all select 'run-connections', next_check_at from connections where status = 'active'
) due where due_at <= $1`, until)
	if hour := until.Truncate(time.Hour); hour.After(time.Now()) {
		moments["collect-stats"] = append(moments["collect-stats"], hour)
	}
	return moments
}

// momentsOf reads rows of a function and a moment.
func momentsOf(t *testing.T, sql string, arg time.Time) map[string][]time.Time {
	t.Helper()
	moments := map[string][]time.Time{}
	rows, _ := testkit.Pool(t, databaseURL).Query(t.Context(), sql, arg)
	var function string
	var at time.Time
	if _, err := pgx.ForEachRow(rows, []any{&function, &at}, func() error {
		moments[function] = append(moments[function], at)
		return nil
	}); err != nil {
		t.Errorf("what is due: %v", err)
	}
	return moments
}

// allowance is for how long pods may be there between two moments, if something is due at some moments.
func allowance(due []time.Time, from, until time.Time) (sum time.Duration) {
	for _, at := range slices.SortedFunc(slices.Values(due), time.Time.Compare) {
		end := at.Add(podFor)
		if end.After(until) {
			end = until
		}
		if at.Before(from) {
			at = from
		}
		if end.After(at) {
			sum += end.Sub(at)
			from = end
		}
	}
	return sum
}

// checkIdle holds the pods of the last minutes against what was due.
func checkIdle(t *testing.T, samples *sampler, until time.Time, due map[string][]time.Time) {
	t.Helper()
	if failed, all := samples.failures(); failed > all/10 {
		t.Errorf("the cluster did not say which pods there are, %d times of %d", failed, all)
	}
	from := until.Add(-judged)
	present := samples.present(from, until)
	for _, function := range functions(t) {
		got, most := present[function], allowance(due[function], from, until)
		switch {
		case function == "clock":
			if got == 0 {
				t.Error("the clock has no pod")
			}
			continue
		case slices.Contains(pollers, function):
			most = podFor * (judged / time.Minute)
			if got == 0 {
				t.Errorf("%s, which polls each minute, had no pod", function)
			}
		case most > 0:
			fmt.Printf("  %s had something due %d times, and a pod for %s\n", function, len(due[function]),
				got.Round(time.Second))
		}
		if got > most {
			t.Errorf("%s had a pod for %s of %s, want %s at the most", function, got.Round(time.Second), judged, most)
		}
	}
}

// within waits for something, and holds the time since its moment against a limit.
func within(t *testing.T, limit time.Duration, what string, moment time.Time, isDone func() bool) {
	t.Helper()
	testkit.Eventually(t, limit+2*time.Minute, what, isDone)
	took := time.Since(moment)
	fmt.Printf("  %-60s %5.1f s, %s at the most\n", what, took.Seconds(), limit)
	if took > limit {
		t.Errorf("%s after %s, want %s at the most", what, took.Round(100*time.Millisecond), limit)
	}
}

// changeByClient starts a stopped server by python-openstackclient, as its owner.
func changeByClient(t *testing.T, i *installation) {
	t.Helper()
	server, pool := i.stopped[0].ID, testkit.Pool(t, databaseURL)
	toZero(t, "poll-instances")
	cmd := exec.Command("openstack", "server", "start", server)
	cmd.Env = os.Environ()
	for name, value := range i.owner.Environment() {
		cmd.Env = append(cmd.Env, name+"="+value)
	}
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("openstack server start: %v %s", err, out)
	}
	within(t, 65*time.Second, "a server that the openstack client has started is active", time.Now(), func() bool {
		return testkit.Scalar[string](t, pool, "select state from instances where server_id = $1", server) == "active"
	})
}

// beginLease waits for the moment at which the lease begins: Nova then gets the call that unshelves its server. What
// Nova needs for that is not the functions' time; it is printed.
func beginLease(t *testing.T, i *installation) {
	t.Helper()
	wait := time.Until(i.starts.Add(-2 * time.Second))
	if wait < 0 {
		t.Fatalf("the lease began %s ago: what came before took too long", time.Since(i.starts).Round(time.Second))
	}
	time.Sleep(wait)
	if list, err := pods("run-leases"); err != nil || len(list) > 0 {
		t.Errorf("before the lease begins run-leases has the pods %v: %v", list, err)
	}
	time.Sleep(time.Until(i.starts))
	within(t, 5*time.Second, "Nova has got the call with which a lease begins", i.starts, func() bool {
		return testkit.NovaSQL(t, fmt.Sprintf(
			"select 1 from instance_actions where instance_uuid = '%s' and action = 'unshelve'", i.leased.ID)) != ""
	})
	pool := testkit.Pool(t, databaseURL)
	testkit.Eventually(t, minutes(2), "the lease is active", func() bool {
		return testkit.Scalar[string](t, pool, "select status from leases where id = $1", i.lease) == "active"
	})
	fmt.Printf("  %-60s %5.1f s\n", "its server is active, and so is the lease", time.Since(i.starts).Seconds())
}

// countHour moves the database's clock back so that its full hour is at a full minute, at which the PingSource of
// collect-stats ticks for once.
func countHour(t *testing.T) {
	t.Helper()
	toZero(t, "collect-stats")
	minute := time.Now().Add(25 * time.Second).Truncate(time.Minute).Add(time.Minute)
	hour := minute.Truncate(time.Hour)
	t.Cleanup(func() { resume(t) })
	every(t, "collect-stats", fmt.Sprintf("%d * * * *", minute.Minute()))
	back := moveClock(t, time.Now().Add(hour.Sub(minute)))
	defer back()
	pool, key := testkit.Pool(t, databaseURL), domain.HourKey(hour)
	for sql, arg := range map[string]any{ // it was counted when it was real
		"delete from stats_hourly where hour = $1":                         hour,
		"delete from jobs where kind = 'collect-stats' and key = $1::text": key,
	} {
		if _, err := pool.Exec(t.Context(), sql, arg); err != nil {
			t.Fatal(err)
		}
	}
	if !time.Now().Before(minute) {
		t.Fatal("moving the clock took too long")
	}
	time.Sleep(time.Until(minute))
	within(t, time.Minute, "the full hour is counted", minute, func() bool {
		return testkit.Scalar[bool](t, pool, `select exists (select from jobs
			where kind = 'collect-stats' and key = $1 and done_at is not null)`, key)
	})
}

// orderByConnection orders a server in the owner's project as the other one's user.
func orderByConnection(t *testing.T, i *installation) {
	t.Helper()
	s, c, pool := testkit.Sandbox(t), i.launch.As(i.other.Token(t)), testkit.Pool(t, databaseURL)
	toZero(t, "launch", "run-connections")
	sent := time.Now()
	order := post(t, c, "/v1/launch", http.StatusAccepted, map[string]any{
		"connection_id": i.connection, "name": "ordered", "flavor": s.Flavor, "image": s.Image,
		"networks": []string{s.Network},
	})
	accepted := time.Now()
	fmt.Printf("  %-60s %5.1f s\n", "an order through a connection is accepted", accepted.Sub(sent).Seconds())
	within(t, 5*time.Second, "Nova has made the server that was ordered", accepted, func() bool {
		return testkit.Scalar[bool](t, pool,
			"select exists (select from instances where order_id = $1 and server_id is not null)", order)
	})
	testkit.Eventually(t, minutes(3), "the order is done", func() bool {
		return testkit.Scalar[string](t, pool, "select status from orders where id = $1", order) == "done"
	})
	fmt.Printf("  %-60s %5.1f s\n", "it is active, and the order done", time.Since(accepted).Seconds())
}
