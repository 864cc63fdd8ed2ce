package openstack

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/domain"
)

func currentServers(t *testing.T, s *stub, project string) (map[string]domain.CurrentServer, error) {
	t.Helper()
	got := map[string]domain.CurrentServer{}
	err := s.session(t).CurrentServers(t.Context(), project, func(st domain.CurrentServer) {
		if old, twice := got[st.ServerID]; twice {
			t.Errorf("seen twice: %+v and %+v", old, st)
		}
		got[st.ServerID] = st
	})
	return got, err
}

// TestCurrentServers reads all pages of the whole cloud: projects that go on over a page's end, servers that have
// ended, and those that never were on a host.
func TestCurrentServers(t *testing.T) {
	t.Parallel()
	s := newStub(t)
	next := func(marker string) string {
		return fmt.Sprintf(
			`"tenant_usages_links":[{"rel":"self","href":"x"},{"rel":"next","href":"http://nova-inside:8774/v2.1/os-simple-tenant-usage?marker=%s&limit=1000"}]`, marker,
		)
	}
	s.pages("GET /compute/os-simple-tenant-usage", map[string]string{
		"": `{"tenant_usages":[
			{"tenant_id":"p1","server_usages":[{"instance_id":"a","state":"active","ended_at":null},{"instance_id":"b","state":"stopped"}]},
			{"tenant_id":"p2","server_usages":[{"instance_id":"c","state":"active","ended_at":null}]}],` + next("c") + `}`,
		"c": `{"tenant_usages":[
			{"tenant_id":"p2","server_usages":[{"instance_id":"d","state":"shelved_offloaded","ended_at":""},{"instance_id":"gone","state":"terminated","ended_at":"2026-01-02T03:04:05.000000"}]},
			{"tenant_id":"p3","server_usages":null}],` + next("d") + `}`,
		"d": `{"tenant_usages":[]}`,
	})
	s.pages("GET /compute/servers/detail", map[string]string{
		"": `{"servers":[{"id":"n1","tenant_id":"p1","status":"BUILD","OS-EXT-STS:vm_state":"building","OS-SRV-USG:launched_at":null},
			{"id":"was up","tenant_id":"p1","status":"ERROR","OS-EXT-STS:vm_state":"error","OS-SRV-USG:launched_at":"2026-01-02T03:04:05.000000"}],"servers_links":[{"rel":"next","href":"x"}]}`,
		"was up": `{"servers":[{"id":"n2","tenant_id":"p4","status":"ERROR","OS-EXT-STS:vm_state":"error"}]}`,
		"n2":     `{"servers":[]}`,
	})
	got, err := currentServers(t, s, "")
	want := map[string]domain.CurrentServer{}
	for id, st := range map[string][2]string{
		"a": {"p1", "active"}, "b": {"p1", "stopped"}, "c": {"p2", "active"}, "d": {"p2", "shelved_offloaded"},
		"n1": {"p1", "building"}, "n2": {"p4", "error"},
	} {
		want[id] = domain.CurrentServer{ServerID: id, ProjectID: st[0], State: domain.VMState(st[1])}
	}
	if diff := cmp.Diff(want, got); err != nil || diff != "" {
		t.Errorf("%v %s", err, diff)
	}
	usage := s.to("/compute/os-simple-tenant-usage")
	for _, r := range usage {
		q := r.URL.Query()
		from, err := time.Parse("2006-01-02T15:04:05", q.Get("start"))
		if err != nil || !from.After(time.Now().UTC().Add(time.Hour)) || q.Get("detailed") != "1" ||
			r.Header.Get("X-Openstack-Nova-Api-Version") != computeUsagePaging {
			t.Errorf("it got %s", r.URL)
		}
	}
	for _, r := range s.to("/compute/servers/detail") {
		if q := r.URL.Query(); q.Get("all_tenants") != "1" || strings.Join(q["status"], ",") != "BUILD,ERROR" {
			t.Errorf("it got %s", r.URL)
		}
	}
}

