//go:build bench

package bench

import (
	"bytes"
	_ "embed"
	"fmt"
	"math"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
)

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

// usageEnd closes a project: its sums, which nobody here reads.
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
