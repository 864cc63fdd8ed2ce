package console

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cloudfn/cloudfn/shared/testkit"
)

// What runs in Chromium, by the names of the files in test/browser: the main job in make test, all else in test-long.
var (
	mainFiles    = []string{"main"}
	longFiles    = []string{"console", "objects", "faults", "looks", "managed", "nodes", "slow"}
	leaseFiles   = []string{"leases"}  // they wait for Nova, whose clock is the database's
	hostFiles    = []string{"hosts"}   // they take the sandbox's reservable hosts
	journeyFiles = []string{"journey"} // a server through its life
)

// TestEveryBrowserTestIsRun, here or, of /v1/docs, in test/contract.
func TestEveryBrowserTestIsRun(t *testing.T) {
	t.Parallel()
	found, err := filepath.Glob(filepath.Join(testkit.Root(), "test", "browser", "*.test.mjs"))
	if err != nil || len(found) == 0 {
		t.Fatalf("%v %v", found, err)
	}
	reference := []string{"docs", "snippets"}
	for _, path := range found {
		name := strings.TrimSuffix(filepath.Base(path), ".test.mjs")
		all := slices.Concat(reference, mainFiles, longFiles, leaseFiles, hostFiles, journeyFiles)
		if !slices.Contains(all, name) {
			t.Errorf("nothing runs %s", path)
		}
	}
}

// TestBrowser has the console's main job done in a real Chromium: against the daemon with all its functions and the
// sandbox cloud.
func TestBrowser(t *testing.T) {
	t.Parallel()
	browse(t, mainFiles)
}

// TestLongBrowser runs the other files, each in a project of its own.
func TestLongBrowser(t *testing.T) {
	t.Parallel()
	testkit.Heavy(t)
	browse(t, longFiles)
}

// TestLongBrowserLeases runs the file about leases.
func TestLongBrowserLeases(t *testing.T) {
	t.Parallel()
	testkit.Heavy(t)
	browse(t, leaseFiles)
}

// TestLongBrowserHosts runs the files that need hosts of their own.
func TestLongBrowserHosts(t *testing.T) {
	t.Parallel()
	testkit.Heavy(t)
	browse(t, hostFiles)
}

// TestLongBrowserJourney takes a server through its life on the page.
func TestLongBrowserJourney(t *testing.T) {
	t.Parallel()
	testkit.Heavy(t)
	browse(t, journeyFiles)
}

func browse(t *testing.T, files []string) {
	t.Helper()
	chromium := testkit.Chromium(t)
	database := testkit.Database(t)
	// The hour must not change in the middle, nor be counted again. Chromium keeps its own clock, and shows what
	// happened within the last 15 minutes.
	if hour := time.Now().Truncate(time.Hour); !slices.Equal(files, leaseFiles) {
		testkit.SetClock(t, database, hour.Add(min(max(time.Since(hour), 20*time.Minute), 48*time.Minute)))
	}
	receiver := testkit.NewReceiver(t,
		func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNoContent) })
	own := map[string]*testkit.Project{}
	for _, file := range files {
		p := projectOf(t, file)
		own[file] = p
		switch file {
		case "leases":
			t.Cleanup(func() { p.DeleteImages(t) })
		case "managed":
			p.Network(t, "private", "10.0.0.0/24")
		case "hosts":
			p.Grant(t, p.UserID, "admin")
			reservable(t, database)
		case "main", "nodes":
			p.Grant(t, p.UserID, "admin")
		}
		day(t, database, p) // before the daemon begins to count
		if slices.Contains([]string{"main", "leases", "looks"}, file) {
			calendar(t, database, p)
		}
	}
	daemon := testkit.Spawn(t, testkit.Env(t, database, map[string]string{"STATS_BACKFILL": "1h"}))
	accounts := map[string]account{}
	for file, p := range own {
		accounts[file] = furnish(t, daemon.Client, file, p, receiver.URL)
	}
	given, err := json.Marshal(accounts)
	if err != nil {
		t.Fatal(err)
	}
	runNode(t, files, "CHROMIUM="+chromium, "CONSOLE_URL="+daemon.URL, "CONSOLE_RECEIVER="+receiver.URL,
		"CONSOLE_ACCOUNTS="+string(given), "OS_CLIENT_CONFIG_FILE="+testkit.CloudsFile(t, own))
}

