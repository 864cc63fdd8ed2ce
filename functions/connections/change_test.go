package connections

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/httpx"
	"github.com/cloudfn/cloudfn/shared/postgres"
	"github.com/cloudfn/cloudfn/shared/seal"
	"github.com/cloudfn/cloudfn/shared/testkit"
)

// change changes a connection.
func change(
	t *testing.T, app *testkit.Client, c Connection, body string, header ...string,
) (testkit.Answer, Connection) {
	t.Helper()
	a := app.Do(t, "PATCH", "/v1/connections/"+c.ID.String(), body, append([]string{"Content-Type", "application/json"},
		header...)...)
	var changed Connection
	if a.Status == 200 {
		a.JSON(t, &changed)
	}
	return a, changed
}

// TestChangeConnectionByTrust extends a connection with a new trust of its delegating user, and schedules the old
// trust for revocation. Other changes do not call Keystone.
func TestChangeConnectionByTrust(t *testing.T) {
	t.Parallel()
	app, conn, _, _ := started(t, nil)
	p := testkit.BorrowProject(t)
	owner, other := app.As(p.Token(t)), app.As(colleague(t, p, "member"))
	user := strings.Repeat("0a", 16)
	c := create(t, owner, asking("trust", fmt.Sprintf(`, "quota": {"instances": 3, "vcpus": 4}, "usable_by": [%q]`, user)))
	before := onlyTrust(t, p)

	longer := fmt.Sprintf(`{"name": "x", "expires_at": %q, "quota": {"instances": 5}, "idle_timeout": "2h"}`,
		soon(48*time.Hour))
	a, changed := change(t, owner, c, longer)
	if a.Status != 200 || changed.ID != c.ID || changed.Name != "x" || *changed.Quota.Instances != 5 ||
		*changed.Quota.VCPUs != 4 || changed.IdleTimeout != "2h" ||
		!slices.Equal(changed.UsableBy, []string{user}) ||
		changed.TrustEnd.Before(changed.ExpiresAt.Add(domain.TrustMargin)) || a.Header.Get("ETag") != `"2"` {
		t.Fatalf("got %d %s", a.Status, a.Body)
	}
	for range 2 { // sent again it changes nothing
		if a, _ := change(t, owner, c, longer); a.Status != 200 || a.Header.Get("ETag") != `"2"` ||
			len(p.Trusts(t)) != 2 {
			t.Errorf("once more: %d %s, and Keystone has %d trusts", a.Status, a.Body, len(p.Trusts(t)))
		}
	}
	row := testkit.Scalar[string](t, conn, `
		select (c.delegation_id = any($2::text[]))::text || ' ' || (c.delegation_id <> $3) || ' ' || c.generation || ' ' ||
		(select string_agg(coalesce(trust_id, '?'), ' ') from trusts_to_revoke)
		from connections c where id = $1`, c.ID, p.Trusts(t), before.ID)
	if row != "true true 2 "+before.ID {
		t.Errorf("the connection has a new trust, its generation, and the trusts to revoke: %s", row)
	}
	event := testkit.Scalar[string](t, conn,
		"select data->>'fields' from events where subject = $1 and type = 'cloudfn.connection.changed.v1'", c.ID.String())
	if event != `["expires_at", "idle_timeout", "name", "quota"]` {
		t.Errorf("its event names %s", event)
	}

	flavor := testkit.Sandbox(t).Flavor
	limits := fmt.Sprintf(`{"limits": {"flavors": [%q], "networks": [%q]}, "usable_by": [%q, {"project": %q}]}`, flavor,
		uuid.NewString(), user, p.Name)
	a, changed = change(t, owner, c, limits)
	if a.Status != 200 || !slices.Equal(changed.Limits.Flavors, []string{flavor}) ||
		len(changed.Limits.Networks) != 1 ||
		!slices.Equal(changed.UsableBy, []string{user, p.ID}) || len(changed.UsableNames) != 1 ||
		changed.UsableNames[0].Project != p.Name {
		t.Errorf("limits and a name: %d %s", a.Status, a.Body)
	}
	a, changed = change(t, owner, c, fmt.Sprintf(`{"limits": {"networks": null}, "usable_by": [%q]}`, p.ID))
	if a.Status != 200 || !slices.Equal(changed.Limits.Flavors, []string{flavor}) || changed.Limits.Networks != nil ||
		len(changed.UsableNames) != 1 {
		t.Errorf("one limit less: %d %s", a.Status, a.Body)
	}
	for body, field := range map[string]string{
		`{"limits": {"flavors": ["no-such"]}}`:            "limits.flavors[0]",
		`{"limits": {"images": []}}`:                      "limits.images",
		`{"limits": {"regions": ["elsewhere"]}}`:          "limits.regions",
		`{"limits": {"zones": ["a"]}}`:                    "limits.zones",
		`{"limits": 1}`:                                   "limits",
		`{"quota": 1}`:                                    "quota",
		`{"usable_by": [{"project": "nobody's at all"}]}`: "usable_by[0]",
	} {
		if a, _ := change(t, owner, c, body); a.Status != 400 || !testkit.Names(t, a, field) {
			t.Errorf("%s: got %d %s, want 400 that names %s", body, a.Status, a.Body, field)
		}
	}

	for what, tc := range map[string]struct {
		app    *testkit.Client
		body   string
		status int
		says   string
	}{
		"a colleague, later":         {other, `{"expires_at": "` + soon(72*time.Hour) + `"}`, 403, p.UserID},
		"a colleague, sooner":        {other, `{"expires_at": "` + soon(30*time.Minute) + `"}`, 200, ""},
		"a colleague, less":          {other, `{"quota": {"instances": 1}, "actions": ["start"]}`, 200, ""},
		"a colleague with the roles": {other, `{"usable_by": []}`, 200, ""},
	} {
		if a, _ := change(t, tc.app, c, tc.body); a.Status != tc.status || !strings.Contains(string(a.Body), tc.says) {
			t.Errorf("%s: got %d %s, want %d that says %s", what, a.Status, a.Body, tc.status, tc.says)
		}
	}
	if n := len(p.Trusts(t)); n != 2 {
		t.Errorf("Keystone has %d trusts", n)
	}
	now := owner.Get(t, "/v1/connections/"+c.ID.String()).Header.Get("ETag")
	if a, _ := change(t, owner, c, `{"name": "z"}`, "If-Match", `"1"`); a.Status != 412 ||
		!strings.Contains(string(a.Body), "precondition") {
		t.Errorf("an old version: %d %s", a.Status, a.Body)
	}
	if a, _ := change(t, owner, c, `{"name": "z"}`, "If-Match", `"1", `+now); a.Status != 200 {
		t.Errorf("the version %s: %d %s", now, a.Status, a.Body)
	}
	if a := owner.Do(t, "DELETE", "/v1/connections/"+c.ID.String(), ""); a.Status != 204 {
		t.Fatalf("delete: %d %s", a.Status, a.Body)
	}
	if a, _ := change(t, owner, c, `{"name": "late"}`); a.Status != 409 {
		t.Errorf("after its end: %d %s", a.Status, a.Body)
	}
}

