//go:build bench

package bench

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/postgres"
	"github.com/cloudfn/cloudfn/shared/testkit"
)

const countRounds = 5 // of ours; the peer, which takes as long as all of them many times over, runs first and last

// counter is one way to count the servers of a whole cloud, and what it used in each round.
type counter struct {
	took, cpu, peak, requests, mb []float64
}

// TestCount holds an hourly sample of the whole function collect-stats, in a process of its own with
// Postgres, against openstack-exporter's way to count, on a fake cloud of 100 000 servers.
func TestCount(t *testing.T) {
	fake, db := newFakeCloud(t, fakeServers), newRig(t)
	var ours, peer counter
	export := func() { compareCounts(t, "the exporter's way", peer.export(t, fake), fake.servers) }
	export()
	for range countRounds {
		ours.collect(db, fake)
		compareCounts(t, "collect-stats", counted(db), fake.servers)
		db.run("truncate jobs, stats_hourly, stats_projects, stats_sums")
	}
	export()
	// The pages of usage; a page of what failed, one of what changed, and after each an empty one; whether all cells
	// are up; the actions of what changed; a login, the projects.
	pages := (fakeServers - fakeFailed + fakePage - 1) / fakePage
	if want := pages + 7 + fakeChanged; int(median(ours.requests)) != want {
		t.Errorf("collect-stats made %.0f requests instead of %d", median(ours.requests), want)
	}
	ours.compare(peer)
}

func (c *counter) compare(peer counter) {
	name := fmt.Sprintf("count %d servers of %d projects (fake Nova), ", fakeServers, fakeProjects)
	line := func(what string, we, they []float64, show func(float64) string, goal target) {
		compare("5", name+what+" : exporter's way", median(we), median(they), show, goal)
	}
	line("time", c.took, peer.took, showMS, atMost(1.0/4))
	line("processor time", c.cpu, peer.cpu, showMS, atMost(1.0/15))
	line("peak memory", c.peak, peer.peak, showMB, atMost(1.0/8))
	line("requests", c.requests, peer.requests, func(v float64) string { return fmt.Sprintf("%.0f", v) }, shown)
	line("bytes received", c.mb, peer.mb, showMB, shown)
}

// collect starts collect-stats with an empty past and wakes it once.
func (c *counter) collect(db rig, fake *fakeCloud) {
	// The peer knows only now, so one hour is due.
	p := db.function("collect-stats", fake.URL, map[string]string{"STATS_BACKFILL": "1h"})
	defer p.Kill()
	busy := cpuTime(p.PID())
	requests, mb := fake.count(func() { c.took = append(c.took, timed(func() { tick(db.t, p, "collect-stats") })) })
	c.cpu = append(c.cpu, cpuTime(p.PID())-busy)
	c.peak = append(c.peak, memory(p.PID(), "VmHWM"))
	c.requests, c.mb = append(c.requests, float64(requests)), append(c.mb, mb)
}

func (c *counter) export(t *testing.T, fake *fakeCloud) map[string]projectCount {
	var r exporterReport
	requests, mb := fake.count(func() { r = runExporter(t, fake.URL) })
	c.took, c.cpu, c.peak = append(c.took, r.Took), append(c.cpu, r.CPU), append(c.peak, r.Peak)
	c.requests, c.mb = append(c.requests, float64(requests)), append(c.mb, mb)
	return r.Counts
}

// counted reads what collect-stats wrote.
func counted(db rig) map[string]projectCount {
	rows, _ := db.Query(context.Background(), "select project_id, running, total from stats_hourly")
	found := map[string]projectCount{}
	var id string
	var c projectCount
	_, err := pgx.ForEachRow(rows, []any{&id, &c.Running, &c.Total}, func() error {
		found[id] = c
		return nil
	})
	must(db.t, err)
	return found
}

// compareCounts checks that every project was counted, and rightly.
func compareCounts(t *testing.T, who string, found map[string]projectCount, servers []fakeServer) {
	t.Helper()
	truth := map[string]projectCount{}
	for _, s := range servers {
		c := truth[s.project]
		c.Total++
		if s.state == "active" {
			c.Running++
		}
		truth[s.project] = c
	}
	if len(found) != len(truth) {
		t.Errorf("%s counted %d projects instead of %d", who, len(found), len(truth))
	}
	for id, want := range truth {
		if found[id] != want {
			t.Fatalf("%s counted %+v in project %s instead of %+v", who, found[id], id, want)
		}
	}
}

// exporterEnv makes this test binary the peer of the counting measurement: it holds the fake cloud's URL.
const exporterEnv = "BENCH_EXPORTER"

// exporterReport is what the peer found and used, on its standard output.
type exporterReport struct {
	Counts map[string]projectCount
	Took   float64 // ms
	CPU    float64 // ms
	Peak   float64 // MB
}

type projectCount struct{ Running, Total int }

