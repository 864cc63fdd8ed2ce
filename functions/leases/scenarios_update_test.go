package leases

import (
	"fmt"
	"net/http"
	"testing"
	"time"

	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/postgres"
	"github.com/cloudfn/cloudfn/shared/testkit"
)

// TestLongUpdateScenarios are Blazar's tests of changing and ending leases of hosts.
func TestLongUpdateScenarios(t *testing.T) {
	t.Parallel()
	play(t, []scenario{
		{"update lease that has not started: start, end and warning", nil, func(t *testing.T, f fixture) {
			f.hosts(t, 1)
			made := f.make(t, ofHosts(in(2*time.Hour), "PT2H", ""))
			moved := fmt.Sprintf(`{"start": %q, "duration": "P1D", "before_end": "PT2H"}`, in(3*time.Hour))
			got := f.changes(t, made, moved)
			if got.Start.Equal(made.Start) || got.End.Sub(got.Start) != 24*time.Hour || got.BeforeEnd != "PT2H" {
				t.Errorf("got %+v", got)
			}
			if got = f.changes(t, made, `{"start": "now"}`); time.Since(got.Start).Abs() > time.Minute {
				t.Errorf("got %+v", got)
			}
		}},
		{"update lease with wrong dates", nil, func(t *testing.T, f fixture) {
			f.hosts(t, 1)
			made := f.make(t, ofHosts(in(2*time.Hour), "PT2H", ""))
			for body, field := range map[string]string{
				`{"end": "` + in(time.Hour) + `"}`: "end", `{"end": "now"}`: "end",
				`{"start": "` + in(5*time.Hour) + `"}`:                   "end",
				`{"end": "` + in(5*time.Hour) + `", "duration": "PT1H"}`: "duration", `{"duration": "P2Y"}`: "duration",
				`{"before_end": "PT2H"}`: "before_end", `{"on_end": "stop"}`: "on_end",
				`{"start": "soon"}`: "start", `{"duration": "PT"}`: "duration", `{"before_end": "1h"}`: "before_end",
				`{"end": null}`: "end", `{"surprise": 1}`: "surprise",
			} {
				refused(t, patch(t, f.Client, path(made), body), http.StatusBadRequest, field)
			}
		}},
		{"update lease that is active: extend, shorten, not move", nil, func(t *testing.T, f fixture) {
			f.hosts(t, 1)
			made := f.make(t, ofHosts("now", "PT2H", ""))
			f.begin(t, made)
			refused(t, patch(t, f.Client, path(made), `{"start": "now"}`), http.StatusConflict, "start")
			refused(t, patch(t, f.Client, path(made), `{"end": "`+in(-time.Minute)+`"}`), http.StatusBadRequest, "end")
			refused(t, patch(t, f.Client, path(made), `{"end": "later"}`), http.StatusBadRequest, "end")
			for _, end := range []time.Duration{5 * time.Hour, time.Hour} {
				got := f.changes(t, made, fmt.Sprintf(`{"end": %q, "before_end": "PT10M", "name": "x"}`, in(end)))
				if got.Status != domain.LeaseActive || time.Until(got.End) > end {
					t.Errorf("got %+v", got)
				}
				until := testkit.Scalar[time.Time](t, f.conn, "select upper(during) from allocations")
				if !until.Equal(got.End) {
					t.Errorf("its host is its own until %s, and it ends at %s", until, got.End)
				}
			}
		}},
		{"end lease now, by its end", nil, func(t *testing.T, f fixture) {
			f.hosts(t, 1)
			made := f.make(t, ofHosts("now", "PT2H", ""))
			f.begin(t, made)
			got := f.changes(t, made, `{"end": "now"}`)
			isDue := testkit.Scalar[bool](t, f.conn, "select due_at <= now() and ends_at <= now() from leases")
			if time.Since(got.End).Abs() > time.Minute || !isDue {
				t.Errorf("got %+v, and it is due: %t", got, isDue)
			}
		}},
		{"extend lease into another", nil, func(t *testing.T, f fixture) {
			f.hosts(t, 1)
			made := f.make(t, ofHosts("now", "PT1H", ""))
			f.begin(t, made)
			next := f.make(t, ofHosts(in(2*time.Hour), "PT1H", ""))
			a := patch(t, f.Client, path(made), fmt.Sprintf(`{"end": %q}`, in(2*time.Hour+time.Minute)))
			if a.Status != http.StatusConflict || !contains(a.Body, next.Start.Format(time.RFC3339)) {
				t.Errorf("got %d %s", a.Status, a.Body)
			}
			f.changes(t, made, fmt.Sprintf(`{"end": %q}`, next.Start.Format(time.RFC3339)))
		}},
		{"move lease where no host is free, and where another is", nil, func(t *testing.T, f fixture) {
			f.hosts(t, 2)
			made := f.make(t, ofHosts(in(time.Hour), "PT1H", ""))
			f.make(t, ofHosts(in(3*time.Hour), "PT1H", `, "min": 2`))
			move := func(start string) testkit.Answer {
				return patch(t, f.Client, path(made), fmt.Sprintf(`{"start": %q, "duration": "PT1H"}`, start))
			}
			f.conflict(t, move(in(3*time.Hour)), move)
			f.make(t, ofHosts(in(8*time.Hour), "PT1H", ""))
			if a := move(in(8 * time.Hour)); a.Status != http.StatusOK {
				t.Errorf("got %d %s", a.Status, a.Body)
			}
		}},
		{"update a lease that was changed meanwhile", nil, func(t *testing.T, f fixture) {
			f.hosts(t, 1)
			made := f.make(t, ofHosts(in(time.Hour), "PT1H", ""))
			tag := f.Get(t, path(made)).Header.Get("ETag")
			if a := patch(t, f.Client, path(made), `{"name": "a"}`, "If-Match", tag); a.Status != http.StatusOK {
				t.Errorf("got %d %s", a.Status, a.Body)
			}
			a := patch(t, f.Client, path(made), `{"name": "b"}`, "If-Match", tag)
			refused(t, a, http.StatusPreconditionFailed, "")
		}},
		{"delete before the start, while active and after the end", nil, func(t *testing.T, f fixture) {
			f.hosts(t, 2)
			pending, active := f.make(t, ofHosts(in(time.Hour), "PT1H", "")), f.make(t, ofHosts("now", "PT1H", ""))
			f.begin(t, active)
			var got Lease
			if a := f.Do(t, "DELETE", path(pending), ""); a.Status != http.StatusOK {
				t.Errorf("pending: %d %s", a.Status, a.Body)
			} else if a.JSON(t, &got); got.Status != domain.LeaseCancelled || got.Events[1].Status != "skipped" {
				t.Errorf("pending: %+v", got)
			}
			if a := f.Do(t, "DELETE", path(active), ""); a.Status != http.StatusAccepted {
				t.Errorf("active: %d %s", a.Status, a.Body)
			}
			f.exec(t, "update leases set status = 'ended', end_result = 'done', ended_at = now() where id = $1",
				active.ID)
			if a := f.Do(t, "DELETE", path(active), ""); a.Status != http.StatusOK {
				t.Errorf("ended: %d %s", a.Status, a.Body)
			}
			refused(t, patch(t, f.Client, path(active), `{"name": "x"}`), http.StatusConflict, "")
		}},
		{"a host with reservations stays reservable", nil, func(t *testing.T, f fixture) {
			f.hosts(t, 1)
			f.make(t, ofHosts(in(time.Hour), "PT1H", ""))
			f.mayNotLeave(t, "n001")
		}},
	})
}

// mayNotLeave checks that a host cannot leave the pool: POST /v1/nodes/{name}/unreservable asks the same.
func (f fixture) mayNotLeave(t *testing.T, host string) {
	t.Helper()
	db, err := postgres.Open(postgres.Config{URL: domain.Secret(f.database), MaxConns: 1}, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	if _, err := (postgres.Nodes{DB: db}).Leave(t.Context(), host, "admin"); apperr.CodeOf(err) != apperr.Conflict {
		t.Errorf("leaving: %v", err)
	}
}
