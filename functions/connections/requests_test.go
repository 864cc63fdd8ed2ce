package connections

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/testkit"
)

const requestsPath = "/v1/connections/requests"

// parties are the clients of one replica: the owners of servers, a program that requests a connection, and others.
type parties struct {
	owner, program, stranger *testkit.Client
	owners, programs         *testkit.Project
	conn                     *pgx.Conn
	woken                    *testkit.Wakes
}

func newParties(t *testing.T) parties {
	t.Helper()
	app, conn, _, woken := started(t, nil)
	p := parties{owners: testkit.BorrowProject(t), programs: testkit.BorrowProject(t), conn: conn, woken: woken}
	p.owner, p.program, p.stranger = app.As(p.owners.Token(t)), app.As(p.programs.Token(t)),
		app.As(testkit.BorrowProject(t).Token(t))
	return p
}

// request requests a connection from the owners: to allocate and deallocate 3 servers for two days, unless more changes
// that.
func (p parties) request(t *testing.T, more string) ConnectionRequest {
	t.Helper()
	a := p.program.Post(t, requestsPath, p.body(more))
	if a.Status != 201 {
		t.Fatalf("request: %d %s", a.Status, a.Body)
	}
	var r ConnectionRequest
	a.JSON(t, &r)
	if a.Header.Get("Location") != requestsPath+"/"+r.ID.String() || r.Status != "pending" {
		t.Errorf("got %q %+v", a.Header.Get("Location"), r)
	}
	return r
}

func (p parties) body(more string) string {
	return fmt.Sprintf(`{"project_id": %q, "name": "nightly", "why": "we build at night",
		"actions": ["allocate", "deallocate"],
		"quota": {"instances": 3}, "duration": "48h"%s}`, p.owners.ID, more)
}

func (p parties) status(t *testing.T, app *testkit.Client, id uuid.UUID) ConnectionRequest {
	t.Helper()
	a := app.Get(t, requestsPath+"/"+id.String())
	var r ConnectionRequest
	if a.JSON(t, &r); a.Status != 200 {
		t.Fatalf("show: %d %s", a.Status, a.Body)
	}
	return r
}

func (p parties) decide(t *testing.T, id uuid.UUID, how, body string) (testkit.Answer, Connection) {
	t.Helper()
	a := p.owner.Post(t, requestsPath+"/"+id.String()+"/"+how, body)
	var c Connection
	if a.Status < 300 && how == "grant" {
		a.JSON(t, &c)
	}
	return a, c
}

func problemField(t *testing.T, a testkit.Answer) string {
	t.Helper()
	var problem struct {
		Errors []struct{ Field string }
	}
	if a.JSON(t, &problem); len(problem.Errors) == 0 {
		return ""
	}
	return problem.Errors[0].Field
}

