package openstack

import (
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/domain"
)

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

// TestWatch reads what changed, and all there is, page by page; a server that is gone or in a cell that is down is
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
	asked := []string{
		"2.26 all_tenants=1&changes-since=2026-01-02T02%3A04%3A05Z&limit=1000",
		"2.26 all_tenants=1&changes-since=2026-01-02T02%3A04%3A05Z&limit=1000&marker=b",
		"2.69 ", "2.69 limit=1000&marker=b", // without a limit Nova shows servers of cells that are down
		"2.69 all_tenants=1&project_id=q", "2.69 all_tenants=1&limit=1000&marker=b&project_id=q",
	}
	if diff := cmp.Diff(asked, s.queries("/compute/servers/detail")); diff != "" {
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

// TestCellsUp asks for the usage of a time before there was a server: of the project, or of all.
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
			t.Errorf("it was asked %v", q)
		}
	}
}
