package collectstats

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/gophercloud/gophercloud/v2"
	"github.com/gophercloud/gophercloud/v2/openstack/compute/v2/servers"
	"github.com/jackc/pgx/v5"

	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/postgres"
	"github.com/cloudfn/cloudfn/shared/testkit"
)

const (
	churnFor  = 12 * time.Second // before and after the hour
	commitFor = 8 * time.Second  // that Nova takes at most to commit what it has written, on a machine that is busy
)

// TestLongThreeHoursUnderChurn counts three full hours in a row while a server is made, stopped, started or deleted
// every second, and holds each against what Nova's database said at that second. A test cannot wait for full hours: our
// database's clock is moved, and a proxy before the real Nova moves all times in its answers alike.
func TestLongThreeHoursUnderChurn(t *testing.T) {
	testkit.Heavy(t)
	c := &churn{projects: []*testkit.Project{testkit.NewProject(t), testkit.NewProject(t)}}
	for _, p := range c.projects {
		for _, s := range p.Boot(t, "churned", 2) {
			c.made = append(c.made, churned{p, s.ID, true})
		}
	}
	database := testkit.Database(t)
	store := serviceOn(t, database, &fakeCloud{}, time.Hour).stats
	first := nextHour()
	for n := range 3 {
		c.hour(t, database, store, first.Add(time.Duration(n)*time.Hour))
	}
	series, err := store.Series(t.Context(), domain.View{Scope: domain.ScopeCloud}, first, first.Add(2*time.Hour))
	if err != nil || slices.ContainsFunc(series, func(h domain.HourStat) bool { return h.Source != domain.Sampled }) {
		t.Errorf("the three hours of the cloud are %+v %v", series, err)
	}
}

// churn is projects in which something changes every second.
type churn struct {
	projects []*testkit.Project
	made     []churned
	turn     int
}

type churned struct {
	*testkit.Project
	id      string
	running bool
}

// hour has the hour begin in some seconds, with changes around it, and checks how it is counted.
func (c *churn) hour(t *testing.T, database string, store postgres.Stats, hour time.Time) {
	t.Helper()
	clients := make([]*gophercloud.ServiceClient, len(c.projects))
	ids := make([]string, len(c.projects))
	for i, p := range c.projects {
		clients[i], ids[i] = testkit.Compute(t, p.Login(t)), p.ID
	}
	moment := time.Now().Truncate(time.Second).Add(churnFor + 5*time.Second)
	moved := hour.Sub(moment)
	testkit.SetClock(t, database, time.Now().Add(moved))
	env := testkit.RedirectTo(t, map[string]string{"compute": movedNova(t, moved)}).Env(t, "admin")
	env["ALLOWED_PROJECTS"], env["STATS_BACKFILL"] = strings.Join(ids, ","), "1h"
	app := testkit.Start(t, testkit.Env(t, database, env), Function)

	var all sync.WaitGroup
	var seen [3]map[string]novaServer // a second before the hour, at the hour, a second after it
	for i := range seen {
		all.Go(func() { seen[i] = novaAt(t, moment.Add(time.Duration(i-1)*time.Second), ids...) })
	}
	var late map[string]novaServer // shows what Nova wrote a second after the hour at the latest, and committed later
	all.Go(func() { late = novaAt(t, moment.Add(commitFor), ids...) })
	for at := -churnFor; at <= churnFor; at += time.Second {
		time.Sleep(time.Until(moment.Add(at + 300*time.Millisecond)))
		c.change(t, &all, clients)
		if at == -2*time.Second {
			all.Go(func() { tick(t, app, 204) }) // it waits for the hour, and goes on for some seconds
		}
	}
	known := map[domain.Scope]time.Duration{}
	views := []domain.View{
		{Scope: domain.ScopeProject, ProjectID: ids[0]},
		{Scope: domain.ScopeDomain, DomainID: c.projects[0].DomainID},
		{Scope: domain.ScopeCloud},
	}
	for len(known) < len(views) && time.Since(moment) < 2*time.Minute {
		for _, v := range views {
			if s, err := store.Series(t.Context(), v, hour, hour); err == nil && s[0].Running != nil &&
				known[v.Scope] == 0 {
				known[v.Scope] = time.Since(moment).Round(time.Second)
			}
		}
		time.Sleep(200 * time.Millisecond)
	}
	if len(known) < len(views) {
		t.Errorf("2 minutes after the hour %s there are numbers of %v only", domain.HourKey(hour), known)
	}
	all.Wait()
	for id, s := range late {
		if s.Written <= moment.Unix()+1 {
			seen[2][id] = s
		}
	}
	firstCount := c.compare(t, database, ids, hour, seen)
	time.Sleep(time.Until(moment.Add(65 * time.Second)))
	tick(t, app, 204)
	t.Logf("%s: known after %v, at first %s, after 65 s %s", domain.HourKey(hour), known, firstCount,
		c.compare(t, database, ids, hour, seen))
}

