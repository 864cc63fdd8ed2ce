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

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"golang.org/x/time/rate"

	"github.com/cloudfn/cloudfn/shared/audit"
	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/postgres"
	"github.com/cloudfn/cloudfn/shared/testkit"
)

const (
	logClients = 128
	logCalls   = 200 // by each client in one round
	logRounds  = 6
	insertPool = 16  // connections of the peer; we have 4, as a replica has by default
	copyRows   = 500 // in one statement of the limit
)

// logRig is one database whose request log is written in several ways.
type logRig struct {
	rig
	log  *audit.Log
	pool *pgxpool.Pool
}

// side is what one way did: rows per second by round, and the latency of every call.
type side struct {
	rates []float64
	calls []float64
}

// TestRequestLog holds the collector of shared/audit against an insert per request (what one would write
// first) and against COPY of ready rows on one connection (what Postgres can take).
func TestRequestLog(t *testing.T) {
	rig := newLogRig(t)
	var ours, checked, inserts, copies side
	alternate(logRounds,
		func() { rig.crowd(&ours, rig.record) },
		func() { rig.crowd(&inserts, rig.insert) },
		func() { rig.copyAll(&copies) },
		func() { rig.crowd(&checked, rig.checkAndRecord) },
	)
	we, they, limit := median(ours.rates), median(inserts.rates), median(copies.rates)
	compare("1a",
		fmt.Sprintf("request log, rows/s, %d clients : insert per request, pool of %d", logClients, insertPool), we,
		they, showRate, atLeast(4))
	compare("1b", fmt.Sprintf("request log, rows/s : COPY of %d ready rows at a time", copyRows), we, limit, showRate,
		atLeast(0.5))
	for _, p := range []int{50, 99} {
		a, b := percentile(ours.calls, p), percentile(inserts.calls, p)
		compare("1c", fmt.Sprintf("request log, p%d of a call : insert per request", p), a, b, showMS, shown)
	}
	both := median(checked.rates)
	compare("1d", "request log with the check before each request, rows/s : insert per request", both, they, showRate,
		shown)
}

func showRate(v float64) string { return fmt.Sprintf("%.0f/s", v) }

func newLogRig(t *testing.T) *logRig {
	t.Helper()
	r := newRig(t)
	db := r.open(4, nil)
	requests := postgres.Requests{DB: db}
	must(t, requests.Maintain(context.Background(), time.Hour)) // the month's partition, as in production
	rig := &logRig{r, audit.New(requests, db), r.pool(insertPool)}
	rig.mustBeDurable()
	return rig
}

// mustBeDurable refuses a database that only pretends to write.
func (r *logRig) mustBeDurable() {
	for _, setting := range []string{"fsync", "synchronous_commit", "full_page_writes"} {
		if value := testkit.Scalar[string](r.t, r.Conn, "select current_setting($1)", setting); value != "on" {
			r.t.Fatalf("%s is %s: this would measure nothing", setting, value)
		}
	}
}

// crowd measures one round of one way, and checks that there is a row for every answer.
func (r *logRig) crowd(s *side, call func(context.Context) error) {
	r.run("truncate requests") // every round meets a table of the same size
	ctx := context.Background()
	calls, all, err := crowd(logClients, logCalls, func() error { return call(ctx) })
	must(r.t, err)
	r.expect(len(calls))
	s.calls = append(s.calls, calls...)
	s.rates = append(s.rates, float64(len(calls))/all.Seconds())
}

func (r *logRig) record(ctx context.Context) error { return r.log.Record(ctx, newRow()) }

// checkAndRecord is what the edge does for every request.
func (r *logRig) checkAndRecord(ctx context.Context) error {
	if err := r.log.Ready(ctx); err != nil {
		return err
	}
	return r.record(ctx)
}

var rowColumns = []string{
	"id", "function", "method", "path", "status", "ms", "user_id", "project_id", "domain_id", "request_id", "remote",
	"code",
}

