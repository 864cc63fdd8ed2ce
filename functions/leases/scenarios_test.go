package leases

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/postgres"
	"github.com/cloudfn/cloudfn/shared/testkit"
)

// scenario is one of Blazar's tests of leases and hosts, against real Postgres and the sandbox.
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

// anyTime lets leases begin at any time.
var anyTime = map[string]string{"LEASES_AHEAD": "0"}

// TestCreateScenarios are Blazar's tests of creating leases.
func TestCreateScenarios(t *testing.T) {
	t.Parallel()
	play(t, []scenario{
		{"create lease now", nil, func(t *testing.T, f fixture) {
			f.hosts(t, 1)
			for _, start := range []string{`"start": "now", `, ""} {
				a := f.post(t, start+`"duration": "PT1H"`)
				var made Lease
				if a.JSON(t, &made); a.Status != http.StatusCreated || time.Since(made.Start).Abs() > time.Minute {
					t.Errorf("got %d %s", a.Status, a.Body)
				}
				f.Do(t, "DELETE", path(made), "")
			}
		}},
		{"create lease with a start in the past, which is now", nil, func(t *testing.T, f fixture) {
			f.hosts(t, 1)
			made := f.make(t, ofHosts(in(-time.Hour), "PT2H", ""))
			if time.Since(made.Start).Abs() > time.Minute || made.End.Sub(made.Start) != 2*time.Hour {
				t.Errorf("made %+v", made)
			}
			refused(t, f.post(t, `"start": "`+in(-2*time.Hour)+`", "end": "`+in(-time.Hour)+`"`), http.StatusBadRequest,
				"end")
		}},
		{"create lease some time later, with its events", anyTime, func(t *testing.T, f fixture) {
			f.hosts(t, 1)
			a := f.post(t, `"start": "2096-01-31T10:00:00+02:00", "end": "2096-02-29T08:00:00Z", "before_end": "P1D"`)
			var made Lease
			if a.JSON(t, &made); a.Status != http.StatusCreated || fmt.Sprint(made.Events) != fmt.Sprint([]LeaseEvent{
				{Type: "start", DueAt: made.Start, Status: "pending"},
				{Type: "before_end", DueAt: made.End.Add(-24 * time.Hour), Status: "pending"},
				{Type: "end", DueAt: made.End, Status: "pending"},
			}) {
				t.Errorf("got %d %s", a.Status, a.Body)
			}
		}},
		{"create lease of a month from the 31st", anyTime, func(t *testing.T, f fixture) {
			f.hosts(t, 1)
			var made Lease
			a := f.post(t, `"start": "2096-01-31T10:00:00Z", "duration": "P1M"`)
			if a.JSON(t, &made); made.End.Format(time.RFC3339) != "2096-02-29T10:00:00Z" {
				t.Errorf("got %d %s", a.Status, a.Body)
			}
		}},
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
		}},
		{
			"create lease longer than the limit",
			map[string]string{"LEASES_LONGEST": "24h"},
			func(t *testing.T, f fixture) {
				f.hosts(t, 1)
				refused(t, f.post(t, `"duration": "P1DT1S"`), http.StatusBadRequest, "duration")
				refused(t, f.post(t, `"end": "`+in(25*time.Hour)+`"`), http.StatusBadRequest, "end")
				f.make(t, ofHosts("now", "P1D", ""))
			},
		},
		{
			"create lease too far ahead",
			map[string]string{"LEASES_AHEAD": "48h", "LEASES_LONGEST": "0"},
			func(t *testing.T, f fixture) {
				f.hosts(t, 1)
				a := f.Post(t, "/v1/leases", ofHosts(in(49*time.Hour), "P1D", ""))
				refused(t, a, http.StatusBadRequest, "start")
				latest, err := time.Parse(time.RFC3339, allowed(t, a, "start")[0])
				if err != nil || !strings.Contains(string(a.Body), "P2D") {
					t.Errorf("got %s: %v", a.Body, err)
				}
				made := f.make(t, ofHosts(latest.Format(time.RFC3339), "P1D", ""))
				refused(t, patch(t, f.Client, path(made), `{"start": "`+in(50*time.Hour)+`"}`), http.StatusBadRequest,
					"start")
				refused(t, f.Post(t, "/v1/leases?dry_run=true", ofHosts(in(72*time.Hour), "P1D", "")),
					http.StatusBadRequest, "start")
			},
		},
		{
			"durations in errors are those of the API",
			nil,
			func(t *testing.T, f fixture) {
				f.hosts(t, 1)
				for _, a := range []testkit.Answer{
					f.Post(t, "/v1/leases", ofHosts("now", "P70Y", "")),
					f.Get(t, "/v1/leases/availability?duration=P80Y"),
				} {
					if a.Status != http.StatusBadRequest || !strings.Contains(string(a.Body), "P366D") ||
						strings.Contains(string(a.Body), "h0m") {
						t.Errorf("got %d %s", a.Status, a.Body)
					}
				}
			},
		},
		{
			"create more leases than the limit",
			map[string]string{"LEASES_PER_PROJECT": "1"},
			func(t *testing.T, f fixture) {
				f.hosts(t, 2)
				made := f.make(t, ofHosts(in(time.Hour), "PT1H", ""))
				refused(t, f.post(t, `"duration": "PT1H"`), http.StatusConflict, "")
				f.Do(t, "DELETE", path(made), "")
				f.make(t, ofHosts("now", "PT1H", ""))
			},
		},
		{"create lease with a used name", nil, func(t *testing.T, f fixture) {
			f.hosts(t, 2)
			if a, b := f.make(t, ofHosts("now", "PT1H", "")), f.make(t, ofHosts("now", "PT1H", "")); a.ID == b.ID {
				t.Error("names need not be unique, ids are")
			}
		}},
		{"create lease without required parameters", nil, func(t *testing.T, f fixture) {
			for body, field := range map[string]string{
				`"reservations": [{"type": "host"}]`:              "name",
				`"name": " ", "reservations": [{"type": "host"}]`: "name",
				`"name": "x"`:                                                    "reservations",
				`"name": "x", "reservations": []`:                                "reservations",
				`"name": "x", "reservations": [{"type": "volume"}]`:              "reservations[0].type",
				`"name": "x", "reservations": [{"type": "instance"}]`:            "reservations[0].instance_id",
				`"name": "x", "reservations": [{"type": "host"}], "surprise": 1`: "surprise",
				`"name": "x", "reservations": [{"type": "host", "min": ""}]`:     "reservations[0].min",
			} {
				refused(t, f.Post(t, "/v1/leases", `{"duration": "PT1H", `+body+"}"), http.StatusBadRequest, field)
			}
		}},
		{"create lease as a reader", nil, func(t *testing.T, f fixture) {
			reader := f.server.As(f.project.ReaderToken(t))
			f.hosts(t, 1)
			refused(t, reader.Post(t, "/v1/leases", ofHosts("now", "PT1H", "")), http.StatusForbidden, "")
			ofServer := ofInstance(f.instance(t, f.project.ID, "active"), "")
			refused(t, reader.Post(t, "/v1/leases", ofServer), http.StatusForbidden, "")
			f.nothing(t)
			if n := testkit.Scalar[int](t, f.conn, `select ((select count(*) from events) +
				(select count(*) from reservations) + (select count(*) from allocations) +
				(select count(*) from instances where lease_id is not null))::int`); n+len(f.project.Trusts(t)) != 0 {
				t.Errorf("a reader has left %d rows, and the trusts %v", n, f.project.Trusts(t))
			}
			refused(t, f.server.As("").Get(t, "/v1/leases"), http.StatusUnauthorized, "")
		}},
	})
}