// projectOf returns the project of a file's own. What the journey makes there is deleted after it.
func projectOf(t *testing.T, file string) *testkit.Project {
	t.Helper()
	if file != "journey" {
		return testkit.BorrowProject(t)
	}
	p := testkit.NewProject(t)
	p.RoutedNetwork(t, "inside", "10.53.0.0/24")
	t.Cleanup(func() { p.DeleteVolumes(t) })
	t.Cleanup(func() { p.DeleteImages(t) })
	return p
}

// furnish gives a file's project what its pages show, and returns who signs in.
func furnish(t *testing.T, daemon *testkit.Client, file string, p *testkit.Project, receiver string) account {
	t.Helper()
	second := testkit.BorrowProject(t)
	second.Grant(t, p.UserID, "member")
	api := daemon.As(p.Token(t))
	must(t, api.Post(t, "/v1/connections", fmt.Sprintf(
		`{"name": "build machines", "kind": "trust", "actions": ["allocate", "start", "stop"], "quota": {"instances": 3, "ram_mb": 4096},
			  "limits": {"flavors": [%q]}, "usable_by": [{"project": %q}], "expires_at": %q}`, testkit.Sandbox(t).Flavor, second.Name,
		time.Now().Add(60*time.Hour).UTC().Format(time.RFC3339))))
	for _, name := range []string{"<b>nightly</b>", "weekly"} {
		must(t, api.Post(t, "/v1/connections/requests", fmt.Sprintf(
			`{"project_id": %q, "name": %q, "why": "<i>we build</i> at night", "actions": ["allocate", "deallocate"], "quota": {"instances": 3}, "duration": "48h"}`,
			p.ID, name)))
	}
	switch file {
	case "main":
		declareFiles(t, api)
	case "managed":
		declareFiles(t, api)
		declareServers(t, api)
	}
	if file == "main" || file == "looks" {
		must(t, api.Post(t, "/v1/callbacks", fmt.Sprintf(`{"url": %q}`, receiver)))
	}
	return account{p.Name, p.Environment()["OS_PASSWORD"], p.Name, second.Name}
}

// account is who a file of tests signs in as.
type account struct {
	User     string `json:"user"`
	Password string `json:"password"`
	Project  string `json:"project"`
	Second   string `json:"second"` // another project that the user may choose
}

// day stores a day of hours for the project: counted ones, some that were rebuilt, and three unknown ones.
func day(t *testing.T, database string, p *testkit.Project) {
	t.Helper()
	conn := testkit.Connect(t, database)
	if _, err := conn.Exec(context.Background(), `insert into stats_projects
		select $1, $2, date_trunc('hour', now(), 'UTC') - interval '30 hours', date_trunc('hour', now(), 'UTC')`, p.ID, p.DomainID); err != nil {
		t.Fatal(err)
	}
	for ago := range 30 {
		running, stopped, source := 3+(ago*5)%4, ago%3, "sampled"
		switch {
		case ago >= 8 && ago <= 10:
			continue
		case ago == 0:
			running, stopped = 7, 1
		case ago == 3:
			running, stopped = 3, 2
		case ago == 5:
			running, stopped = 4, 0
		}
		if ago >= 4 && ago < 8 {
			source = "rebuilt"
		}
		uncertain := 0
		if ago == 3 {
			uncertain = 1
		}
		by := map[string]int{"ACTIVE": running}
		if stopped > 0 {
			by["SHUTOFF"] = stopped
		}
		status, err := json.Marshal(by)
		if err != nil {
			t.Fatal(err)
		}
		_, err = conn.Exec(context.Background(), `insert into stats_hourly (project_id, domain_id, hour, running, total, by_status, source, uncertain, launched)
			values ($1, $2, date_trunc('hour', now(), 'UTC') - make_interval(hours => $3), $4, $5, $6, $7, $8, $9)`,
			p.ID, p.DomainID, ago, running, running+stopped, status, source, uncertain, 2*uncertain)
		if err != nil {
			t.Fatal(err)
		}
	}
}

func must(t *testing.T, a testkit.Answer) {
	t.Helper()
	if a.Status != http.StatusCreated {
		t.Fatalf("got %d %s", a.Status, a.Body)
	}
}

// runNode runs the files of test/browser/, side by side, by Node's own test runner.
func runNode(t *testing.T, files []string, env ...string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Minute)
	defer cancel()
	args := []string{"--test", "--test-reporter=spec", "--test-concurrency=2"}
	for _, file := range files {
		args = append(args, file+".test.mjs")
	}
	cmd := exec.CommandContext(ctx, "node", args...)
	cmd.Dir = filepath.Join(testkit.Root(), "test", "browser")
	cmd.Env = append(env, "PATH="+os.Getenv("PATH"), "HOME="+t.TempDir(), "NO_PROXY=*")
	cmd.WaitDelay = 5 * time.Second
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	t.Logf("%s", strings.TrimSpace(string(out)))
}