// TestGrantAsRequested grants a request by a trust; the requester can act through the connection.
func TestGrantAsRequested(t *testing.T) {
	t.Parallel()
	p := newParties(t)
	r := p.request(t, "")
	if r.RequestedBy.UserID != p.programs.UserID || r.RequestedBy.ProjectID != p.programs.ID || r.For != "user" ||
		r.Terms.Duration != "48h" || r.ProjectID != p.owners.ID {
		t.Errorf("got %+v", r)
	}
	if left := time.Until(r.ExpiresAt); left < 13*24*time.Hour || left > 15*24*time.Hour {
		t.Errorf("it expires at %s", r.ExpiresAt)
	}
	for query, want := range map[string]int{
		"?received=true&status=pending": 1, "": 0,
		"?received=true&status=granted": 0,
	} {
		var page ConnectionRequestPage
		p.owner.Get(t, requestsPath+query).JSON(t, &page)
		if len(page.Requests) != want {
			t.Errorf("the owner's list %q has %d", query, len(page.Requests))
		}
	}
	a, c := p.decide(t, r.ID, "grant", `{}`)
	if a.Status != 201 || a.Header.Get("Location") != "/v1/connections/"+c.ID.String() {
		t.Fatalf("grant: %d %s", a.Status, a.Body)
	}
	if c.Kind != "trust" || c.Name != "nightly" || !slices.Equal(c.UsableBy, []string{p.programs.UserID}) ||
		*c.Quota.Instances != 3 ||
		!slices.Equal(c.Actions, []domain.Permission{"allocate", "deallocate"}) ||
		time.Until(c.ExpiresAt).Round(time.Hour) != 48*time.Hour {
		t.Errorf("granted is %+v", c)
	}
	onlyTrust(t, p.owners)
	if got := p.status(t, p.program, r.ID); got.Status != "granted" || got.ConnectionID != c.ID || got.DecidedBy != "" {
		t.Errorf("the program sees %+v", got)
	}
	if got := p.status(t, p.owner, r.ID); got.DecidedBy != p.owners.UserID {
		t.Errorf("the owner sees %+v", got)
	}
	var usable ConnectionPage
	p.program.Get(t, "/v1/connections?usable=true").JSON(t, &usable)
	if len(usable.Connections) != 1 || usable.Connections[0].ID != c.ID {
		t.Errorf("the program may act through %+v", usable)
	}
	events := testkit.Scalar[string](t, p.conn, `select string_agg(
			case project_id when $2 then 'owners ' else 'programs ' end || (data->>'status'), ', '
			order by seq, project_id = $2)
from events where subject = $1`, r.ID.String(), p.owners.ID)
	if events != "owners pending, programs granted, owners granted" {
		t.Errorf("its events are %s", events)
	}

	if a, again := p.decide(t, r.ID, "grant", `{}`); a.Status != 200 || again.ID != c.ID {
		t.Errorf("the same once more: %d %s", a.Status, a.Body)
	}
	if a, _ := p.decide(t, r.ID, "grant", `{"actions": ["allocate"]}`); a.Status != 409 ||
		!strings.Contains(string(a.Body), c.ID.String()) {
		t.Errorf("another grant: %d %s", a.Status, a.Body)
	}
	if a, _ := p.decide(t, r.ID, "decline", `{}`); a.Status != 409 {
		t.Errorf("decline a granted request: %d %s", a.Status, a.Body)
	}
	if a := p.program.Do(t, "DELETE", requestsPath+"/"+r.ID.String(), ""); a.Status != 409 {
		t.Errorf("withdraw a granted request: %d %s", a.Status, a.Body)
	}
	if n := testkit.Scalar[int](t, p.conn, "select count(*) from trusts_to_revoke"); n != 0 {
		t.Errorf("%d trusts are to be revoked", n)
	}
}

