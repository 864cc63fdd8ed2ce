package openstack

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/domain"
)

// listing fakes Nova's list of servers as compute/api.py's get_all makes it: real build requests live too briefly to
// hold a test's pages between them. A server in both lists moves to its cell.
type listing struct {
	requests []string // build requests, newest first
	cells    []string // instances, newest first
	purged   map[string]bool
	lost     map[string]bool // listed in its cell, and no marker: deleted after its creation broke off
	broken   string          // deleted in the middle of its creation: a page of more than four servers fails with it
	maxLimit int
	served   func(l *listing, page int) // changes the cloud after a page
	pages    int
}

func (l *listing) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	limit, err := strconv.Atoi(r.URL.Query().Get("limit"))
	if err != nil {
		limit = l.maxLimit
	}
	limit = min(limit, l.maxLimit)
	if l.pages > mostPages {
		w.WriteHeader(http.StatusForbidden) // the walk does not end
		return
	}
	requests, cells, marker := l.requests, l.cells, r.URL.Query().Get("marker")
	if n := slices.Index(requests, marker); n >= 0 {
		requests = requests[n+1:]
	} else if marker != "" {
		requests = nil
		n := slices.Index(cells, marker)
		if n < 0 || l.purged[marker] || l.lost[marker] {
			w.WriteHeader(http.StatusBadRequest)
			fmt.Fprintf(w, `{"badRequest":{"message":"marker [%s] not found"}}`, marker)
			return
		}
		cells = cells[n+1:]
	}
	cells = slices.DeleteFunc(slices.Clone(cells), func(id string) bool { return l.purged[id] })
	requests = requests[:min(limit, len(requests))]
	all := slices.Concat(requests, cells[:min(limit-len(requests), len(cells))])
	if len(all) > 4 && slices.Contains(all, l.broken) {
		w.WriteHeader(http.StatusInternalServerError)
		_, _ = w.Write([]byte(nova500("nova.exception.InstanceNotFound")))
		return
	}
	servers := []map[string]string{}
	for n, id := range all {
		status := "ACTIVE"
		if slices.Contains(l.requests, id) || l.lost[id] {
			status = "BUILD"
		}
		if slices.Index(all, id) == n { // duplicates go after the limit was applied
			servers = append(servers, map[string]string{"id": id, "status": status})
		}
	}
	answer := map[string]any{"servers": servers}
	if len(servers) == limit {
		answer["servers_links"] = []map[string]string{{"rel": "next", "href": "http://nova-inside/"}}
	}
	_ = json.NewEncoder(w).Encode(answer)
	l.pages++
	if l.served != nil {
		l.served(l, l.pages)
	}
}

func ids(prefix string, from int) (list []string) {
	for n := from; n > 0; n-- {
		list = append(list, fmt.Sprintf("%s%04d", prefix, n))
	}
	return list
}

// walks are all the ways to read a whole list, with the ids that each one saw.
func walks(t *testing.T, session *Session, limit int) map[string]func() ([]string, error) {
	collect := func(page func(marker string) ([]domain.Server, string, error)) (seen []string, err error) {
		for marker := ""; ; {
			servers, next, err := page(marker)
			for _, s := range servers {
				seen = append(seen, s.ID)
			}
			if err != nil || next == "" {
				return seen, err
			}
			marker = next
		}
	}
	return map[string]func() ([]string, error){
		"Servers": func() ([]string, error) {
			return collect(func(marker string) ([]domain.Server, string, error) {
				page, more, err := session.Servers(t.Context(), domain.ServerQuery{Limit: limit, Marker: marker})
				if err != nil || !more || len(page) == 0 {
					return page, "", err
				}
				return page, page[len(page)-1].ID, nil
			})
		},
		"AllServers": func() ([]string, error) {
			return collect(func(marker string) ([]domain.Server, string, error) {
				return session.AllServers(t.Context(), "p1", marker)
			})
		},
		"ChangedServers": func() ([]string, error) {
			return collect(func(marker string) ([]domain.Server, string, error) {
				return session.ChangedServers(t.Context(), "p1", time.Now(), marker)
			})
		},
		"Changes": func() (seen []string, err error) {
			err = session.Changes(t.Context(), "p1", time.Now(), func(h domain.History) {
				seen = append(seen, h.ServerID)
			})
			return seen, err
		},
	}
}