// TestLongChangeCredential checks a new secret with Keystone before it is stored, and never shows it.
func TestLongChangeCredential(t *testing.T) {
	t.Parallel()
	app, conn, _, _ := started(t, nil)
	p, foreign := testkit.BorrowProject(t), testkit.BorrowProject(t)
	app = app.As(p.Token(t))
	id, secret := p.AppCredential(t)
	newID, newSecret := p.AppCredential(t)
	foreignID, foreignSecret := foreign.AppCredential(t)
	c := create(t, app, handing(id, secret, ""))
	for what, tc := range map[string]struct{ body, field string }{
		"a wrong secret":    {fmt.Sprintf(`{"secret": %q}`, wrong(secret)), "secret"},
		"an id alone":       {fmt.Sprintf(`{"id": %q}`, newID), "secret"},
		"another project's": {fmt.Sprintf(`{"id": %q, "secret": %q}`, foreignID, foreignSecret), "id"},
		"null":              {`{"secret": null}`, "secret"},
	} {
		if a, _ := change(t, app, c, tc.body); a.Status != 400 || !testkit.Names(t, a, tc.field) ||
			strings.Contains(string(a.Body), secret) {
			t.Errorf("%s: got %d %s, want 400 that names %s", what, a.Status, a.Body, tc.field)
		}
	}
	a, _ := change(t, app, c, fmt.Sprintf(`{"id": %q, "secret": %q}`, newID, newSecret))
	if a.Status != 200 || strings.Contains(string(a.Body), newSecret) {
		t.Fatalf("got %d %s", a.Status, a.Body)
	}
	keys, err := seal.ParsePrivateKeys(testkit.ConnectionPrivateKey)
	if err != nil {
		t.Fatal(err)
	}
	opened, err := keys.Open(domain.Connection{ProjectID: p.ID, ID: c.ID}.SealedFor(),
		testkit.Scalar[[]byte](t, conn, "select secret from connections"))
	if err != nil || opened.Reveal() != newSecret {
		t.Errorf("another secret is stored: %v", err)
	}
	row := testkit.Scalar[string](t, conn,
		"select delegation_id || ' ' || generation || ' ' || (select count(*) from trusts_to_revoke) from connections")
	if row != newID+" 2 0" {
		t.Errorf("the row is %s", row)
	}
	if fields := testkit.Scalar[string](t, conn,
		"select data->>'fields' from events where type = 'cloudfn.connection.changed.v1'"); fields != `["id", "secret"]` {
		t.Errorf("its event names %s", fields)
	}
}

