//go:build bench

package bench

import (
	"bytes"
	"cmp"
	_ "embed"
	"encoding/json"
	"fmt"
	"math"
	"net/http"
	"net/http/httptest"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"
)

// fakeCloud is Keystone and Nova as far as counting and listing need them. It is a fake, for a scale that the
// sandbox cannot have: its pages are written before the clock starts, and it answers immediately. What Nova itself
// takes for them comes on top; that is measured on the sandbox.
type fakeCloud struct {
	*httptest.Server
	servers    []fakeServer
	role       string            // of every token; "" = admin
	detail     map[string][]byte // by marker
	usage      map[string][]byte
	unlaunched []byte
	changed    []byte
	single     map[string][]byte // by server id; only of a cloud of one page

	handle func(pattern string, handler func(http.ResponseWriter, *http.Request)) // adds a path

	requests, sent atomic.Int64
	delay          atomic.Int64 // ns before each answer; 0 = none
}

func newFakeCloud(t *testing.T, servers int) *fakeCloud {
	t.Helper()
	f := &fakeCloud{servers: newServers(servers)}
	mux := http.NewServeMux()
	mux.HandleFunc("POST /v3/auth/tokens", f.login)
	mux.HandleFunc("GET /v3/auth/catalog", func(w http.ResponseWriter, _ *http.Request) {
		f.send(w, fmt.Appendf(nil, `{"catalog": %s}`, catalog(f.URL)))
	})
	mux.HandleFunc("GET /v3/projects", f.projects)
	mux.HandleFunc("GET /compute/servers/detail", f.list)
	mux.HandleFunc("GET /compute/os-simple-tenant-usage", func(w http.ResponseWriter, r *http.Request) {
		if strings.HasPrefix(r.URL.Query().Get("start"), "1970") { // whether all cells are up
			f.send(w, []byte(`{"tenant_usages": []}`))
			return
		}
		f.send(w, f.usage[r.URL.Query().Get("marker")])
	})
	mux.HandleFunc("GET /compute/servers/{id}/os-instance-actions", func(w http.ResponseWriter, _ *http.Request) {
		f.send(w, actionLog("reboot", time.Now().UTC().Add(-30*time.Second)))
	})
	mux.HandleFunc("GET /compute/servers/{id}", func(w http.ResponseWriter, r *http.Request) {
		f.send(w, f.single[r.PathValue("id")])
	})
	f.handle = mux.HandleFunc
	f.Server = httptest.NewServer(mux)
	t.Cleanup(f.Close)
	f.render()
	return f
}

func (f *fakeCloud) render() {
	f.single = map[string][]byte{}
	for _, s := range f.servers[:min(fakePage, len(f.servers))] {
		f.single[s.id] = fmt.Appendf(nil, `{"server": %s}`, s.fill(serverTemplate))
	}
	f.detail = paged(f.servers, f.URL+"/compute/servers/detail?all_tenants=true&", detailPage)
	failed := slices.DeleteFunc(slices.Clone(f.servers), func(s fakeServer) bool { return s.launched })
	f.unlaunched = detailPage(failed, "")
	f.changed = detailPage(f.servers[:min(fakeChanged, len(f.servers))], "")
	byProject := slices.DeleteFunc(slices.Clone(f.servers), func(s fakeServer) bool { return !s.launched })
	slices.SortFunc(byProject, func(a, b fakeServer) int {
		return cmp.Or(cmp.Compare(a.project, b.project), cmp.Compare(a.id, b.id))
	})
	f.usage = paged(byProject, f.URL+"/compute/os-simple-tenant-usage?detailed=1&", usagePage)
}

// count runs the call, and returns its requests and the megabytes of their answers.
func (f *fakeCloud) count(call func()) (requests int, mb float64) {
	f.requests.Store(0)
	f.sent.Store(0)
	call()
	return int(f.requests.Load()), float64(f.sent.Load()) / 1e6
}

func (f *fakeCloud) send(w http.ResponseWriter, body []byte) { f.answer(w, http.StatusOK, body) }

func (f *fakeCloud) answer(w http.ResponseWriter, status int, body []byte) {
	f.requests.Add(1)
	f.sent.Add(int64(len(body)))
	time.Sleep(time.Duration(f.delay.Load()))
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Content-Length", strconv.Itoa(len(body))) // as Nova does
	w.WriteHeader(status)
	_, _ = w.Write(body)
}