// TestCurrentServersOfOneProject reads no more than that.
func TestCurrentServersOfOneProject(t *testing.T) {
	t.Parallel()
	s := newStub(t)
	s.pages("GET /compute/os-simple-tenant-usage/p1", map[string]string{
		"":  `{"tenant_usage":{"tenant_id":"p1","server_usages":[{"instance_id":"a","state":"active"}]},"tenant_usage_links":[{"rel":"next","href":"http://x/?marker=a"}]}`,
		"a": `{"tenant_usage":{"tenant_id":"p1","server_usages":[{"instance_id":"b","state":"paused"}]}}`,
	})
	s.answer("GET /compute/servers/detail", 200, `{"servers":[]}`)
	got, err := currentServers(t, s, "p1")
	if err != nil || len(got) != 2 || got["b"].ProjectID != "p1" {
		t.Errorf("got %v %v", got, err)
	}
	if q := s.to("/compute/servers/detail")[0].URL.Query(); q.Has("all_tenants") {
		t.Errorf("it got %v", q)
	}
	empty := newStub(t)
	empty.answer("GET /compute/os-simple-tenant-usage/p1", 200, `{"tenant_usage":{}}`)
	empty.answer("GET /compute/servers/detail", 200, `{"servers":[]}`)
	if got, err := currentServers(t, empty, "p1"); err != nil || len(got) != 0 {
		t.Errorf("an empty project: got %v %v", got, err)
	}
}

// TestHalfACensusFails: a count that lacks a page would be too low.
func TestHalfACensusFails(t *testing.T) {
	t.Parallel()
	for name, second := range map[string]int{"refused": 403, "unavailable": 503, "broken": 200} {
		s := newStub(t)
		s.mux.HandleFunc("GET /compute/os-simple-tenant-usage", func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Query().Get("marker") == "" {
				_,
					_ = w.Write(
					[]byte(
						`{"tenant_usages":[{"tenant_id":"p1","server_usages":[{"instance_id":"a","state":"active"}]}],"tenant_usages_links":[{"rel":"next","href":"/?marker=a"}]}`,
					),
				)
				return
			}
			w.Header().Set("Retry-After", "60")
			w.WriteHeader(second)
			_, _ = w.Write([]byte(`{"tenant_usages":[`))
		})
		if _, err := currentServers(t, s, ""); apperr.CodeOf(err) == "" {
			t.Errorf("%s: the first page was taken for all", name)
		}
	}
}

// TestPagesThatGoInCircles end: a service (or a proxy that drops the query) that gives the same page forever.
func TestPagesThatGoInCircles(t *testing.T) {
	t.Parallel()
	s := newStub(t)
	s.answer("GET /compute/os-simple-tenant-usage", 200,
		`{"tenant_usages":[],"tenant_usages_links":[{"rel":"next","href":"/?marker=a"}]}`)
	s.answer("GET /compute/servers/detail", 200,
		`{"servers":[{"id":"a"},{"id":"b"}],"servers_links":[{"rel":"next","href":"/?marker=b"}]}`)
	s.answer("GET /image/v2/images", 200, `{"images":[{"id":"a"},{"id":"b"}],"next":"/v2/images?marker=b"}`)
	session := s.session(t)
	if images, err := session.Images(t.Context(), ""); err != nil || len(images) != 2 {
		t.Errorf("images: got %v %v", images, err)
	}
	seen := 0 // a server must not be counted twice
	if err := session.Changes(t.Context(), "p1", time.Now(),
		func(domain.History) { seen++ }); apperr.CodeOf(err) != apperr.BadGateway || seen > 2 {
		t.Errorf("changes: %d seen, %v", seen, err)
	}
	if err := session.CurrentServers(t.Context(), "",
		func(domain.CurrentServer) {}); apperr.CodeOf(err) != apperr.BadGateway {
		t.Errorf("currentServers: %v", err)
	}
	if len(s.calls) > 10 {
		t.Errorf("there were %d calls", len(s.calls))
	}
}