// TestChangeRejectsInvalidFields names the field and changes nothing.
func TestChangeRejectsInvalidFields(t *testing.T) {
	t.Parallel()
	app, _, _, _ := started(t, nil)
	app = app.As(testkit.BorrowProject(t).Token(t))
	c := create(t, app, asking("trust", ""))
	for body, field := range map[string]string{
		`{}`: "", `{"kind": "trust"}`: "kind", `{"name": null}`: "name", `{"expires_at": null}`: "expires_at",
		`{"expires_at": "2020-01-01T00:00:00Z"}`:           "expires_at",
		`{"expires_at": "` + soon(367*24*time.Hour) + `"}`: "expires_at",
		`{"idle_timeout": "5m"}`:                           "idle_timeout", `{"usable_by": ["alt"]}`: "usable_by[0]",
		`{"usable_by": null}`: "usable_by", `{"actions": []}`: "actions",
		`{"secret": "x"}`: "secret", `{"id": "x"}`: "secret",
	} {
		if a, _ := change(t, app, c, body); a.Status != 400 || field != "" && !testkit.Names(t, a, field) {
			t.Errorf("%s: got %d %s, want 400 that names %s", body, a.Status, a.Body, field)
		}
	}
	if etag := app.Get(t, "/v1/connections/"+c.ID.String()).Header.Get("ETag"); etag != `"1"` {
		t.Errorf("it was changed: %s", etag)
	}
}

// TestFailedChangeDropsItsTrust leaves the new trust to run-connections, which keeps it if the connection has it
// after all. A trust that Keystone rejected is forgotten.
func TestFailedChangeDropsItsTrust(t *testing.T) {
	t.Parallel()
	down, refused := apperr.New(apperr.Unavailable, "down"), apperr.New(apperr.Conflict, "it was delegated itself")
	for name, tc := range map[string]struct {
		cloud fakeCloud
		want  string
		code  apperr.Code
	}{
		"stored":                  {fakeCloud{}, "announce trust change", ""},
		"not announced":           {fakeCloud{announce: down}, "announce", apperr.Unavailable},
		"Keystone has refused it": {fakeCloud{trust: refused}, "announce trust forget", apperr.Conflict},
		"no one knows":            {fakeCloud{trust: down}, "announce trust", apperr.Unavailable},
		"no row":                  {fakeCloud{store: down}, "announce trust change drop t1", apperr.Unavailable},
		"always changed": {
			fakeCloud{store: domain.ErrChanged},
			"announce trust change change change drop t1",
			apperr.Conflict,
		},
	} {
		tc.cloud.stored = draftOf(domain.TrustConnection, "").Connection
		tc.cloud.stored.Status, tc.cloud.stored.UserID, tc.cloud.stored.Seq = domain.ConnectionActive, "u1", 1
		in := ChangeConnection{ExpiresAt: &httpx.Time{Time: time.Now().Add(48 * time.Hour)}}
		who := domain.Identity{UserID: "u1", ProjectID: "p1", Roles: []string{"member"}}
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		_, err := tc.cloud.service().Change(ctx, who, "", uuid.Nil, in, anyVersion)
		if apperr.CodeOf(err) != tc.code || errors.Is(err, domain.ErrChanged) ||
			strings.Join(tc.cloud.calls, " ") != tc.want {
			t.Errorf("%s: got %v, and %v was done; want %s", name, err, tc.cloud.calls, tc.want)
		}
	}
}