// listed is a session with a Nova that gives the list, without a network, so that pauses cost nothing in a bubble.
func listed(t *testing.T, l *listing) *Session {
	t.Helper()
	session := bubbled(t, func(r *http.Request) (*http.Response, error) {
		answer := httptest.NewRecorder()
		answer.Header().Set("Content-Type", "application/json")
		if strings.HasSuffix(r.URL.Path, "/auth/catalog") {
			fmt.Fprint(answer,
				`{"catalog":[{"type":"compute","endpoints":[{"interface":"public","region_id":"r1","url":"http://nova/v2.1"}]}]}`)
		} else {
			l.ServeHTTP(answer, r)
		}
		return answer.Result(), nil
	}).As(theToken, "p1")
	session.project = "p1"
	return session
}

// TestWalkEndsAtAnEmptyPage: pages that are short because a server is on its way to its cell, also with a small
// max_limit.
func TestWalkEndsAtAnEmptyPage(t *testing.T) {
	t.Parallel()
	l := &listing{}
	session := listed(t, l)
	rapid.Check(t, func(rt *rapid.T) {
		old := ids("old-", rapid.IntRange(0, 40).Draw(rt, "servers"))
		building := ids("new-", rapid.IntRange(0, 3).Draw(rt, "build requests"))
		arrived := rapid.IntRange(0, len(building)).Draw(rt, "of these in a cell")
		limit := rapid.IntRange(1, 15).Draw(rt, "limit")
		for name := range walks(t, session, limit) {
			*l = listing{
				requests: building, cells: slices.Concat(building[len(building)-arrived:], old),
				maxLimit: max(limit, 2*len(building)+1),
			}
			l.served = func(l *listing, page int) {
				if page == 3 { // then they have reached their cells
					l.requests, l.cells = nil, slices.Concat(building, old)
				}
			}
			var seen []string
			var err error
			// its pauses take no time
			synctest.Test(t, func(t *testing.T) { seen, err = walks(t, session, limit)[name]() })
			if err != nil {
				rt.Fatalf("%s: %v", name, err)
			}
			for _, id := range old {
				if n := count(seen, id); n != 1 {
					rt.Fatalf("%s listed %s %d times: %v", name, id, n, seen)
				}
			}
		}
	})
}

func count(list []string, id string) (n int) {
	for _, s := range list {
		if s == id {
			n++
		}
	}
	return n
}

// TestShortPageWithoutLink is what was observed: 99 of 100, no link, and 1000 more. A page of few servers at rest costs
// no second call.
func TestShortPageWithoutLink(t *testing.T) {
	t.Parallel()
	l := &listing{requests: []string{"new"}, cells: append([]string{"new"}, ids("old-", 1098)...), maxLimit: 1000}
	session := listed(t, l)
	page, more, err := session.Servers(t.Context(), domain.ServerQuery{Limit: 100})
	if len(page) != 99 || !more || err != nil || l.pages != 2 {
		t.Errorf("%d servers, more %t, %v, after %d calls", len(page), more, err, l.pages)
	}
	few := &listing{cells: ids("old-", 20), maxLimit: 1000}
	page, more, err = listed(t, few).Servers(t.Context(), domain.ServerQuery{Limit: 100})
	if len(page) != 20 || more || err != nil || few.pages != 1 {
		t.Errorf("%d servers, more %t, %v, after %d calls", len(page), more, err, few.pages)
	}
}

// TestWalkBeginsAgain when its marker was purged meanwhile: each server is still seen, and counted once.
func TestWalkBeginsAgain(t *testing.T) {
	t.Parallel()
	for name, twice := range map[string]bool{"AllServers": true, "ChangedServers": true, "Changes": false} {
		l := &listing{cells: ids("old-", 10), maxLimit: 4, purged: map[string]bool{}}
		l.served = func(l *listing, page int) {
			if page == 1 {
				l.purged["old-0007"] = true // the last of the first page
			}
		}
		seen, err := walks(t, listed(t, l), 4)[name]()
		for _, id := range ids("old-", 6) {
			if count(seen, id) != 1 || err != nil {
				t.Errorf("%s: %s is not listed once: %v %v", name, id, seen, err)
			}
		}
		if n := count(seen, "old-0010"); n != map[bool]int{true: 2, false: 1}[twice] {
			t.Errorf("%s: listed %d times", name, n)
		}
	}
	many := &listing{cells: ids("old-", 14), maxLimit: 4, purged: map[string]bool{}}
	many.served = func(l *listing, page int) {
		if page == 2 {
			l.purged["old-0007"] = true // the last of the second page: the first one is read again
		}
	}
	if seen, err := walks(t, listed(t, many), 4)["Changes"](); err != nil || count(seen, "old-0001") != 1 {
		t.Errorf("the second marker is deleted: %v %v", seen, err)
	}
	l := &listing{cells: ids("old-", 3), maxLimit: 4}
	_, _, err := listed(t, l).Servers(t.Context(), domain.ServerQuery{Limit: 4, Marker: "gone"})
	if apperr.CodeOf(err) != apperr.Invalid {
		t.Errorf("a caller's marker that is deleted: %v", err)
	}
}