func (f *fakeCloud) list(w http.ResponseWriter, r *http.Request) {
	query := r.URL.Query()
	switch {
	case query.Has("marker") && (query.Has("changes-since") || query.Has("status")):
		f.send(w, []byte(`{"servers": []}`))
	case query.Has("changes-since"):
		f.send(w, f.changed)
	case query.Has("status"):
		f.send(w, f.unlaunched)
	case f.detail[query.Get("marker")] == nil: // after the last server
		f.send(w, []byte(`{"servers": []}`))
	default:
		f.send(w, f.detail[query.Get("marker")])
	}
}

func catalog(cloud string) string {
	return fmt.Sprintf(`[{"type": "compute", "name": "nova", "id": "1", "endpoints": [{"id": "2", "interface": "public",
		"region_id": "one", "region": "one", "url": "%s/compute"}]}]`, cloud)
}

// tokenOf is the body of a token of a cloud.
func tokenOf(cloud, project, role string) []byte {
	expires := time.Now().UTC().Add(time.Hour).Format("2006-01-02T15:04:05.000000Z")
	return fmt.Appendf(nil, `{"token": {"expires_at": %q, "user": {"id": "u", "name": "service"}, "project": {"id": %q,
		"name": "admin", "domain": {"id": "default"}}, "roles": [{"name": %q}], "catalog": %s}}`, expires, project, role,
		catalog(cloud))
}

func (f *fakeCloud) login(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("X-Subject-Token", "a-token")
	f.answer(w, http.StatusCreated, tokenOf(f.URL, "p", cmp.Or(f.role, "admin")))
}

func (f *fakeCloud) projects(w http.ResponseWriter, _ *http.Request) {
	type project struct {
		ID       string `json:"id"`
		Name     string `json:"name"`
		DomainID string `json:"domain_id"`
		Enabled  bool   `json:"enabled"`
	}
	all := make([]project, fakeProjects)
	for i := range all {
		all[i] = project{fakeProject(i), fmt.Sprint("project ", i), "default", true}
	}
	body, _ := json.Marshal(map[string]any{"projects": all, "links": map[string]any{"next": nil}})
	f.send(w, body)
}

// actionLog says of a server that it was made two days ago, and what was done to it by a moment.
func actionLog(action string, done time.Time) []byte {
	const format = `{"action": "%s", "start_time": "%s", "updated_at": "%s", "message": null, "request_id": "req-1", "user_id": "u", "project_id": "p"}`
	const layout = "2006-01-02T15:04:05.000000"
	made := time.Now().UTC().Add(-48 * time.Hour)
	return fmt.Appendf(nil, `{"instanceActions": [`+format+`, `+format+`]}`,
		action, done.Add(-2*time.Second).Format(layout), done.Format(layout),
		"create", made.Format(layout), made.Add(9*time.Second).Format(layout))
}

// fakeServer is a server of the fake cloud.
type fakeServer struct {
	number   int
	id       string
	project  string
	state    string // vm_state
	launched bool   // Nova's usage lists only servers that were
}

const (
	fakeServers  = 100_000
	fakeProjects = 500
	fakePage     = 1000 // Nova's own max_limit
	fakeFailed   = 50   // servers that never reached a host
	fakeChanged  = 200  // servers that changed lately
)

var statusOf = map[string]string{
	"active": "ACTIVE", "stopped": "SHUTOFF", "paused": "PAUSED", "shelved_offloaded": "SHELVED_OFFLOADED",
	"error": "ERROR",
}

// newServers makes n servers in projects of different size: most run, some are stopped, and the last
// fakeFailed of them failed before they were launched.
func newServers(n int) []fakeServer {
	all := make([]fakeServer, n)
	for i := range all {
		_, fraction := math.Modf(float64(i) * math.Phi)
		all[i] = fakeServer{
			number: i, id: fmt.Sprintf("%08x-5a17-4c0d-9e5f-%012x", uint32(i)*2654435761, i),
			project: fakeProject(int(fraction * fraction * fakeProjects)), state: fakeState(i), launched: true,
		}
		if i >= n-fakeFailed {
			all[i].state, all[i].launched = "error", false
		}
	}
	return all
}