// exporterMain counts the servers of each project as openstack-exporter does, in a process of its own, so that
// its memory is its own.
func exporterMain(url string) int {
	report := exporterReport{Counts: map[string]projectCount{}}
	busy := cpuTime(os.Getpid())
	began := time.Now()
	all, err := listAllServers(url)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	for i := range all {
		c := report.Counts[all[i].TenantID]
		c.Total++
		if all[i].Status == "ACTIVE" {
			c.Running++
		}
		report.Counts[all[i].TenantID] = c
	}
	report.Took, report.CPU = ms(time.Since(began)), cpuTime(os.Getpid())-busy
	report.Peak = memory(os.Getpid(), "VmHWM")
	if err := json.NewEncoder(os.Stdout).Encode(report); err != nil {
		return 1
	}
	return 0
}

func runExporter(t *testing.T, url string) exporterReport {
	t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), exporterEnv+"="+url)
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	must(t, err)
	var report exporterReport
	must(t, json.Unmarshal(out, &report))
	return report
}

// A day without ticks is made up for with all times shortened alike: what Nova takes for an answer (the sandbox's, for
// a thousand servers), an event's limit of 5 minutes, and the minute between ticks.
const (
	outageScale   = 10
	outageChanged = 22_000 // servers that stopped at some time of the day
	usageTakes    = 2 * time.Second / outageScale
	listTakes     = 7 * time.Second / outageScale
	logTakes      = 60 * time.Millisecond / outageScale
	outageEvent   = 5 * time.Minute / outageScale
	outageTick    = time.Minute / outageScale
)

// outage is a fake cloud whose hours were not counted for a day. Its servers stopped one after the other.
type outage struct {
	*fakeCloud
	last  time.Time // the newest full hour
	mu    sync.Mutex
	pages map[string]map[string][]byte // of what changed, by since and marker
	logs  map[string]int               // how often each was read
}

// stopped is when one of the first servers stopped, the first of them last. None did so within the second of a full
// hour.
func (o *outage) stopped(i int) time.Time {
	at := o.last.Add(-time.Second - time.Duration(i)*24*time.Hour/outageChanged).Truncate(time.Second)
	if at.Equal(at.Truncate(time.Hour)) {
		return at.Add(-time.Second)
	}
	return at
}

func newOutage(t *testing.T) *outage {
	o := &outage{
		fakeCloud: newFakeCloud(t, fakeServers), last: time.Now().UTC().Truncate(time.Hour),
		pages: map[string]map[string][]byte{}, logs: map[string]int{},
	}
	for i := range outageChanged {
		o.servers[i].state = "stopped"
	}
	o.render()
	inner := o.Config.Handler
	o.Config.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		query := r.URL.Query()
		switch {
		case query.Has("changes-since"):
			time.Sleep(listTakes)
			o.send(w, o.changes(query.Get("changes-since"), query.Get("marker")))
		case strings.HasSuffix(r.URL.Path, "/os-instance-actions"):
			time.Sleep(logTakes)
			o.send(w, o.log(strings.Split(r.URL.Path, "/")[3]))
		case strings.HasSuffix(r.URL.Path, "/os-simple-tenant-usage"):
			time.Sleep(usageTakes)
			inner.ServeHTTP(w, r)
		default:
			inner.ServeHTTP(w, r)
		}
	})
	return o
}

func (o *outage) changes(since, marker string) []byte {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.pages[since] == nil {
		from, _ := time.Parse(time.RFC3339, since)
		listed := o.servers[:outageChanged]
		listed = listed[:slices.IndexFunc(append(slices.Clone(listed), fakeServer{number: -1}),
			func(s fakeServer) bool {
				return s.number < 0 || o.stopped(s.number).Before(from)
			})]
		o.pages[since] = paged(listed, "?", o.page)
	}
	if page, ok := o.pages[since][marker]; ok {
		return page
	}
	return []byte(`{"servers": []}`)
}

func (o *outage) page(servers []fakeServer, next string) []byte {
	texts := make([]string, len(servers))
	for i, s := range servers {
		texts[i] = s.fill(strings.Replace(serverTemplate, "SERVER_UPDATED",
			o.stopped(s.number).Format("2006-01-02T15:04:05Z"), 1))
	}
	return []byte(`{"servers": [` + strings.Join(texts, ", ") + "]" + nextLink("servers_links", next) + "}")
}

func (o *outage) log(id string) []byte {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.logs[id]++
	var number int
	_, _ = fmt.Sscanf(id[len(id)-12:], "%x", &number)
	return actionLog("stop", o.stopped(number))
}