// change makes, stops, starts or deletes a server, in turns, without waiting for it.
func (c *churn) change(t *testing.T, all *sync.WaitGroup, clients []*gophercloud.ServiceClient) {
	t.Helper()
	c.turn++
	i, ctx, f := c.turn/4%len(clients), t.Context(), testkit.Sandbox(t)
	nova, p := clients[i], c.projects[i]
	pick := func(running bool) (id string) {
		n := slices.IndexFunc(c.made, func(s churned) bool { return s.Project == p && s.running == running })
		if n < 0 {
			return "none"
		}
		id = c.made[n].id
		c.made = append(slices.Delete(c.made, n, n+1), churned{p, id, !running})
		return id
	}
	var id string
	switch c.turn % 4 {
	case 0:
		opts := servers.CreateOpts{
			Name: "churn", FlavorRef: f.FlavorID, ImageRef: f.ImageID,
			Networks: []servers.Network{{UUID: f.NetworkID}},
		}
		all.Go(func() { _, _ = servers.Create(ctx, nova, opts, nil).Extract() })
	case 1:
		id = pick(true)
		all.Go(func() { _ = servers.Stop(ctx, nova, id).ExtractErr() })
	case 2:
		id = pick(false)
		all.Go(func() { _ = servers.Start(ctx, nova, id).ExtractErr() })
	case 3:
		all.Go(func() {
			if left := p.Servers(t); len(left) > 2 {
				_ = servers.Delete(ctx, nova, left[0].ID).ExtractErr()
			}
		})
	}
}

// compare holds the stored counts of an hour against Nova's database. Servers that are not uncertain must be counted as
// they were; those that changed within a second of the hour may be counted as before or after it: Nova writes a time
// first, and its database shows it a moment later.
func (c *churn) compare(
	t *testing.T, database string, ids []string, hour time.Time, seen [3]map[string]novaServer,
) string {
	t.Helper()
	var out []string
	for _, id := range ids {
		var running, total int
		var undecided []string
		conn := testkit.Pool(t, database)
		err := conn.QueryRow(t.Context(),
			`select running, total, undecided from stats_hourly where project_id = $1 and hour = $2`, id, hour).Scan(&running, &total, &undecided)
		if err != nil && !errors.Is(err, pgx.ErrNoRows) {
			t.Fatal(err)
		}
		wantRunning, wantTotal, changed, eitherRunning, eitherTotal := 0, 0, 0, 0, 0
		union := maps.Clone(seen[0])
		maps.Copy(union, seen[1])
		maps.Copy(union, seen[2])
		for server, s := range union {
			states := []string{seen[0][server].State, seen[1][server].State, seen[2][server].State}
			if s.Project != id || len(slices.Compact(slices.Clone(states))) == 1 || slices.Contains(undecided, server) {
				continue
			}
			changed++
			// One that was built and deleted within the two seconds may have been active between two looks.
			if slices.Contains(states, "active") || slices.Equal(states, []string{"building", "building", ""}) ||
				slices.Equal(states, []string{"building", "", ""}) {
				eitherRunning++
			}
			if slices.Contains(states, "") {
				eitherTotal++
			}
		}
		for server, s := range seen[1] {
			before, after := seen[0][server].State, seen[2][server].State
			if s.Project != id || slices.Contains(undecided, server) {
				continue
			}
			if before != "" && after != "" {
				wantTotal++
			}
			if before == after && s.State == "active" {
				wantRunning++
			}
		}
		if running < wantRunning || running > wantRunning+eitherRunning || total < wantTotal ||
			total > wantTotal+eitherTotal {
			t.Errorf("%s, %s: %d running of %d, Nova's database said %d of %d, and %d of %d that changed then "+
				"(uncertain: %v)",
				domain.HourKey(hour), id, running, total, wantRunning, wantTotal, eitherRunning, eitherTotal, undecided)
		}
		out = append(out, fmt.Sprintf("%d of %d, %d uncertain, %d changed within a second",
			running, total, len(undecided), changed))
	}
	return strings.Join(out, "; ")
}

