//go:build bench

package bench

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/time/rate"

	"github.com/cloudfn/cloudfn/shared/testkit"
)

const (
	floodRate    = 2000 // requests a second, without a good token
	floodClients = 64
	tenantPause  = 20 * time.Millisecond
	logBudget    = 10 << 30 // bytes a day: the default of REQUESTS_DAILY_MB
	floodBurst   = 1000     // what ADDRESS_RATE_LIMIT lets through at once by default
	floodLimit   = 10       // and then each second
)

// The address of the strangers. One tenant has the same, as all clients do behind a proxy that TRUSTED_PROXIES lacks.
const (
	floodAddress  = "127.0.0.4"
	tenantAddress = "127.0.0.2"
)

// TestFlood has strangers send requests from one address while two tenants work, with the default limits. It holds the
// tenants' p99 against the time before and after, and the growth of the request log against its budget.
func TestFlood(t *testing.T) {
	waitForKeystone(t)
	period := floodPeriod(t)
	database := testkit.Database(t)
	env := testkit.DaemonEnv(t, database)
	for _, name := range []string{"ADDRESS_RATE_LIMIT", "PROJECT_RATE_LIMIT"} {
		env[name] = "" // the default
	}
	f := &flood{t: t, url: testkit.Spawn(t, env).URL, tenants: []*tenant{
		newTenant(t, tenantAddress), newTenant(t, floodAddress),
	}}
	f.work(5 * time.Second) // the daemon knows their tokens from now on
	quiet := f.work(period / 2)
	conn := testkit.Connect(t, database)
	before := logBytes(t, conn)
	strangers := floodFrom(t, f.url)
	loud := f.work(period)
	sent, refused := strangers.end(t)
	grown := float64(logBytes(t, conn) - before)
	for n, more := range f.work(period / 2) {
		quiet[n] = append(quiet[n], more...)
	}
	// The next minutes would have no burst: a day's growth is less than this.
	if most := floodBurst + floodLimit*(period+5*time.Second).Seconds(); float64(sent-refused) > most {
		t.Errorf("%d requests of strangers were served, want %.0f at most", sent-refused, most)
	}
	perDay := grown * float64(24*time.Hour) / float64(period)
	t.Logf("%d requests of strangers, %d answered 429; the log grew by %.1f MB", sent, refused, grown/1e6)
	name := fmt.Sprintf("%.0f anonymous requests a second, ", float64(sent)/period.Seconds())
	for n, where := range []string{"at another address", "at the same address"} {
		if failed := f.tenants[n].failed.Load(); failed > 0 {
			t.Errorf("%d of %d requests of the tenant %s failed", failed, len(quiet[n])+len(loud[n]), where)
		}
		p, q := percentile(loud[n], 99), percentile(quiet[n], 99)
		report(result{
			number: "17a",
			name:   fmt.Sprintf("%sp99 of %d requests of a tenant %s : without", name, len(loud[n]), where),
			ours:   showMS(p), peer: showMS(q), ratio: p / q, target: atMost(2),
		})
	}
	report(result{
		number: "17b", name: name + "growth of the request log a day : budget",
		ours: fmt.Sprintf("%.2f GiB", perDay/(1<<30)), peer: fmt.Sprintf("%d GiB", logBudget>>30),
		ratio: perDay / logBudget, target: atMost(1),
	})
}

// floodPeriod is half a minute, or BENCH_FLOOD.
func floodPeriod(t *testing.T) time.Duration {
	t.Helper()
	text := os.Getenv("BENCH_FLOOD")
	if text == "" {
		return 30 * time.Second
	}
	period, err := time.ParseDuration(text)
	must(t, err)
	return period
}

type flood struct {
	t       *testing.T
	url     string
	tenants []*tenant
}

type tenant struct {
	client *http.Client
	token  string
	failed atomic.Int64
}

func newTenant(t *testing.T, address string) *tenant {
	t.Helper()
	return &tenant{client: from(address, 1), token: testkit.NewProject(t).Token(t)}
}

