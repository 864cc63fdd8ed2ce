package leases

import (
	"fmt"
	"net/http"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/testkit"
)

// scenario is a test of leases against real Postgres and the sandbox, many of them with the names of Blazar's. What
// domain, httpx and Postgres decide is tested there.
type scenario struct {
	name string
	more map[string]string // of the environment
	run  func(*testing.T, fixture)
}

// play runs scenarios of one project, each with a database of its own.
func play(t *testing.T, scenarios []scenario) {
	t.Helper()
	project := testkit.BorrowProject(t)
	token := project.Token(t)
	for _, s := range scenarios {
		t.Run(s.name, func(t *testing.T) { s.run(t, startFor(t, project, token, s.more)) })
	}
}

// post creates a lease of one host with this period, and gives the answer.
func (f fixture) post(t *testing.T, period string) testkit.Answer {
	t.Helper()
	return f.Post(t, "/v1/leases", fmt.Sprintf(`{"name": "hosts", %s, "reservations": [{"type": "host"}]}`, period))
}

// path is where a lease is.
func path(made Lease) string { return "/v1/leases/" + made.ID.String() }

// begin lets a pending lease be active since an hour ago, as run-leases would.
func (f fixture) begin(t *testing.T, made Lease) {
	t.Helper()
	f.exec(t, `update leases set status = 'active', start_result = 'done', started_at = now() - interval '1 hour',
		starts_at = now() - interval '1 hour' where id = $1`, made.ID)
	f.exec(t, `update reservations set status = 'active' where lease_id = $1`, made.ID)
	f.exec(t, `update allocations set prepared_at = now(), during = tstzrange(now() - interval '1 hour', upper(during))
		where reservation_id in (select id from reservations where lease_id = $1)`, made.ID)
}

// changes sends a change that works.
func (f fixture) changes(t *testing.T, made Lease, body string) (changed Lease) {
	t.Helper()
	a := patch(t, f.Client, path(made), body)
	if a.JSON(t, &changed); a.Status != http.StatusOK {
		t.Fatalf("%s: got %d %s", body, a.Status, a.Body)
	}
	return changed
}

// TestCreateScenarios are Blazar's tests of creating leases.
func TestCreateScenarios(t *testing.T) {
	t.Parallel()
	play(t, []scenario{
		{"create lease with wrong dates", nil, func(t *testing.T, f fixture) {
			f.hosts(t, 1)
			for period, field := range map[string]string{
				`"start": "` + in(2*time.Hour) + `", "end": "` + in(time.Hour) + `"`: "end",
				`"start": "` + in(time.Hour) + `"`:                                   "end",
				`"end": "` + in(time.Hour) + `", "duration": "PT1H"`:                 "duration",
				`"start": "tomorrow", "duration": "PT1H"`:                            "start",
				`"start": "2096-01-31T10:00:00", "duration": "PT1H"`:                 "start",
				`"end": "2096-01-31 10:00"`:                                          "end",
				`"end": "9999-12-31T23:59:59-14:00"`:                                 "end",
				`"duration": "1 hour"`:                                               "duration",
				`"duration": "P1.5D"`:                                                "duration",
				`"duration": "P0D"`:                                                  "duration",
				`"duration": "P99999Y"`:                                              "duration",
				`"duration": "PT1H", "before_end": "PT1H"`:                           "before_end",
				`"duration": "PT1H", "before_end": "P1M"`:                            "before_end",
				`"duration": "PT1H", "before_end": "-PT1M"`:                          "before_end",
				`"duration": "PT1H", "on_end": "explode"`:                            "on_end",
				`"duration": "PT1H", "on_end": "stop"`:                               "on_end",
			} {
				refused(t, f.post(t, period), http.StatusBadRequest, field)
			}
			if a := f.post(t, `"duration": "P70Y"`); !contains(a.Body, "P366D") {
				t.Errorf("the longest duration is not in the form of the API: %s", a.Body)
			}
		}},
		{"create lease with wrong parameters", nil, func(t *testing.T, f fixture) {
			for body, field := range map[string]string{
				`"reservations": [{"type": "host"}]`:              "name",
				`"name": " ", "reservations": [{"type": "host"}]`: "name",
				`"name": "x"`:                     "reservations",
				`"name": "x", "reservations": []`: "reservations",
				`"name": "x", "reservations": [{"type": "host"}], "surprise": 1`: "surprise",
			} {
				refused(t, f.Post(t, "/v1/leases", `{"duration": "PT1H", `+body+"}"), http.StatusBadRequest, field)
			}
			const id = `"instance_id": "019b7c5e-3a10-7c44-9d0b-2f6a1c0e9a11"`
			for reservations, field := range map[string]string{
				`{"type": "disk"}`: "[0].type", `{"type": "instance"}`: "[0].instance_id",
				`{"type": "host", "min": ""}`: "[0].min", `{"type": "host", "min": 1.5}`: "[0].min",
				`{"type": "host", "min": 2, "max": 1}`: "[0].max", `{"type": "host", ` + id + `}`: "[0].instance_id",
				`{"type": "instance", ` + id + `}, {"type": "instance", ` + id + `}`: "[1].instance_id",
			} {
				body := `{"name": "x", "duration": "PT1H", "reservations": [` + reservations + "]}"
				refused(t, f.Post(t, "/v1/leases", body), http.StatusBadRequest, "reservations"+field)
			}
		}},
	})
}