// TestLongInstanceScenarios are tests of leases of instances.
func TestLongInstanceScenarios(t *testing.T) {
	t.Parallel()
	play(t, []scenario{
		{"create lease of several instances", nil, func(t *testing.T, f fixture) {
			body := fmt.Sprintf(`{"name": "x", "duration": "P1D", "on_end": "delete", "reservations": [
				{"type": "instance", "instance_id": %q}, {"type": "instance", "instance_id": %q}]}`,
				f.instance(t, f.project.ID, "active"), f.instance(t, f.project.ID, "shelved"))
			if made := f.make(t, body); len(made.Reservations) != 2 {
				t.Errorf("made %+v", made)
			}
			if n := len(f.project.Trusts(t)); n != 1 {
				t.Errorf("%d trusts", n)
			}
		}},
		{"create lease of an instance leased already", nil, func(t *testing.T, f fixture) {
			id := f.instance(t, f.project.ID, "active")
			made, trusts := f.make(t, ofInstance(id, "")), f.project.Trusts(t)
			a := f.Post(t, "/v1/leases", ofInstance(id, ""))
			refused(t, a, http.StatusConflict, "reservations[0].instance_id")
			if !contains(a.Body, made.ID.String()) {
				t.Errorf("the answer does not name the lease: %s", a.Body)
			}
			twice := fmt.Sprintf(`{"name": "x", "duration": "P1D", "reservations": [
				{"type": "instance", "instance_id": %[1]q}, {"type": "instance", "instance_id": %[1]q}]}`, uuid.New())
			refused(t, f.Post(t, "/v1/leases", twice), http.StatusBadRequest, "reservations[1].instance_id")
			if after := f.project.Trusts(t); len(after) != len(trusts) {
				t.Errorf("trusts were %v, and are %v", trusts, after)
			}
		}},
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
		{"rename, and change nothing", nil, func(t *testing.T, f fixture) {
			made := f.make(t, ofInstance(f.instance(t, f.project.ID, "active"), ""))
			if got := f.changes(t, made, `{"name": "seminar"}`); got.Name != "seminar" || !got.End.Equal(made.End) {
				t.Errorf("got %+v", got)
			}
			f.changes(t, made, `{"name": "seminar"}`)
			if n := testkit.Scalar[int](t, f.conn, "select version::int from leases"); n != 2 {
				t.Errorf("it has version %d", n)
			}
			refused(t, patch(t, f.Client, path(made), `{}`), http.StatusBadRequest, "")
			refused(t, patch(t, f.Client, path(made), `{"name": null}`), http.StatusBadRequest, "name")
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
		{"delete an active lease", nil, func(t *testing.T, f fixture) {
			made := f.make(t, ofInstance(f.instance(t, f.project.ID, "active"), ""))
			f.begin(t, made)
			for range 2 {
				var ending Lease
				a := f.Do(t, "DELETE", path(made), "")
				if a.JSON(t, &ending); a.Status != http.StatusAccepted || ending.Status != domain.LeaseEnding {
					t.Errorf("got %d %s", a.Status, a.Body)
				}
			}
			refused(t, patch(t, f.Client, path(made), `{"name": "x"}`), http.StatusConflict, "")
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