// TestChangeWithFewerRolesCannotWiden checks that callers with fewer roles than the connection can only narrow it.
func TestChangeWithFewerRolesCannotWiden(t *testing.T) {
	t.Parallel()
	f := &fakeCloud{stored: draftOf(domain.TrustConnection, "").Connection}
	f.stored.Status, f.stored.UserID, f.stored.Actions = domain.ConnectionActive, "u1",
		[]domain.Permission{domain.MayStart, domain.MayStop}
	f.stored.ActsAs.Roles = []string{"admin", "member"}
	for actions, wider := range map[string]bool{"start": false, "stop start": false, "start deallocate": true} {
		var in ChangeConnection
		for action := range strings.FieldsSeq(actions) {
			in.Actions = append(in.Actions, domain.Permission(action))
		}
		for user, roles := range map[string][]string{"u1": {"member"}, "u2": {"member"}, "u3": {"member", "admin"}} {
			who := domain.Identity{UserID: user, ProjectID: "p1", Roles: roles}
			_, err := f.service().Change(t.Context(), who, "", uuid.Nil, in, anyVersion)
			forbidden := apperr.CodeOf(err) == apperr.Forbidden
			if forbidden != (wider && user == "u2") || err != nil && !forbidden {
				t.Errorf("%s by %s: %v", actions, user, err)
			}
		}
	}
}

func anyVersion(int64) error { return nil }