const insertRowSQL = `
insert into requests (id, function, method, path, status, ms, user_id, project_id, domain_id, request_id, remote, code)
values ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12)`

func (r *logRig) insert(ctx context.Context) error {
	row := newRow()
	_, err := r.pool.Exec(ctx, insertRowSQL, rowValues(&row)...)
	return err
}

// copyAll writes as many rows as a round of the others, all of them ready before the clock starts.
func (r *logRig) copyAll(s *side) {
	r.run("truncate requests")
	rows := make([][]any, logClients*logCalls)
	for i := range rows {
		row := newRow()
		rows[i] = rowValues(&row)
	}
	took := timed(func() {
		for from := 0; from < len(rows); from += copyRows {
			part := rows[from:min(from+copyRows, len(rows))]
			_, err := r.CopyFrom(context.Background(), pgx.Identifier{"requests"}, rowColumns, pgx.CopyFromRows(part))
			must(r.t, err)
		}
	})
	r.expect(len(rows))
	s.rates = append(s.rates, float64(len(rows))/took*1000)
}

func (r *logRig) expect(answers int) {
	if rows := r.count("select count(*) from requests"); rows != answers {
		r.t.Errorf("%d rows for %d answers", rows, answers)
	}
}

func newRow() domain.Request {
	id := uuid.Must(uuid.NewV7())
	return domain.Request{
		ID: id, Function: "servers", Method: "GET", Path: "/v1/servers/4f8052c0-49f2-4b75-a508-5c4454e37731",
		Status:   200,
		Duration: 42 * time.Millisecond, UserID: "fe72559b26734b36b94e5ea3d594acc4",
		ProjectID: "43f6e73ab2484cdd87b789e3e289627c",
		DomainID:  "default", RequestID: "req-" + id.String(), Remote: "127.0.0.1",
	}
}

func rowValues(q *domain.Request) []any {
	return []any{
		q.ID, q.Function, q.Method, q.Path, int16(q.Status), int32(q.Duration.Milliseconds()),
		q.UserID, q.ProjectID, q.DomainID, q.RequestID, q.Remote, q.Code,
	}
}

const (
	floodRate    = 2000 // requests a second, without a good token
	floodClients = 64
	tenantPause  = 20 * time.Millisecond
	logBudget    = 10 << 30 // bytes a day: the default of REQUESTS_DAILY_MB
	floodBurst   = 1000     // the burst of ADDRESS_RATE_LIMIT by default
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
	db := newRig(t)
	env := testkit.DaemonEnv(t, db.url)
	for _, name := range []string{"ADDRESS_RATE_LIMIT", "PROJECT_RATE_LIMIT"} {
		env[name] = "" // the default
	}
	f := &flood{t: t, url: testkit.Spawn(t, env).URL, tenants: []*tenant{
		newTenant(t, tenantAddress), newTenant(t, floodAddress),
	}}
	f.work(5 * time.Second) // the daemon knows their tokens from now on
	quiet := f.work(period / 2)
	before := logBytes(db)
	strangers := floodFrom(t, f.url)
	loud := f.work(period)
	sent, refused := strangers.end(t)
	grown := float64(logBytes(db) - before)
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
		compare("17a", fmt.Sprintf("%sp99 of %d requests of a tenant %s : without", name, len(loud[n]), where), p, q,
			showMS, atMost(2))
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
	client, limiter := from(floodAddress, floodClients), rate.NewLimiter(floodRate, floodRate/10)
	var sent, refused atomic.Int64
	var all sync.WaitGroup
	for range floodClients {
		all.Go(func() {
			for limiter.Wait(ctx) == nil {
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

// askAsStranger sends the nth request. Of three, one has no token, one a token that no one has sent before, and one a
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

func logBytes(db rig) int {
	return db.count(`select sum(pg_total_relation_size(inhrelid))::bigint
		from pg_inherits where inhparent = 'requests'::regclass`)
}