func TestChanges(t *testing.T) {
	t.Parallel()
	s := newStub(t)
	at := func(minute int) time.Time { return time.Date(2026, 1, 2, 3, minute, 0, 0, time.UTC) }
	s.pages("GET /compute/servers/detail", map[string]string{"": `{"servers":[
		{"id":"a","tenant_id":"p1","status":"ACTIVE","OS-EXT-STS:vm_state":"active","created":"2026-01-02T03:01:00Z","updated":"2026-01-02T03:05:00Z","OS-SRV-USG:terminated_at":null},
		{"id":"b","tenant_id":"p1","status":"DELETED","OS-EXT-STS:vm_state":"deleted","created":"2026-01-02T03:01:00Z","updated":"2026-01-02T03:09:00Z","OS-SRV-USG:terminated_at":"2026-01-02T03:08:00.000000"},
		{"id":"c","tenant_id":"p1","status":"SOFT_DELETED","OS-EXT-STS:vm_state":"soft-delete","created":"2026-01-02T03:01:00Z","updated":"2026-01-02T03:07:00Z"}]}`, "c": `{"servers":[]}`})
	var got []domain.History
	err := s.session(t).Changes(t.Context(), "", at(0).In(time.FixedZone("", 3600)), func(h domain.History) {
		got = append(got, h)
	})
	want := []domain.History{
		{ServerID: "a", ProjectID: "p1", Created: at(1), Updated: at(5), State: "active"},
		{ServerID: "b", ProjectID: "p1", Created: at(1), Updated: at(9), Deleted: at(8), State: "deleted"},
		{ServerID: "c", ProjectID: "p1", Created: at(1), Updated: at(7), Deleted: at(7), State: "soft-delete"},
	}
	if diff := cmp.Diff(want, got); err != nil || diff != "" {
		t.Errorf("%v %s", err, diff)
	}
	if q := s.to("/compute/servers/detail")[0].URL.Query(); q.Get("changes-since") != "2026-01-02T03:00:00Z" {
		t.Errorf("it got %v", q)
	}
}

func TestNaiveTime(t *testing.T) {
	t.Parallel()
	at := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	for text, want := range map[string]time.Time{
		`null`: {}, `""`: {}, `"2026-01-02T03:04:05"`: at, `"2026-01-02T03:04:05.000000"`: at,
		`"2026-01-02T03:04:05.5"`: at.Add(time.Second / 2),
	} {
		var got naiveTime
		if err := json.Unmarshal([]byte(text), &got); err != nil || !got.Equal(want) {
			t.Errorf("%s: got %s %v", text, got, err)
		}
	}
}

// upTo fakes the answer of a Nova whose newest microversion is 2.max to a call that requires more.
func upTo(limit int, next http.HandlerFunc) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		minor, _ := strconv.Atoi(strings.TrimPrefix(r.Header.Get("X-OpenStack-Nova-API-Version"), "2."))
		if minor > limit {
			w.WriteHeader(http.StatusNotAcceptable)
			fmt.Fprintf(w,
				`{"computeFault":{"message":"Version 2.%d is not supported by the API. Minimum is 2.1 and maximum is 2.%d."}}`, minor, limit)
			return
		}
		next(w, r)
	}
}

func TestActions(t *testing.T) {
	t.Parallel()
	s := newStub(t)
	s.pages("GET /compute/servers/a/os-instance-actions", map[string]string{
		"": `{"instanceActions":[
			{"action":"stop","request_id":"req-1","start_time":"2026-01-02T03:04:05.000000","updated_at":"2026-01-02T03:04:09.000000","message":null},
			{"action":"start","request_id":"req-2","start_time":"2026-01-02T03:04:05.000000","updated_at":null,"message":"Error"}],
			"links":[{"rel":"next","href":"http://nova-inside/?marker=req-2"}]}`,
		"req-2": `{"instanceActions":[{"action":"odd","start_time":null,"updated_at":"2026-01-02T03:04:01.000000"}]}`,
	})
	got, err := s.session(t).Actions(t.Context(), "a")
	at := func(second int) time.Time { return time.Date(2026, 1, 2, 3, 4, second, 0, time.UTC) }
	want := []domain.LoggedAction{
		{Name: "stop", Start: at(5), Finish: at(9)}, {Name: "start", Start: at(5), Failed: true}, {
			Name: "odd", Finish: at(1),
		},
	}
	if diff := cmp.Diff(want, got); err != nil || diff != "" {
		t.Errorf("%v %s", err, diff)
	}
}

