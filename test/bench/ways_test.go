//go:build bench

package bench

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"strconv"
	"testing"
	"text/tabwriter"
	"time"

	"github.com/gophercloud/gophercloud/v2"
	gopher "github.com/gophercloud/gophercloud/v2/openstack"
	"github.com/gophercloud/gophercloud/v2/openstack/config/clouds"

	"github.com/cloudfn/cloudfn/shared/testkit"
)

const (
	waysRounds  = 7
	waysServers = 50 // BENCH_SERVERS changes it
)

// way is one request to the real Nova (or Placement) that a count of running servers could be made of.
type way struct {
	name    string
	counts  string // what its number means
	scale   int    // how many such requests a cloud of 100 000 servers in 500 projects takes
	project bool   // it shows one project, so that its number is known beforehand
	url     string
	header  http.Header
	read    func(t *testing.T, body []byte) int

	took  []float64
	found int
	bytes int
}

// ways is the second table: all of it from one sandbox.
var ways struct {
	servers int
	all     []*way
}

// TestWays measures, on the real Nova with real servers, the ways to count that shared/openstack could have
// chosen from.
func TestWays(t *testing.T) {
	n := waysServers
	if text := os.Getenv("BENCH_SERVERS"); text != "" {
		var err error
		n, err = strconv.Atoi(text)
		must(t, err)
	}
	waitForSandbox(t)
	project := testkit.NewProject(t)
	t.Logf("%d servers were ACTIVE after %.0f s", n, timed(func() { boot(t, project, n) })/1000)
	all := candidates(t, project)
	client := newClient()
	sides := make([]func(), len(all))
	for i, w := range all {
		sides[i] = func() { w.measure(t, client) }
	}
	alternate(1, sides...) // connects, and warms what Nova caches
	for _, w := range all {
		w.took = nil
	}
	alternate(waysRounds, sides...)
	for _, w := range all {
		if w.project && w.found != n {
			t.Errorf("%s found %d servers of %d", w.name, w.found, n)
		}
	}
	ways.servers, ways.all = n, all
	detail, usage := median(all[1].took), median(all[2].took)
	compare("6", fmt.Sprintf("Nova's answer about %d servers, os-simple-tenant-usage : servers/detail 2.47", n), usage,
		detail, showMS, shown)
}

func (w *way) measure(t *testing.T, client *http.Client) {
	again(t, func() error {
		body, took, err := fetch(client, w.url, w.header)
		if err == nil {
			w.took, w.found, w.bytes = append(w.took, took), w.read(t, body), len(body)
		}
		return err
	})
}

func candidates(t *testing.T, project *testkit.Project) []*way {
	admin := testkit.Login(t, "admin")
	nova := testkit.Compute(t, admin).Endpoint
	placement, err := gopher.NewPlacementV1(admin, gophercloud.EndpointOpts{})
	must(t, err)
	const layout = "2006-01-02T15:04:05"
	tomorrow := time.Now().UTC().Add(24 * time.Hour)
	window := url.Values{
		"limit": {"1000"}, "start": {tomorrow.Format(layout)}, "end": {tomorrow.Add(time.Hour).Format(layout)},
	}.Encode()
	id, root, member, reader := project.ID, admin.Token(), project.Token(t), readerToken(t, project.ID)
	return []*way{
		{
			name: "servers/detail?all_tenants, 2.1", counts: "ACTIVE, by project", scale: 100, read: activeServers,
			url: nova + "servers/detail?all_tenants=1&limit=1000", header: compute(root, "2.1"),
		},
		{
			name: "servers/detail?all_tenants, 2.47", counts: "ACTIVE, by project", scale: 100, read: activeServers,
			url: nova + "servers/detail?all_tenants=1&limit=1000", header: compute(root, "2.47"),
		},
		{
			name: "os-simple-tenant-usage?detailed, 2.40 (ours)", counts: "active, by project", scale: 100,
			read: activeUsages,
			url:  nova + "os-simple-tenant-usage?detailed=1&" + window, header: compute(root, "2.40"),
		},
		{
			name: "os-simple-tenant-usage/{project}, 2.40, reader (ours without admin)", counts: "active", scale: 500,
			project: true, read: activeUsages,
			url: nova + "os-simple-tenant-usage/" + id + "?" + window, header: compute(reader, "2.40"),
		},
		{
			name: "servers?status=ACTIVE, 2.1, project's member", counts: "ACTIVE", scale: 500, project: true,
			read: listedServers,
			url:  nova + "servers?status=ACTIVE&limit=1000", header: compute(member, "2.1"),
		},
		{
			name: "servers?all_tenants&project_id&status=ACTIVE, 2.1", counts: "ACTIVE", scale: 500, project: true,
			read:   listedServers,
			url:    nova + "servers?all_tenants=1&status=ACTIVE&limit=1000&project_id=" + id,
			header: compute(root, "2.1"),
		},
		{
			name: "os-hypervisors/statistics, 2.87", counts: "on any host, running or not; no projects", scale: 1,
			read: number("hypervisor_statistics", "running_vms"),
			url:  nova + "os-hypervisors/statistics", header: compute(root, "2.87"),
		},
		{
			name: "placement usages?project_id&consumer_type=all, 1.38", counts: "with an allocation, running or not",
			scale: 500, project: true, read: number("usages", "all", "consumer_count"),
			url:    placement.Endpoint + "usages?consumer_type=all&project_id=" + id, // Zed's Nova sets no INSTANCE
			header: http.Header{"X-Auth-Token": {root}, "Openstack-Api-Version": {"placement 1.38"}},
		},
		{
			name: "limits?tenant_id, 2.1", counts: "all states", scale: 500, project: true,
			read: number("limits", "absolute", "totalInstancesUsed"),
			url:  nova + "limits?tenant_id=" + id, header: compute(root, "2.1"),
		},
	}
}