// TestLongGrantLessThanRequested grants a part of the request, and rejects every extension. The request stays pending
// after a rejected grant.
func TestLongGrantLessThanRequested(t *testing.T) {
	t.Parallel()
	p := newParties(t)
	r := p.request(t, `, "for": "project"`)
	for body, field := range map[string]string{
		`{"actions": ["allocate", "start"]}`:                           "actions",
		`{"actions": []}`:                                              "actions",
		`{"quota": {"instances": 4}}`:                                  "quota.instances",
		`{"quota": {"instances": -1}}`:                                 "quota.instances",
		`{"expires_at": "` + soon(49*time.Hour) + `"}`:                 "expires_at",
		`{"expires_at": "tomorrow"}`:                                   "expires_at",
		`{"usable_by": []}`:                                            "usable_by",
		`{"kind": "x"}`:                                                "kind",
		`{"roles": ["admin"]}`:                                         "roles",
		`{"kind": "application_credential", "id": "x", "secret": "x"}`: "id",
		`{"kind": "trust", "secret": "x"}`:                             "secret",
		`{"expires_at": "` + time.Now().Add(-time.Hour).UTC().Format(time.RFC3339) + `"}`: "expires_at",
	} {
		if a, _ := p.decide(t, r.ID, "grant", body); a.Status != 400 || problemField(t, a) != field {
			t.Errorf("%s: %d %s", body, a.Status, a.Body)
		}
	}
	if left := p.owners.Trusts(t); len(left) != 0 || p.status(t, p.owner, r.ID).Status != "pending" {
		t.Fatalf("after rejections there are the trusts %v", left)
	}
	end := soon(time.Hour)
	a, c := p.decide(t, r.ID, "grant",
		`{"name": "less", "actions": ["allocate"], "quota": {"instances": 1, "vcpus": 2}, "expires_at": "`+end+
			`", "idle_timeout": "1h"}`)
	if a.Status != 201 || c.Name != "less" || !slices.Equal(c.Actions, []domain.Permission{"allocate"}) ||
		*c.Quota.Instances != 1 || *c.Quota.VCPUs != 2 ||
		c.Quota.RAMMB != nil || c.IdleTimeout != "1h" || !slices.Equal(c.UsableBy, []string{p.programs.ID}) ||
		time.Until(c.ExpiresAt) > time.Hour {
		t.Errorf("%d %s", a.Status, a.Body)
	}

	flavor := testkit.Sandbox(t).Flavor
	r = p.request(t, fmt.Sprintf(`, "limits": {"flavors": [%q]}`, flavor))
	if a, _ := p.decide(t, r.ID, "grant", `{"limits": {"flavors": ["no-such"]}}`); a.Status != 400 ||
		problemField(t, a) != "limits.flavors[0]" {
		t.Errorf("other flavors: %d %s", a.Status, a.Body)
	}
	a, c = p.decide(t, r.ID, "grant", fmt.Sprintf(`{"limits": {"images": [%q]}}`, uuid.NewString()))
	if a.Status != 201 || !slices.Equal(c.Limits.Flavors, []string{flavor}) || len(c.Limits.Images) != 1 ||
		!slices.Equal(r.Terms.Limits.Flavors, []string{flavor}) {
		t.Errorf("limits: %d %s", a.Status, a.Body)
	}

	r = p.request(t, "") // by an application credential, whose secret is in no hash
	id, secret := p.owners.AppCredential(t)
	body := fmt.Sprintf(`{"kind": "application_credential", "id": %q, "secret": %q}`, id, secret)
	if a, c := p.decide(t, r.ID, "grant", body); a.Status != 201 || c.Kind != "application_credential" ||
		*c.Quota.Instances != 3 {
		t.Errorf("%d %s", a.Status, a.Body)
	}
	if a, _ := p.decide(t, r.ID, "grant", body); a.Status != 200 {
		t.Errorf("once more: %d %s", a.Status, a.Body)
	}
}

// TestLongConcurrentGrants create one connection and one trust.
func TestLongConcurrentGrants(t *testing.T) {
	t.Parallel()
	p := newParties(t)
	r := p.request(t, "")
	var mu sync.Mutex
	statuses := map[int]int{}
	var all sync.WaitGroup
	for range 6 {
		all.Go(func() {
			a, err := p.owner.Try(t, "POST", requestsPath+"/"+r.ID.String()+"/grant", `{}`, "Content-Type",
				"application/json")
			if err != nil {
				t.Error(err)
			}
			mu.Lock()
			defer mu.Unlock()
			statuses[a.Status]++
			if a.Status >= 400 && (a.Status != 409 || a.Header.Get("Retry-After") == "") {
				t.Errorf("%d %s", a.Status, a.Body)
			}
		})
	}
	all.Wait()
	if statuses[201] != 1 || statuses[201]+statuses[200]+statuses[409] != 6 {
		t.Errorf("got %v", statuses)
	}
	if n := testkit.Scalar[int](t, p.conn, "select count(*) from connections"); n != 1 {
		t.Errorf("there are %d connections", n)
	}
	onlyTrust(t, p.owners)
}