// calendar stores leases of the project in all the ways in which the page shows them. run-leases has no work with them.
func calendar(t *testing.T, database string, p *testkit.Project) {
	t.Helper()
	conn := testkit.Connect(t, database)
	for _, lease := range []struct{ name, status, problem, from, until, reservation string }{
		{"workshop", "active", "", "-1 day", "2 days", "host"},
		{"nightly", "pending", "", "1 day", "32 hours", "instance"},
		{
			"broken", "error", `{"code": "delegation_lost", "detail": "its user may not act here: a retry delegates again"}`,
			"-2 days", "5 days", "instance",
		},
		{
			"stuck", "ending", `{"code": "conflict", "detail": "server db cannot be ended yet"}`, "-2 days", "-1 hour", "host",
		},
		{"exam", "starting", "", "0 hours", "9 days", "host"},
		{"past", "ended", "", "-3 days", "-1 day", "host"},
	} {
		_, err := conn.Exec(context.Background(), `
			with lease as (
				insert into leases (project_id, id, domain_id, user_id, name, status, problem, starts_at, ends_at, before_end,
					on_end)
				values ($1, gen_random_uuid(), $2, $3, $4, $5, nullif($6, '')::jsonb, now() + $7::interval,
					now() + $8::interval, '1 hour', 'shelve')
				returning id)
			insert into reservations (project_id, id, lease_id, position, type, instance_id, want, flavors)
			select $1, gen_random_uuid(), id, 0, $9, case when $9 = 'instance' then gen_random_uuid() end,
				case when $9 = 'host' then '{"min": 2, "max": 3}'::jsonb end, '[]' from lease`,
			p.ID, p.DomainID, p.UserID, lease.name, lease.status, lease.problem, lease.from, lease.until,
			lease.reservation)
		if err != nil {
			t.Fatal(err)
		}
	}
	// Two hosts are allocated to each reservation that is open.
	_, err := conn.Exec(context.Background(), `
		with hosts as (
			insert into nodes (name, pool) select id || '-' || n, 'leaving' from reservations, generate_series(1, 2) n
			where project_id = $1 and type = 'host' returning name)
		select from hosts`, p.ID)
	if err == nil {
		_, err = conn.Exec(context.Background(), `
			insert into allocations (project_id, reservation_id, node, during)
			select r.project_id, r.id, nodes.name, tstzrange(l.starts_at, l.ends_at) from reservations r
			join leases l on l.project_id = r.project_id and l.id = r.lease_id
			join nodes on nodes.name like r.id || '-%'
			where r.project_id = $1`, p.ID)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// reservable takes the sandbox's reservable hosts for the test, and stores that they are in the pool.
func reservable(t *testing.T, database string) {
	t.Helper()
	for _, host := range testkit.ReservableHosts(t) {
		if _, err := testkit.Connect(t, database).Exec(context.Background(),
			"insert into nodes (name, pool) values ($1, 'reservable')", host); err != nil {
			t.Fatal(err)
		}
	}
}

// declareFiles declares files in the project, twice.
func declareFiles(t *testing.T, api *testkit.Client) {
	t.Helper()
	for _, text := range []string{"welcome", "<b>hello</b>"} {
		declare(t, api, "Configmap/files", `{"labels": {"app": "web"}, "spec": {"data": {"motd": "`+text+`"}}}`)
	}
}

// declareServers declares two servers in the project, and waits until they are ready.
func declareServers(t *testing.T, api *testkit.Client) {
	t.Helper()
	declare(t, api, "VirtualMachineDeployment/web", `{"labels": {"app": "web"}, "spec": {"count": 2, "flavor": "m1.tiny",
		"image": "cirros", "networks": ["private"]}}`)
	testkit.Eventually(t, 2*time.Minute, "the deployment is ready", func() bool {
		var web struct{ Status string }
		api.Get(t, "/v1/managed/VirtualMachineDeployment/web").JSON(t, &web)
		return web.Status == "ready"
	})
}

func declare(t *testing.T, api *testkit.Client, path, body string) {
	t.Helper()
	a := api.Do(t, "PUT", "/v1/managed/"+path, body, "Content-Type", "application/json")
	if a.Status >= http.StatusBadRequest {
		t.Fatalf("%s: got %d %s", path, a.Status, a.Body)
	}
}