func fakeProject(i int) string { return fmt.Sprintf("%032x", 0xc10d_0000+i) }

func fakeState(i int) string {
	switch {
	case i < fakeChanged || i%10 < 7:
		return "active"
	case i%10 < 9:
		return "stopped"
	case i%20 == 9:
		return "paused"
	}
	return "shelved_offloaded"
}

//go:embed testdata/server.json
var serverText string

//go:embed testdata/usage.json
var usageText string

// The files are what the sandbox's Nova answered, with names and ids taken out; they are indented for
// people, and sent as Nova sends them: on one line, with a space after each comma and colon.
var (
	serverTemplate = oneLine(serverText)
	usageTemplate  = oneLine(usageText)
)

func oneLine(text string) string {
	text = regexp.MustCompile(`,\n *`).ReplaceAllString(text, ", ")
	return regexp.MustCompile(`\n *`).ReplaceAllString(text, "")
}

func (s fakeServer) fill(template string) string {
	const layout = "2006-01-02T15:04:05"
	created := time.Now().UTC().Add(-48 * time.Hour)
	launched := `null`
	if s.launched {
		launched = created.Format(`"` + layout + `.000000"`)
	}
	updated := created
	if s.number < fakeChanged {
		updated = time.Now().UTC().Add(-30 * time.Second)
	}
	return strings.NewReplacer(
		"SERVER_ID", s.id, "SERVER_NUMBER", strconv.Itoa(s.number), "PROJECT_ID", s.project,
		"SERVER_STATUS", statusOf[s.state], "SERVER_STATE", s.state,
		"SERVER_CREATED", created.Format(layout+"Z"), "SERVER_UPDATED", updated.Format(layout+"Z"),
		"SERVER_LAUNCHED", launched, "SERVER_STARTED", created.Format(layout+".000000"),
	).Replace(template)
}

// detailPage writes a page of GET /servers/detail. next is the link to the page after it, "" at the end.
func detailPage(servers []fakeServer, next string) []byte {
	var page bytes.Buffer
	page.WriteString(`{"servers": [`)
	for i, s := range servers {
		if i > 0 {
			page.WriteString(", ")
		}
		page.WriteString(s.fill(serverTemplate))
	}
	page.WriteString("]" + nextLink("servers_links", next) + "}")
	return page.Bytes()
}

// usagePage writes a page of GET /os-simple-tenant-usage?detailed=1; the servers are in the order of projects.
func usagePage(servers []fakeServer, next string) []byte {
	var page bytes.Buffer
	page.WriteString(`{"tenant_usages": [`)
	for i, s := range servers {
		switch {
		case i > 0 && s.project == servers[i-1].project:
			page.WriteString(", ")
		default:
			if i > 0 {
				page.WriteString(usageEnd + ", ")
			}
			fmt.Fprintf(&page, `{"tenant_id": "%s", "server_usages": [`, s.project)
		}
		page.WriteString(s.fill(usageTemplate))
	}
	page.WriteString(usageEnd + "]" + nextLink("tenant_usages_links", next) + "}")
	return page.Bytes()
}

// usageEnd closes a project: its sums, which no one here reads.
const usageEnd = `], "total_local_gb_usage": 39.99, "total_vcpus_usage": 1.99, "total_memory_mb_usage": 4095.99, ` +
	`"total_hours": 0.99, "start": "2026-11-22T08:43:27.000000", "stop": "2026-11-22T09:43:27.000000"}`

func nextLink(key, href string) string {
	if href == "" {
		return ""
	}
	return fmt.Sprintf(`, "%s": [{"rel": "next", "href": "%s"}]`, key, href)
}

// paged cuts the servers into pages: by marker, the text of the page that starts after it.
func paged(servers []fakeServer, base string, write func([]fakeServer, string) []byte) map[string][]byte {
	pages := map[string][]byte{}
	marker := ""
	for part := range slices.Chunk(servers, fakePage) {
		last, next := part[len(part)-1].id, ""
		if last != servers[len(servers)-1].id {
			next = base + "marker=" + last
		}
		pages[marker] = write(part, next)
		marker = last
	}
	return pages
}