// TestLongRequestIsHiddenFromOtherProjects in lists, and only the project that may decide does. A request does not
// reveal which projects exist.
func TestLongRequestIsHiddenFromOtherProjects(t *testing.T) {
	t.Parallel()
	p := newParties(t)
	r := p.request(t, "")
	path := requestsPath + "/" + r.ID.String()
	for _, query := range []string{"", "?received=true"} {
		var page ConnectionRequestPage
		p.stranger.Get(t, requestsPath+query).JSON(t, &page)
		if len(page.Requests) != 0 {
			t.Errorf("a stranger lists %+v", page)
		}
	}
	for _, tc := range []struct {
		app          *testkit.Client
		method, path string
	}{
		{p.program, "POST", path + "/grant"}, {p.program, "POST", path + "/decline"}, {p.owner, "DELETE", path},
	} {
		if a := tc.app.Do(t, tc.method, tc.path, `{}`, "Content-Type", "application/json"); a.Status != 403 {
			t.Errorf("%s %s: %d %s", tc.method, tc.path, a.Status, a.Body)
		}
	}
	nowhere := strings.Replace(p.body(""), p.owners.ID, strings.Repeat("0a", 16), 1)
	if a := p.program.Post(t, requestsPath, nowhere); a.Status != 201 {
		t.Errorf("a project that is absent: %d %s", a.Status, a.Body)
	}
}

// TestLongEndedRequestsCannotBeGranted covers declined, withdrawn and expired requests. Both projects see the end.
func TestLongEndedRequestsCannotBeGranted(t *testing.T) {
	t.Parallel()
	p := newParties(t)
	r := p.request(t, "")
	if a, _ := p.decide(t, r.ID, "decline", `{"reason": "not at night"}`); a.Status != 200 ||
		!strings.Contains(string(a.Body), `"declined"`) {
		t.Errorf("%d %s", a.Status, a.Body)
	}
	if got := p.status(t, p.program, r.ID); got.Reason != "not at night" || got.DecidedBy != "" {
		t.Errorf("the program sees %+v", got)
	}
	withdrawn := p.request(t, "")
	for range 2 {
		if a := p.program.Do(t, "DELETE", requestsPath+"/"+withdrawn.ID.String(), ""); a.Status != 204 {
			t.Errorf("%d %s", a.Status, a.Body)
		}
	}
	late := p.request(t, "")
	if _, err := p.conn.Exec(t.Context(),
		"update connection_requests set expires_at = clock_timestamp() where status = 'pending'"); err != nil {
		t.Fatal(err)
	}
	for id, word := range map[uuid.UUID]string{r.ID: "declined", withdrawn.ID: "withdrawn", late.ID: "expired"} {
		if a, _ := p.decide(t, id, "grant", `{}`); a.Status != 409 || !strings.Contains(string(a.Body), word) {
			t.Errorf("%s: %d %s", word, a.Status, a.Body)
		}
	}
	if left := p.owners.Trusts(t); len(left) != 0 {
		t.Errorf("Keystone has %v", left)
	}
}

// TestCreateRequestRejectsInvalidFields names the field.
func TestCreateRequestRejectsInvalidFields(t *testing.T) {
	t.Parallel()
	p := newParties(t)
	for more, field := range map[string]string{
		`, "for": "domain"`:                         "for",
		`, "expires_at": "` + soon(time.Hour) + `"`: "duration",
	} {
		if a := p.program.Post(t, requestsPath, p.body(more)); a.Status != 400 || problemField(t, a) != field {
			t.Errorf("%s: %d %s", more, a.Status, a.Body)
		}
	}
	for from, to := range map[string]string{
		`"` + p.owners.ID + `"`:      `"alt"`,
		`we build at night`:          ` `,
		`build`:                      `\u202ebuild`,
		`at night`:                   strings.Repeat("x", 1000),
		`nightly`:                    `a\nb`,
		`"deallocate"`:               `"fly"`,
		`"48h"`:                      `"8785h"`,
		`"duration": "48h"`:          `"expires_at": null`,
		`"duration": "48h" `:         ``,
		`["allocate", "deallocate"]`: `[]`,
	} {
		body := strings.Replace(p.body(" "), from, to, 1)
		if a := p.program.Post(t, requestsPath, body); a.Status != 400 {
			t.Errorf("%s: %d %s", body, a.Status, a.Body)
		}
	}
	for range domain.MaxRequestsFrom {
		p.request(t, "")
	}
	if a := p.program.Post(t, requestsPath, p.body("")); a.Status != 409 ||
		!strings.Contains(string(a.Body), "at most 20 pending requests from a project") {
		t.Errorf("one too many: %d %s", a.Status, a.Body)
	}
	var page ConnectionRequestPage
	p.program.Get(t, requestsPath+"?limit=5").JSON(t, &page)
	if len(page.Requests) != 5 || page.Next == nil {
		t.Errorf("a page of %d, next %v", len(page.Requests), page.Next)
	}
}