var novaTime = regexp.MustCompile(`"20\d\d-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z?"`)

// movedNova is a proxy before the real Nova that moves all times in requests and answers.
func movedNova(t *testing.T, by time.Duration) string {
	t.Helper()
	nova, err := url.Parse(testkit.Compute(t, testkit.Login(t, "admin")).Endpoint)
	if err != nil {
		t.Fatal(err)
	}
	proxy := &httputil.ReverseProxy{
		Rewrite: func(r *httputil.ProxyRequest) {
			r.Out.URL.Scheme, r.Out.URL.Host = nova.Scheme, nova.Host
			query := r.Out.URL.Query()
			if since, err := time.Parse(time.RFC3339, query.Get("changes-since")); err == nil {
				query.Set("changes-since", since.Add(-by).Format(time.RFC3339))
				r.Out.URL.RawQuery = query.Encode()
			}
			r.Out.Header.Set("Accept-Encoding", "identity")
		},
		ModifyResponse: func(resp *http.Response) error {
			body, err := io.ReadAll(resp.Body)
			body = novaTime.ReplaceAllFunc(body, func(quoted []byte) []byte {
				text, _ := strconv.Unquote(string(quoted))
				for _, layout := range []string{time.RFC3339Nano, "2006-01-02T15:04:05.999999"} {
					if at, err := time.Parse(layout, text); err == nil {
						layout := strings.Replace(layout, ".999999", ".000000", 1)
						return []byte(strconv.Quote(at.Add(by).Format(layout)))
					}
				}
				return quoted
			})
			resp.Body, resp.ContentLength = io.NopCloser(bytes.NewReader(body)), int64(len(body))
			resp.Header.Set("Content-Length", strconv.Itoa(len(body)))
			return err
		},
	}
	server := httptest.NewServer(proxy)
	t.Cleanup(server.Close)
	return server.URL + strings.TrimSuffix(nova.Path, "/")
}

// novaServer is a row of Nova's database.
type novaServer struct {
	Project, State string // "" = it is deleted
	Written        int64  // Nova's own time of its last change, Unix
}

// novaAt waits until a moment, and reads the projects' servers, with those that were just deleted, from the database of
// Nova's cell, by id. The database itself waits, so this is exact to some milliseconds.
func novaAt(t testing.TB, moment time.Time, projects ...string) map[string]novaServer {
	t.Helper()
	rows := testkit.NovaSQL(t, fmt.Sprintf(`do sleep(greatest(0, %d.%06d - unix_timestamp(sysdate(6))));
		select concat_ws('/', uuid, project_id, if(deleted = 0, coalesce(vm_state, ''), ''),
			timestampdiff(second, '1970-01-01', greatest(created_at, coalesce(updated_at, 0), coalesce(deleted_at, 0))))
		from nova.instances where (deleted = 0 or deleted_at > utc_timestamp() - interval 1 minute)
			and project_id in ('%s')`,
		moment.Unix(), moment.Nanosecond()/1000, strings.Join(projects, "', '")))
	found := map[string]novaServer{}
	for line := range strings.FieldsSeq(rows) {
		part := strings.Split(line, "/")
		written, err := strconv.ParseInt(part[3], 10, 64)
		if err != nil {
			t.Fatal(err)
		}
		found[part[0]] = novaServer{Project: part[1], State: part[2], Written: written}
	}
	return found
}