// TestOutage counts the events that collect-stats needs for a day without ticks, in a process of its own.
func TestOutage(t *testing.T) {
	fake, db := newOutage(t), newRig(t)
	testkit.SetClock(t, db.url, fake.last.Add(10*time.Minute)) // so that no hour begins meanwhile
	p := db.function("collect-stats", fake.URL, map[string]string{
		"STATS_BACKFILL": "24h", "EVENT_TIMEOUT": outageEvent.String(),
	})
	defer p.Kill()
	var all, newest time.Duration
	var events int
	want := fake.truth()
	for events = 1; events <= 60; events++ {
		began := time.Now()
		if a := p.Tick(t, "collect-stats"); a.Status != http.StatusNoContent &&
			a.Status != http.StatusServiceUnavailable {
			t.Fatalf("got %d: %s", a.Status, p.Log())
		}
		all += max(time.Since(began), outageTick)
		found := runningByHour(db)
		if newest == 0 && found[domain.HourKey(fake.last)] == want[domain.HourKey(fake.last)] {
			newest = all
		}
		if maps.Equal(found, want) {
			break
		}
	}
	if found := runningByHour(db); !maps.Equal(found, want) {
		t.Errorf("after %d events the hours are %v instead of %v", events, found, want)
	}
	read := 0
	for _, n := range fake.logs {
		read += n
	}
	name := fmt.Sprintf("a day without ticks, %d servers, %d changed (fake Nova, all times 1/%d), ", fakeServers,
		outageChanged, outageScale)
	line := func(what string, took time.Duration) {
		took *= outageScale
		report(result{
			number: "5b", name: name + what + " : limit", ours: took.Round(time.Second).String(), peer: "1h",
			ratio: took.Hours(), target: atMost(1),
		})
	}
	line("newest hour after", newest)
	line("all 24 hours after", all)
	compare("5b", name+"events : those of an hour", float64(events), 60, showCount, atMost(1))
	compare("5b", name+"logs read : servers that changed", float64(read), outageChanged, showCount, atMost(1))
}

// truth is how many servers ran at each full hour of the day.
func (o *outage) truth() map[string]int {
	running := map[string]int{}
	for ago := range 24 {
		hour := o.last.Add(-time.Duration(ago) * time.Hour)
		for i, s := range o.servers {
			if s.state == "active" || i < outageChanged && hour.Before(o.stopped(i)) {
				running[domain.HourKey(hour)]++
			}
		}
	}
	return running
}

// runningByHour sums up what collect-stats wrote, of the hours that all projects have without an uncertain server.
func runningByHour(db rig) map[string]int {
	const sql = `select hour, sum(running)::int from stats_hourly group by hour having count(*) = $1 and sum(uncertain) = 0`
	rows, _ := db.Query(context.Background(), sql, fakeProjects)
	found := map[string]int{}
	var hour time.Time
	var running int
	_, err := pgx.ForEachRow(rows, []any{&hour, &running}, func() error {
		found[domain.HourKey(hour)] = running
		return nil
	})
	must(db.t, err)
	return found
}

const (
	seriesProjects = 5000
	seriesHours    = 720
	seriesRounds   = 9
	seriesLimit    = 50.0 // ms
)

// Each project has servers in one of ten domains, in every hour.
const (
	fillProjectsSQL = `
insert into stats_projects (project_id, domain_id, first_hour, last_hour)
select n, 'd' || n % 10, $2::timestamptz, $3::timestamptz from generate_series(1, $1::int) n`
	fillHoursSQL = `
insert into stats_hourly (project_id, hour, domain_id, running, total, by_status, source)
select n, hour, 'd' || n % 10, 3, 5, '{"ACTIVE": 3, "SHUTOFF": 2}', 'sampled'
from generate_series(1, $1::int) n, generate_series($2::timestamptz, $3::timestamptz, interval '1 hour') hour`
)

// TestSeries holds the sums of 720 hours of 5000 projects against their limit. Adding them up takes longer than a
// statement may.
func TestSeries(t *testing.T) {
	db := newRig(t)
	last := time.Now().UTC().Truncate(time.Hour)
	first := last.Add(-(seriesHours - 1) * time.Hour)
	for _, sql := range []string{fillProjectsSQL, fillHoursSQL} {
		db.run(sql, seriesProjects, first, last)
	}
	db.run("vacuum analyze")
	store, ctx := postgres.Stats{DB: db.open(4, nil)}, t.Context()
	read := func() float64 {
		began := time.Now()
		hours, err := store.Series(ctx, domain.View{Scope: domain.ScopeCloud}, first, last)
		took := ms(time.Since(began))
		must(t, err)
		if len(hours) != seriesHours || hours[0].Running == nil || *hours[0].Running != 3*seriesProjects {
			t.Fatalf("%d hours, the first is %+v", len(hours), hours[0])
		}
		return took
	}
	must(t, store.Summarize(ctx, first, time.Now().Add(time.Hour)))
	var kept []float64
	for range seriesRounds {
		kept = append(kept, read())
	}
	name := fmt.Sprintf("statistics of the cloud, %d hours of %d projects", seriesHours, seriesProjects)
	compare("16", name+" : limit", median(kept), seriesLimit, showMS, atMost(1))
}