// TestCheck plays run-connections, so that each result of a check comes when the test needs it.
func TestCheck(t *testing.T) {
	t.Parallel()
	app, conn, database, woken := started(t, nil)
	db, err := postgres.Open(postgres.Config{URL: domain.Secret(database), MaxConns: 1}, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(db.Close)
	delegations := postgres.Delegations{DB: db}
	owner, actor := testkit.BorrowProject(t), testkit.BorrowProject(t)
	app = app.As(owner.Token(t))
	c := create(t, app, asking("trust", fmt.Sprintf(`, "usable_by": [%q]`, actor.UserID)))
	path := "/v1/connections/" + c.ID.String() + "/check"
	// answer has find called a moment after the request, and gives what is answered.
	answer := func(who *testkit.Client, find func() error) (testkit.Answer, ConnectionCheck) {
		t.Helper()
		timer := time.AfterFunc(time.Second, func() {
			if err := find(); err != nil {
				t.Error(err)
			}
		})
		defer timer.Stop()
		a := who.Post(t, path, "")
		var found ConnectionCheck
		if a.Status < 300 {
			a.JSON(t, &found)
		}
		return a, found
	}
	now := func() time.Time {
		at, err := db.Now(t.Context())
		if err != nil {
			t.Error(err)
		}
		return at
	}
	accepts := func() error {
		return delegations.MarkChecked(t.Context(), owner.ID, c.ID, now(), []string{"member", "reader"})
	}

	a, found := answer(app, accepts)
	if a.Status != http.StatusOK || found.Works == nil || !*found.Works || found.ActsAs == nil ||
		!slices.Equal(found.Roles, []string{"member", "reader"}) ||
		!found.EndsAt.Equal(c.EndsAt) || found.CheckedAt.Before(c.CheckedAt.Time) ||
		woken.Count("run-connections") == 0 {
		t.Errorf("the owner: %d %+v", a.Status, found)
	}
	a, found = answer(app.As(actor.Token(t)), accepts)
	if a.Status != http.StatusOK || found.Works == nil || !*found.Works || found.ActsAs != nil ||
		len(found.Roles) != 2 {
		t.Errorf("anyone who can act through it: %d %+v", a.Status, found)
	}
	a, found = answer(app, func() error { return nil })
	if a.Status != http.StatusAccepted || found.Works != nil || a.Header.Get("Retry-After") != "5" {
		t.Errorf("without an answer: %d %s", a.Status, a.Body)
	}
	a, _ = answer(app, func() error {
		return delegations.MarkUnchecked(t.Context(), owner.ID, c.ID, now(), "keystone cannot be reached")
	})
	if a.Status != http.StatusServiceUnavailable ||
		!strings.Contains(string(a.Body), "its cloud does not answer: keystone cannot be reached") {
		t.Errorf("a cloud that is down: %d %s", a.Status, a.Body)
	}
	a, found = answer(app, func() error {
		_, err := postgres.Connections{DB: db}.End(t.Context(), owner.ID, c.ID, domain.ConnectionLost, "because", true)
		return err
	})
	if a.Status != http.StatusOK || found.Works == nil || *found.Works || found.Status != domain.ConnectionLost ||
		found.Reason != "because" {
		t.Errorf("a lost one: %d %+v", a.Status, found)
	}
	before := testkit.Scalar[time.Time](t, conn, "select next_check_at from connections")
	if a := app.Post(t, path, ""); a.Status != http.StatusOK {
		t.Errorf("a lost one, later: %d %s", a.Status, a.Body)
	}
	if after := testkit.Scalar[time.Time](t, conn, "select next_check_at from connections"); !after.Equal(before) {
		t.Error("a lost one is checked")
	}
}

// TestLimits are stored, and shown to everybody authorized to act through the connection.
func TestLimits(t *testing.T) {
	t.Parallel()
	app, _, _, _ := started(t, nil)
	p, other := testkit.BorrowProject(t), testkit.BorrowProject(t)
	f := testkit.Sandbox(t)
	app = app.As(p.Token(t))
	image, network := uuid.NewString(), uuid.NewString()
	made := create(t, app, asking("trust",
		fmt.Sprintf(`, "usable_by": [%q], "limits": {"images": [%q, %[3]q], "networks": [%[4]q], "flavors": [%[5]q]}`,
			other.UserID, strings.ToUpper(image), image, network, f.FlavorID)))
	for name, client := range map[string]*testkit.Client{
		"its owner":       app,
		"another project": app.As(other.Token(t)),
	} {
		var c Connection
		client.Get(t, "/v1/connections/"+made.ID.String()).JSON(t, &c)
		if !slices.Equal(c.Limits.Images, []string{image}) || !slices.Equal(c.Limits.Networks, []string{network}) ||
			!slices.Equal(c.Limits.Flavors, []string{f.FlavorID}) || c.Limits.Regions != nil {
			t.Errorf("%s is shown %+v", name, c.Limits)
		}
	}
	if c := create(t, app, asking("trust", `, "limits": null`)); !c.Limits.IsZero() {
		t.Errorf("without limits: %+v", c.Limits)
	}
	for _, tc := range []struct{ limits, field, says string }{
		{`{"images": []}`, "limits.images", "1 entries or more"},
		{`{"images": ["cirros"]}`, "limits.images[0]", "UUID"},
		{`{"networks": ["` + network + `", "private"]}`, "limits.networks[1]", "UUID"},
		{`{"networks": ["` + strings.ReplaceAll(network, "-", "") + `"]}`, "limits.networks[0]", "UUID"},
		{`{"flavors": [""]}`, "limits.flavors[0]", "1 characters"},
		{`{"flavors": ["` + f.FlavorID + `", "no-such-flavor"]}`, "limits.flavors[1]", "no-such-flavor"},
		{`{"flavors": ["a\u0000"]}`, "limits.flavors[0]", "control"},
		{`{"regions": ["no-such-region"]}`, "limits.regions", "region"},
		{`{"zones": ["nova"]}`, "limits.zones", "is not a field"},
		{`{"images": ["` + strings.Repeat(image+`", "`, 100) + image + `"]}`, "limits.images", "100 entries"},
	} {
		a := app.Post(t, "/v1/connections", asking("trust", `, "limits": `+tc.limits))
		if a.Status != 400 || !testkit.Names(t, a, tc.field) || !strings.Contains(string(a.Body), tc.says) {
			t.Errorf("%.100s: got %d %s, want 400 that names %s and says %s", tc.limits, a.Status, a.Body, tc.field,
				tc.says)
		}
	}
	if left := p.Trusts(t); len(left) != 2 {
		t.Errorf("rejected requests have made the trusts %v", left)
	}
}

// TestLimitsMustHaveTheRegion of the connection.
func TestLimitsMustHaveTheRegion(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		regions []string
		region  string
		taken   bool
	}{
		{nil, "", true},
		{nil, "west", true},
		{[]string{"west", "east"}, "west", true},
		{[]string{"east"}, "west", false},
		{[]string{"east"}, "", false},
	} {
		w := draft{Connection: domain.Connection{Limits: domain.ConnectionLimits{Regions: tc.regions}}}
		if err := checkLimits(w, tc.region); (err == nil) != tc.taken {
			t.Errorf("%v in %q: %v", tc.regions, tc.region, err)
		}
	}
}
