//go:build bench

package bench

import (
	"context"
	"fmt"
	"net/http"
	"testing"
	"time"

	cloudevents "github.com/cloudevents/sdk-go/v2"
	"github.com/jackc/pgx/v5"

	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/eventx"
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
	fake := newFakeCloud(t, fakeServers)
	database := testkit.Database(t)
	conn := testkit.Connect(t, database)
	var ours, peer counter
	export := func() { compareCounts(t, "the exporter's way", peer.export(t, fake), fake.servers) }
	export()
	for range countRounds {
		ours.collect(t, fake, database)
		compareCounts(t, "collect-stats", counted(t, conn), fake.servers)
		_, err := conn.Exec(context.Background(), "truncate jobs, stats_hourly, stats_projects, stats_sums")
		must(t, err)
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
		report(result{
			number: "5", name: name + what + " : exporter's way", ours: show(median(we)), peer: show(median(they)),
			ratio: median(we) / median(they), target: goal,
		})
	}
	line("time", c.took, peer.took, showMS, atMost(1.0/4))
	line("processor time", c.cpu, peer.cpu, showMS, atMost(1.0/15))
	line("peak memory", c.peak, peer.peak, showMB, atMost(1.0/8))
	line("requests", c.requests, peer.requests, func(v float64) string { return fmt.Sprintf("%.0f", v) }, shown)
	line("bytes received", c.mb, peer.mb, showMB, shown)
}

// collect starts collect-stats with an empty past and wakes it once.
func (c *counter) collect(t *testing.T, fake *fakeCloud, database string) {
	p := testkit.Spawn(t, map[string]string{
		"FUNCTION_TARGET": "collect-stats", "DATABASE_URL": database, "HOST": "127.0.0.1",
		"EVENT_KEY":   testkit.EventKey,
		"OS_AUTH_URL": fake.URL + "/v3", "OS_USERNAME": "collector", "OS_PASSWORD": "secret",
		"OS_USER_DOMAIN_ID": "default",
		"OS_PROJECT_NAME":   "admin", "OS_PROJECT_DOMAIN_ID": "default",
		"STATS_BACKFILL": "1h", // the peer knows only now, so one hour is due
	})
	defer p.Kill()
	event := eventx.Ping("collect-stats", domain.Secret(testkit.EventKey), time.Now())
	req, err := cloudevents.NewHTTPRequestFromEvent(context.Background(), p.URL, event)
	must(t, err)
	busy := cpuTime(p.PID())
	requests, mb := fake.count(func() {
		c.took = append(c.took, timed(func() {
			resp, err := http.DefaultClient.Do(req)
			must(t, err)
			_ = resp.Body.Close()
			if resp.StatusCode != http.StatusNoContent {
				p.Kill()
				t.Fatalf("collect-stats answered %s: %s", resp.Status, p.Log())
			}
		}))
	})
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
func counted(t *testing.T, conn *pgx.Conn) map[string]projectCount {
	t.Helper()
	rows, _ := conn.Query(context.Background(), "select project_id, running, total from stats_hourly")
	found := map[string]projectCount{}
	var id string
	var c projectCount
	_, err := pgx.ForEachRow(rows, []any{&id, &c.Running, &c.Total}, func() error {
		found[id] = c
		return nil
	})
	must(t, err)
	return found
}

// compareCounts sees that every project was counted, and rightly.
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