// TestLongInstanceScenarios are tests of whose instances can be leased, and by whom.
func TestLongInstanceScenarios(t *testing.T) {
	t.Parallel()
	play(t, []scenario{
		{
			"create lease of an absent instance, another project's and a deleted one", nil,
			func(t *testing.T, f fixture) {
				for _, id := range []uuid.UUID{
					uuid.New(), f.instance(t, "another", "active"), f.instance(t, f.project.ID, "deleted"),
				} {
					a := f.Post(t, "/v1/leases", ofInstance(id, ""))
					refused(t, a, http.StatusBadRequest, "reservations[0].instance_id")
				}
			},
		},
		{"create lease with a delegated token", nil, func(t *testing.T, f fixture) {
			id, secret := f.project.AppCredential(t)
			delegated := f.server.As(f.project.AppCredentialToken(t, id, secret))
			a := delegated.Post(t, "/v1/leases", ofInstance(f.instance(t, f.project.ID, "active"), ""))
			// Older Keystones let it make trusts.
			if a.Status != http.StatusCreated {
				refused(t, a, http.StatusConflict, "")
				f.nothing(t)
			}
		}},
		{"create lease without a trustee", map[string]string{"TRUSTEE_USER_ID": ""}, func(t *testing.T, f fixture) {
			a := f.Post(t, "/v1/leases", ofInstance(f.instance(t, f.project.ID, "active"), ""))
			refused(t, a, http.StatusNotImplemented, "")
			f.nothing(t)
		}},
		{"another end action takes another trust", nil, func(t *testing.T, f fixture) {
			made := f.make(t, ofInstance(f.instance(t, f.project.ID, "active"), ""))
			f.changes(t, made, `{"on_end": "snapshot_delete"}`)
			actions := testkit.Scalar[string](t, f.conn, `select array_to_string(c.actions, ' ') from connections c
				join leases l on l.connection_id = c.id`)
			if actions != "start stop shelve snapshot deallocate" {
				t.Errorf("its connection permits %s", actions)
			}
		}},
	})
}

// nothing checks that nothing is made.
func (f fixture) nothing(t *testing.T) {
	t.Helper()
	if n := testkit.Scalar[int](t, f.conn, `select ((select count(*) from leases) + (select count(*) from connections)
		+ (select count(*) from trusts_to_revoke))::int`); n != 0 {
		t.Errorf("%d rows are left", n)
	}
}

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
				`{"end": null}`: "end", `{"surprise": 1}`: "surprise", `{}`: "", `{"name": null}`: "name",
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
	})
}