// TestKeyedCrashPoints: whenever a replica dies, a connection and a request for one are there once, however often they
// are sent with their key, and their events wait for no tick. No trust is left but the connection's, and those that
// run-connections revokes.
func TestKeyedCrashPoints(t *testing.T) {
	t.Parallel()
	for name, op := range map[string]struct {
		path, table string
		body        func(parties) string
	}{
		"connection": {"/v1/connections", "connections", func(parties) string { return asking("trust", "") }},
		"request":    {requestsPath, "connection_requests", func(p parties) string { return p.body("") }},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := newParties(t)
			key, body := uuid.NewString(), op.body(p)
			once := func(when string, want int, isReplayed bool) (made struct{ ID uuid.UUID }) {
				t.Helper()
				var a testkit.Answer
				send := func() {
					a = p.program.Do(t, "POST", op.path, body, "Content-Type", "application/json",
						"Idempotency-Key", key)
				}
				if want != 201 || isReplayed {
					send()
				} else {
					p.woken.After(t, "deliver-events", when, send)
				}
				if a.JSON(t, &made); a.Status != want || (a.Header.Get("Idempotency-Replayed") != "") != isReplayed {
					t.Errorf("%s: got %d %s", when, a.Status, a.Body)
				}
				if n := testkit.Scalar[int](t, p.conn, "select count(*)::int from "+op.table); n != 1 {
					t.Errorf("%s: it is there %d times", when, n)
				}
				return made
			}
			first := once("first", 201, false)
			once("stored", 201, true)
			testkit.LeaveRequests(t, p.conn, testkit.AtWork)
			once("at work", 409, false)
			testkit.LeaveRequests(t, p.conn, testkit.Died)
			if again := once("died when it was done", 201, false); again != first {
				t.Errorf("it made %s, and then %s", first.ID, again.ID)
			}
			if op.table == "connections" {
				onlyTrust(t, p.programs)
			}
			// A replica died before it stored the row: it has announced the trust, if Keystone made one.
			for _, sql := range []string{"delete from events", "delete from " + op.table} {
				if _, err := p.conn.Exec(t.Context(), sql); err != nil {
					t.Fatal(err)
				}
			}
			testkit.LeaveRequests(t, p.conn, testkit.Died)
			if again := once("died before", 201, false); again != first {
				t.Errorf("it made %s, and then %s", first.ID, again.ID)
			}
		})
	}
}

// TestKeyedGrant: a grant needs no key, because a repeated one is recognized. A header changes nothing.
func TestKeyedGrant(t *testing.T) {
	t.Parallel()
	p := newParties(t)
	var r ConnectionRequest
	p.woken.After(t, "deliver-events", "a request", func() { r = p.request(t, "") })
	for n, want := range []int{201, 200} {
		var a testkit.Answer
		p.woken.After(t, "deliver-events", "a grant", func() { // also when the first one's replica died before it
			a = p.owner.Do(t, "POST", requestsPath+"/"+r.ID.String()+"/grant", `{"kind": "trust"}`, "Content-Type",
				"application/json", "Idempotency-Key", uuid.NewString())
		})
		if a.Status != want || a.Header.Get("Idempotency-Replayed") != "" {
			t.Errorf("%d: got %d %s", n, a.Status, a.Body)
		}
	}
}