// TestWalkOfBuildRequests: the whole list is on its way to its cells, and a marker is in both places for a moment.
func TestWalkOfBuildRequests(t *testing.T) {
	t.Parallel()
	for name, stays := range map[string]bool{"moves on": false, "stays": true} {
		l := &listing{requests: []string{"a"}, cells: []string{"a"}, maxLimit: 100}
		session := listed(t, l)
		l.served = func(l *listing, page int) {
			if page == 3 && !stays {
				l.requests = nil
			}
		}
		synctest.Test(t, func(t *testing.T) {
			seen, err := walks(t, session, 100)["AllServers"]()
			if count(seen, "a") == 0 || err != nil {
				t.Errorf("%s: %v %v", name, seen, err)
			}
		})
	}
}

// TestWalkPastLostServers: a server whose creation broke off is a build request and an instance, for good. Once it is
// deleted Nova lists it, and rejects it as a marker. Neither ends a list, nor hides a server, wherever it stands.
func TestWalkPastLostServers(t *testing.T) {
	t.Parallel()
	l := &listing{}
	session := listed(t, l)
	rapid.Check(t, func(rt *rapid.T) {
		cells := ids("s", rapid.IntRange(1, 12).Draw(rt, "servers"))
		var requests []string
		lost := map[string]bool{}
		for _, id := range cells {
			switch rapid.IntRange(0, 3).Draw(rt, id) {
			case 0:
				lost[id] = true
			case 1:
				requests = append(requests, id)
			}
		}
		limit := rapid.IntRange(1, 5).Draw(rt, "limit")
		for name := range walks(t, session, limit) {
			*l = listing{requests: requests, cells: cells, lost: lost, maxLimit: 1000}
			var seen []string
			var err error
			synctest.Test(t, func(t *testing.T) { seen, err = walks(t, session, limit)[name]() })
			for _, id := range cells {
				if n := count(seen, id); err != nil || n == 0 || n > 1 && name == "Changes" {
					rt.Fatalf("%s listed %s %d times: %v %v", name, id, n, seen, err)
				}
			}
		}
	})
	l.lost, l.maxLimit = map[string]bool{"lost": true}, 1000
	l.requests, l.cells, l.served = nil, []string{"lost"}, nil
	_, _, err := session.Servers(t.Context(), domain.ServerQuery{Limit: 4, Marker: "gone"})
	if apperr.CodeOf(err) != apperr.Invalid {
		t.Errorf("a caller's marker that is deleted: %v", err)
	}
}

// TestWalkPastABrokenServer: Nova fails each large page of changes that shows a server with two rows of instance_extra.
func TestWalkPastABrokenServer(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"ChangedServers", "Changes"} {
		l := &listing{cells: ids("old-", 40), broken: "old-0028", maxLimit: 1000}
		session := listed(t, l)
		synctest.Test(t, func(t *testing.T) {
			seen, err := walks(t, session, 0)[name]()
			if want := ids("old-", 40); err != nil || !slices.Equal(seen, want) {
				t.Errorf("%s: got %v %v, want %v", name, seen, err, want)
			}
		})
	}
}

// queries are those of the calls so far to a path.
func (s *stub) queries(path string) []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	var out []string
	for _, c := range s.calls {
		if c.URL.Path == path {
			out = append(out, c.Header.Get("X-OpenStack-Nova-API-Version")+" "+c.URL.RawQuery)
		}
	}
	return out
}

// readList reads a list to its end.
func readList(t *testing.T, page func(marker string) ([]domain.Server, string, error)) (ids []string, err error) {
	t.Helper()
	for marker := ""; ; {
		servers, next, err := page(marker)
		for _, s := range servers {
			ids = append(ids, s.ID+" "+s.Status+map[bool]string{true: " partial"}[s.Partial])
		}
		if err != nil || next == "" {
			return ids, err
		}
		marker = next
	}
}