// TestActionsOfAnOlderNova: it has no updated_at in the list, so the events of an action tell when it finished, and
// when Nova does not show them, nothing does. The sandbox's Nova is newer.
func TestActionsOfAnOlderNova(t *testing.T) {
	t.Parallel()
	at := func(second int) time.Time { return time.Date(2026, 1, 2, 6, 0, second, 0, time.UTC) }
	for name, tc := range map[string]struct {
		max    int
		events string
		finish time.Time
	}{
		"finished": {
			53, `"events":[{"finish_time":"2026-01-02T06:00:01.000000"},{"finish_time":"2026-01-02T06:00:02.000000"}]`,
			at(2),
		},
		"still running": {
			53, `"events":[{"finish_time":"2026-01-02T06:00:01.000000"},{"finish_time":null}]`, time.Time{},
		},
		"not shown to this caller": {50, `"message":null`, time.Time{}},
		"shown to an admin":        {50, `"events":[{"finish_time":"2026-01-02T06:00:02.000000"}]`, at(2)},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newStub(t)
			s.mux.HandleFunc("GET /compute/servers/a/os-instance-actions",
				upTo(tc.max, func(w http.ResponseWriter, _ *http.Request) {
					fmt.Fprint(w, `{"instanceActions":[{"action":"lock","request_id":"req-2","start_time":"2026-01-02T06:00:03.000000"},
					{"action":"create","request_id":"req-1","start_time":"2026-01-02T06:00:00.000000"}]}`)
				}))
			s.mux.HandleFunc("GET /compute/servers/a/os-instance-actions/req-1",
				upTo(tc.max, func(w http.ResponseWriter, _ *http.Request) {
					fmt.Fprintf(w, `{"instanceAction":{%s}}`, tc.events)
				}))
			session := s.session(t)
			want := []domain.LoggedAction{
				{Name: "lock", Start: at(3)}, {Name: "create", Start: at(0), Finish: tc.finish},
			}
			for range 2 { // the second time it is known that Nova is older
				got, err := session.Actions(t.Context(), "a")
				if diff := cmp.Diff(want, got); err != nil || diff != "" {
					t.Errorf("%v %s", err, diff)
				}
				h := domain.History{Created: at(0), Updated: at(3), State: domain.StateActive, Actions: got}
				if state, known := h.StateAt(at(0).Add(time.Second)); state == domain.StateActive {
					t.Errorf("a second after it was requested it counts as %s, %t", state, known)
				}
			}
			if calls := len(s.to("/compute/servers/a/os-instance-actions")); calls != 3 {
				t.Errorf("the list was read %d times", calls)
			}
		})
	}
}

// TestActionsFail: half a log would decide wrongly.
func TestActionsFail(t *testing.T) {
	t.Parallel()
	s := newStub(t)
	s.answer("GET /compute/servers/a/os-instance-actions", 200,
		`{"instanceActions":[{"action":"lock"}],"links":[{"rel":"next","href":"x?marker=m"}]}`)
	s.mux.HandleFunc("GET /compute/servers/b/os-instance-actions",
		upTo(53, func(w http.ResponseWriter, _ *http.Request) {
			fmt.Fprint(w, `{"instanceActions":[{"action":"create","request_id":"req-1"}]}`)
		}))
	s.answer("GET /compute/servers/b/os-instance-actions/req-1", 503, ``)
	for id, code := range map[string]apperr.Code{"a": apperr.BadGateway, "b": apperr.Unavailable} {
		if actions, err := s.session(t).Actions(t.Context(), id); apperr.CodeOf(err) != code {
			t.Errorf("%s: %v %v", id, actions, err)
		}
	}
}