// from is a client at an address of this machine.
func from(address string, connections int) *http.Client {
	dialer := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(address)}}
	return &http.Client{Timeout: time.Minute, Transport: &http.Transport{
		DialContext: dialer.DialContext, MaxIdleConnsPerHost: connections, MaxConnsPerHost: connections,
	}}
}

// work has the tenants work for some time, and returns how long the requests of each took.
func (f *flood) work(d time.Duration) [][]float64 {
	took := make([][]float64, len(f.tenants))
	var all sync.WaitGroup
	end := time.Now().Add(d)
	for n, tenant := range f.tenants {
		all.Go(func() {
			for time.Now().Before(end) {
				_, ms, err := fetch(tenant.client, f.url+"/v1/callbacks", http.Header{"X-Auth-Token": {tenant.token}})
				if err != nil && tenant.failed.Add(1) == 1 {
					f.t.Log(err)
				}
				took[n] = append(took[n], ms)
				time.Sleep(tenantPause)
			}
		})
	}
	all.Wait()
	return took
}

// strangers is a process that sends floodRate requests a second, as far as this machine can. In this process they would
// delay the tenants' clocks.
type strangers struct {
	cmd    *exec.Cmd
	stdin  io.Closer
	stdout *bytes.Buffer
}

// floodEnv has this binary send requests to the URL that it holds, until its input ends.
const floodEnv = "BENCH_FLOOD_URL"

func floodFrom(t *testing.T, url string) strangers {
	t.Helper()
	s := strangers{exec.Command(os.Args[0]), nil, &bytes.Buffer{}}
	s.cmd.Env, s.cmd.Stdout, s.cmd.Stderr = append(os.Environ(), floodEnv+"="+url), s.stdout, os.Stderr
	var err error
	s.stdin, err = s.cmd.StdinPipe()
	must(t, err)
	must(t, s.cmd.Start())
	t.Cleanup(func() { _ = s.cmd.Process.Kill() })
	return s
}

// end ends the process, and returns how many requests it has sent, and how many of them were over a limit.
func (s strangers) end(t *testing.T) (sent, refused int) {
	t.Helper()
	must(t, s.stdin.Close())
	must(t, s.cmd.Wait())
	_, err := fmt.Fscan(s.stdout, &sent, &refused)
	must(t, err)
	return sent, refused
}

func floodMain(url string) int {
	ctx, cancel := context.WithCancel(context.Background())
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		cancel()
	}()
	client, pace := from(floodAddress, floodClients), rate.NewLimiter(floodRate, floodRate/10)
	var sent, refused atomic.Int64
	var all sync.WaitGroup
	for range floodClients {
		all.Go(func() {
			for pace.Wait(ctx) == nil {
				if status := askAsStranger(client, url, sent.Add(1)); status == http.StatusTooManyRequests {
					refused.Add(1)
				}
			}
		})
	}
	all.Wait()
	fmt.Println(sent.Load(), refused.Load())
	return 0
}

// askAsStranger sends the nth request. Of three, one has no token, one a token that nobody has sent before, and one a
// path that does not exist.
func askAsStranger(client *http.Client, url string, n int64) (status int) {
	path, header := "/v1/servers", http.Header{}
	switch n % 3 {
	case 1:
		header.Set("X-Auth-Token", fmt.Sprintf("gAAAA%d", n))
	case 2:
		path = fmt.Sprintf("/%d", n)
	}
	req, err := http.NewRequest(http.MethodGet, url+path, nil)
	if err != nil {
		return 0
	}
	req.Header = header
	resp, err := client.Do(req)
	if err != nil {
		return 0
	}
	_, _ = io.Copy(io.Discard, resp.Body) // keeps the connection
	_ = resp.Body.Close()
	return resp.StatusCode
}

func logBytes(t *testing.T, conn testkit.Querier) int64 {
	t.Helper()
	return testkit.Scalar[int64](t, conn, `select sum(pg_total_relation_size(inhrelid))::bigint
		from pg_inherits where inhparent = 'requests'::regclass`)
}