// TestWatch reads what changed, and all there is, page by page; a server that is deleted or in a cell that is down is
// partial.
func TestWatch(t *testing.T) {
	t.Parallel()
	s := newStub(t)
	const more = `,"servers_links":[{"rel":"next","href":"http://nova-inside/x"}]}`
	s.pages("GET /compute/servers/detail", map[string]string{
		"": `{"servers":[{"id":"a","status":"ACTIVE"},{"id":"b","status":"DELETED"}]` + more,
		// Nova could not go on after d
		"b": `{"servers":[{"id":"c","status":"SOFT_DELETED"},{"id":"d","status":"UNKNOWN"}]` + more,
	})
	session, since := s.session(t), time.Date(2026, 1, 2, 3, 4, 5, 6e8, time.FixedZone("x", 3600))
	want := []string{"a ACTIVE", "b DELETED partial", "c SOFT_DELETED partial", "d UNKNOWN partial"}
	got, err := readList(t, func(marker string) ([]domain.Server, string, error) {
		return session.ChangedServers(t.Context(), "", since, marker)
	})
	if diff := cmp.Diff(want, got); diff != "" || err != nil {
		t.Error(err, diff)
	}
	session.project = "p"
	got, err = readList(t, func(marker string) ([]domain.Server, string, error) {
		return session.AllServers(t.Context(), "p", marker)
	})
	if diff := cmp.Diff(want, got); diff != "" || err != nil {
		t.Error(err, diff)
	}
	if _, err = readList(t, func(marker string) ([]domain.Server, string, error) {
		return session.AllServers(t.Context(), "q", marker)
	}); err != nil {
		t.Error(err)
	}
	queries := []string{
		"2.26 all_tenants=1&changes-since=2026-01-02T02%3A04%3A05Z&limit=1000",
		"2.26 all_tenants=1&changes-since=2026-01-02T02%3A04%3A05Z&limit=1000&marker=b",
		"2.69 ", "2.69 limit=1000&marker=b", // without a limit Nova shows servers of cells that are down
		"2.69 all_tenants=1&project_id=q", "2.69 all_tenants=1&limit=1000&marker=b&project_id=q",
	}
	if diff := cmp.Diff(queries, s.queries("/compute/servers/detail")); diff != "" {
		t.Error(diff)
	}
}

// TestWatchFails: a page that goes in circles; one that Nova cannot put together at first, and one that it never can.
func TestWatchFails(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		answers []int
		body    string
		calls   int
		code    apperr.Code
	}{
		"circles": {
			[]int{200}, `{"servers":[{"id":"m"}],"servers_links":[{"rel":"next","href":"x"}]}`, 1, apperr.BadGateway,
		},
		"once":      {[]int{500, 200}, `{"servers":[]}`, 2, ""},
		"always":    {[]int{500}, `{"computeFault":{}}`, pageTries, apperr.BadGateway},
		"forbidden": {[]int{403}, `{"forbidden":{"message":"no"}}`, 1, apperr.Forbidden},
	} {
		s := newStub(t)
		calls := 0
		s.mux.HandleFunc("GET /compute/servers/detail", func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(tc.answers[min(calls, len(tc.answers)-1)])
			calls++
			_, _ = w.Write([]byte(tc.body))
		})
		_, _, err := s.session(t).ChangedServers(t.Context(), "p", time.Now(), "m")
		if apperr.CodeOf(err) != tc.code || calls != tc.calls {
			t.Errorf("%s: %v after %d calls", name, err, calls)
		}
	}
}

// TestCellsUp reads the usage of a time before there was a server: of the project, or of all.
func TestCellsUp(t *testing.T) {
	t.Parallel()
	s := newStub(t)
	s.answer("GET /compute/os-simple-tenant-usage", 500, `{"computeFault":{"message":"DBConnectionError"}}`)
	s.answer("GET /compute/os-simple-tenant-usage/p", 200, `{"tenant_usage":{}}`)
	if err := s.session(t).CellsUp(t.Context(), "p"); err != nil {
		t.Error(err)
	}
	if err := s.session(t).CellsUp(t.Context(), ""); apperr.CodeOf(err) != apperr.BadGateway {
		t.Errorf("got %v", err)
	}
	for _, path := range []string{"", "/p"} {
		if q := s.queries("/compute/os-simple-tenant-usage" + path); len(q) != 1 ||
			!strings.Contains(q[0], "start=1970-01-01T00%3A00%3A00") {
			t.Errorf("it got %v", q)
		}
	}
}