func compute(token, version string) http.Header {
	return http.Header{
		"X-Auth-Token": {token}, "X-Openstack-Nova-Api-Version": {version}, "Accept": {"application/json"},
	}
}

// readerToken is the service account's, which reads in every project of its domain, scoped to one project.
func readerToken(t *testing.T, projectID string) string {
	t.Helper()
	auth, _, _, err := clouds.Parse(clouds.WithCloudName("collector"), clouds.WithLocations(testkit.CloudsYAML(t)))
	must(t, err)
	auth.Scope = &gophercloud.AuthScope{ProjectID: projectID}
	client, err := gopher.AuthenticatedClient(context.Background(), auth)
	must(t, err)
	return client.Token()
}

func activeServers(t *testing.T, body []byte) (n int) {
	var page struct{ Servers []struct{ Status string } }
	must(t, json.Unmarshal(body, &page))
	for _, s := range page.Servers {
		if s.Status == "ACTIVE" {
			n++
		}
	}
	return n
}

func listedServers(t *testing.T, body []byte) int {
	var page struct{ Servers []struct{} }
	must(t, json.Unmarshal(body, &page))
	return len(page.Servers)
}

func activeUsages(t *testing.T, body []byte) (n int) {
	type usage struct {
		Servers []struct{ State string } `json:"server_usages"`
	}
	var page struct {
		All []usage `json:"tenant_usages"`
		One usage   `json:"tenant_usage"`
	}
	must(t, json.Unmarshal(body, &page))
	for _, u := range append(page.All, page.One) {
		for _, s := range u.Servers {
			if s.State == "active" {
				n++
			}
		}
	}
	return n
}

// number reads the one number at the end of a path of keys.
func number(path ...string) func(*testing.T, []byte) int {
	return func(t *testing.T, body []byte) int {
		for _, key := range path {
			var object map[string]json.RawMessage
			must(t, json.Unmarshal(body, &object))
			body = object[key]
		}
		n, err := strconv.Atoi(string(body))
		must(t, err)
		return n
	}
}

func printWays(w io.Writer) {
	if len(ways.all) == 0 {
		return
	}
	fmt.Fprintf(w,
		"\nWays to count running servers, on the sandbox's real Nova "+
			"with %d servers in one project and what else is there\n", ways.servers)
	tab := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(tab, "request\tmedian\tKB\tfound\tcounts\trequests for 100 000 servers, 500 projects")
	for _, way := range ways.all {
		fmt.Fprintf(tab, "%s\t%s\t%.1f\t%d\t%s\t%d\n", way.name, showMS(median(way.took)), float64(way.bytes)/1000,
			way.found, way.counts, way.scale)
	}
	_ = tab.Flush()
}
