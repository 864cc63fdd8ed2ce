package openstack

import (
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

// upTo fakes the answer of a Nova whose newest microversion is 2.max to a call that asks for more.
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
					t.Errorf("a second after it was asked for it counts as %s, %t", state, known)
				}
			}
			if calls := len(s.to("/compute/servers/a/os-instance-actions")); calls != 3 {
				t.Errorf("the list was asked for %d times", calls)
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
