//go:build bench

package bench

import (
	"context"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/testkit"
)

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
	const format = `{"action": "%s", "start_time": "%s", "updated_at": "%s", "message": null, "request_id": "req-1", "user_id": "u", "project_id": "p"}`
	const layout = "2006-01-02T15:04:05.000000"
	stopped, made := o.stopped(number), time.Now().UTC().Add(-48*time.Hour)
	return fmt.Appendf(nil, `{"instanceActions": [`+format+`, `+format+`]}`,
		"stop", stopped.Add(-2*time.Second).Format(layout), stopped.Format(layout),
		"create", made.Format(layout), made.Add(9*time.Second).Format(layout))
}

// TestOutage counts the events that collect-stats needs for a day without ticks, in a process of its own.
func TestOutage(t *testing.T) {
	fake := newOutage(t)
	database := testkit.Database(t)
	conn := testkit.Connect(t, database)
	testkit.SetClock(t, database, fake.last.Add(10*time.Minute)) // so that no hour begins meanwhile
	p := testkit.Spawn(t, map[string]string{
		"FUNCTION_TARGET": "collect-stats", "DATABASE_URL": database, "HOST": "127.0.0.1",
		"EVENT_KEY":   testkit.EventKey,
		"OS_AUTH_URL": fake.URL + "/v3", "OS_USERNAME": "collector", "OS_PASSWORD": "secret",
		"OS_USER_DOMAIN_ID": "default",
		"OS_PROJECT_NAME":   "admin", "OS_PROJECT_DOMAIN_ID": "default", "STATS_BACKFILL": "24h",
		"EVENT_TIMEOUT": outageEvent.String(),
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
		found := runningByHour(t, conn)
		if newest == 0 && found[domain.HourKey(fake.last)] == want[domain.HourKey(fake.last)] {
			newest = all
		}
		if maps.Equal(found, want) {
			break
		}
	}
	if found := runningByHour(t, conn); !maps.Equal(found, want) {
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
	report(result{
		number: "5b", name: name + "events : those of an hour", ours: strconv.Itoa(events), peer: "60",
		ratio: float64(events) / 60, target: atMost(1),
	})
	report(result{
		number: "5b", name: name + "logs read : servers that changed", ours: strconv.Itoa(read),
		peer: strconv.Itoa(outageChanged), ratio: float64(read) / outageChanged, target: atMost(1),
	})
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
func runningByHour(t *testing.T, conn *pgx.Conn) map[string]int {
	t.Helper()
	const sql = `select hour, sum(running)::int from stats_hourly group by hour having count(*) = $1 and sum(uncertain) = 0`
	rows, _ := conn.Query(context.Background(), sql, fakeProjects)
	found := map[string]int{}
	var hour time.Time
	var running int
	_, err := pgx.ForEachRow(rows, []any{&hour, &running}, func() error {
		found[domain.HourKey(hour)] = running
		return nil
	})
	must(t, err)
	return found
}
