package connections

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/seal"
	"github.com/cloudfn/cloudfn/shared/testkit"
)

// TestCreateByCredential checks application credentials with Keystone before anything is stored, and stores them
// sealed.
func TestCreateByCredential(t *testing.T) {
	t.Parallel()
	app, conn, database, _ := started(t, nil)
	p, other := testkit.BorrowProject(t), testkit.BorrowProject(t)
	app = app.As(p.Token(t))
	id, secret := p.AppCredential(t)
	foreignID, foreignSecret := other.AppCredential(t)
	for what, tc := range map[string]struct{ body, field, says string }{
		"a wrong secret":    {handing(id, wrong(secret), ""), "secret", "does not accept"},
		"another's secret":  {handing(id, foreignSecret, ""), "secret", "does not accept"},
		"an unknown id":     {handing("nope", secret, ""), "id", "does not accept"},
		"another project's": {handing(foreignID, foreignSecret, ""), "id", other.ID},
		"a cloud that no one listed": {
			handing(id, secret, `, "auth_url": "http://127.0.0.1:1/v3"`), "auth_url",
			"unknown cloud",
		},
		"an unknown region": {handing(id, secret, `, "region": "nowhere"`), "", ""},
		"one that may not see flavors": {limited(t, p, domain.AccessRule{
			Service: "compute", Method: "GET",
			Path: "/v2.1/servers",
		}), "id", "access-rules"},
	} {
		a := app.Post(t, "/v1/connections", tc.body)
		if tc.field == "" {
			if a.Status != 501 {
				t.Errorf("%s: got %d %s", what, a.Status, a.Body)
			}
		} else if a.Status != 400 || !testkit.Names(t, a, tc.field) || !strings.Contains(string(a.Body), tc.says) {
			t.Errorf("%s: got %d %s, want 400 that names %s", what, a.Status, a.Body, tc.field)
		}
		if strings.Contains(string(a.Body), secret) {
			t.Errorf("%s: the answer has the secret", what)
		}
	}
	if n := testkit.Scalar[int](t, conn, "select count(*)::int from connections"); n != 0 {
		t.Errorf("%d are stored all the same", n)
	}

	c := create(t, app, handing(id, secret, `, "usable_by": ["`+other.UserID+`"]`))
	if c.ActsAs.UserID != p.UserID || c.ActsAs.ProjectID != p.ID || len(c.ActsAs.Roles) == 0 || c.AuthURL != "" ||
		c.Region != "" || c.Warnings != nil {
		t.Errorf("got %+v", c)
	}
	dump := testkit.Dump(t, database)
	if strings.Contains(dump, secret) || !strings.Contains(dump, id) {
		t.Error("the database has the secret, or not even the id")
	}
	keys, err := seal.ParsePrivateKeys(testkit.ConnectionPrivateKey)
	if err != nil {
		t.Fatal(err)
	}
	sealed := testkit.Scalar[[]byte](t, conn, "select secret from connections where id = $1", c.ID)
	opened, err := keys.Open(domain.Connection{ProjectID: p.ID, ID: c.ID}.SealedFor(), sealed)
	if err != nil || opened.Reveal() != secret {
		t.Errorf("run-connections cannot read the secret: %v", err)
	}
	for _, a := range []testkit.Answer{app.Get(t, "/v1/connections"), app.Get(t, "/v1/connections/"+c.ID.String())} {
		if a.Status != 200 || strings.Contains(string(a.Body), secret) || strings.Contains(string(a.Body), `"secret"`) {
			t.Errorf("it is shown with %d %s", a.Status, a.Body)
		}
	}
	if a := app.Do(t, "DELETE", "/v1/connections/"+c.ID.String(), ""); a.Status != 204 {
		t.Errorf("delete: %d %s", a.Status, a.Body)
	}
	if row := testkit.Scalar[string](t, conn,
		"select status || revoked || (secret is null) from connections where id = $1", c.ID); row != "deletedtruetrue" {
		t.Errorf("the row is %s: the secret is to be wiped", row)
	}
}

// TestLongSuggestedAccessRulesSuffice creates a connection with them, and compares both places that list them.
func TestLongSuggestedAccessRulesSuffice(t *testing.T) {
	t.Parallel()
	app, _, _, _ := started(t, nil)
	p := testkit.BorrowProject(t)
	app = app.As(p.Token(t))
	var suggested SuggestedAccessRules
	app.Get(t, "/v1/connections/access-rules?actions=allocate,start").JSON(t, &suggested)
	c := create(t, app, limited(t, p, suggested.Rules...))
	if fmt.Sprint(c.Rules) != fmt.Sprint(suggested.Rules) || len(c.Rules) == 0 {
		t.Errorf("got %v, suggested are %v", c.Rules, suggested.Rules)
	}
	var all SuggestedAccessRules
	app.Get(t, "/v1/connections/access-rules").JSON(t, &all)
	if len(all.Rules) <= len(suggested.Rules) {
		t.Errorf("for everything: %v", all.Rules)
	}
}

// TestUnrestrictedCredentialWarns accepts the credential with a lasting warning.
func TestUnrestrictedCredentialWarns(t *testing.T) {
	t.Parallel()
	app, _, _, _ := started(t, nil)
	p := testkit.BorrowProject(t)
	app = app.As(p.Token(t))
	id, secret := credential(t, p, object{"unrestricted": true})
	c := create(t, app, handing(id, secret, ""))
	var again Connection
	app.Get(t, "/v1/connections/"+c.ID.String()).JSON(t, &again)
	if len(c.Warnings) != 1 || len(again.Warnings) != 1 || !strings.Contains(c.Warnings[0], "unrestricted") {
		t.Errorf("warned of %v and %v", c.Warnings, again.Warnings)
	}
}

// TestReaderCredential is rejected when the actions need more than reading, and accepted with a warning otherwise.
func TestReaderCredential(t *testing.T) {
	t.Parallel()
	app, conn, _, _ := started(t, nil)
	p := testkit.BorrowProject(t)
	p.Grant(t, p.UserID, "reader") // a role of its own, not only what member implies
	app = app.As(p.Token(t))
	id, secret := credential(t, p, object{"roles": []object{{"name": "reader"}}})
	with := func(actions string) string {
		return fmt.Sprintf(`{"kind": "application_credential", "id": %q, "secret": %q, "actions": %s, "expires_at": %q}`, id,
			secret, actions, soon(time.Hour))
	}
	for actions, says := range map[string]string{
		`["start"]`: "only the role reader, which cannot start: ",
		`["connect", "allocate", "deploy"]`: "only the role reader, which cannot allocate, deploy: make one with " +
			"another of your roles",
	} {
		a := app.Post(t, "/v1/connections", with(actions))
		if a.Status != 400 || !testkit.Names(t, a, "id") || !strings.Contains(string(a.Body), says) {
			t.Errorf("%s: got %d %s, want 400 that says %q", actions, a.Status, a.Body, says)
		}
	}
	if n := testkit.Scalar[int](t, conn, "select count(*)::int from connections"); n != 0 {
		t.Errorf("%d are stored all the same", n)
	}
	if c := create(t, app, with(`["connect"]`)); len(c.Warnings) != 1 ||
		!strings.Contains(c.Warnings[0], "the role reader alone") {
		t.Errorf("to connect only: warned of %v", c.Warnings)
	}
}

// TestLongCredentialOfAnotherCloud uses a cloud that the operator has listed: the same Keystone under another URL. The
// credential may be of any project there.
func TestLongCredentialOfAnotherCloud(t *testing.T) {
	t.Parallel()
	there := testkit.Redirect(t)
	app, _, _, _ := started(t, map[string]string{"CONNECTION_CLOUDS": "https://keystone.invalid/v3," + there.URL()})
	p, other := testkit.BorrowProject(t), testkit.BorrowProject(t)
	app = app.As(p.Token(t))
	id, secret := other.AppCredential(t)
	c := create(t, app, handing(id, secret, fmt.Sprintf(`, "auth_url": %q`, bare(there.URL())+"/")))
	if c.AuthURL != there.URL() || c.ActsAs.ProjectID != other.ID || c.ProjectID != p.ID {
		t.Errorf("got %+v", c)
	}
	a := app.Post(t, "/v1/connections", handing(id, secret, `, "auth_url": "https://elsewhere.invalid/v3"`))
	if a.Status != 400 || !testkit.Names(t, a, "auth_url") || !strings.Contains(string(a.Body), there.URL()) {
		t.Errorf("a third one: %d %s", a.Status, a.Body)
	}
	if a := app.Post(t, "/v1/connections",
		handing(id, wrong(secret), fmt.Sprintf(`, "auth_url": %q`, there.URL()))); a.Status != 400 ||
		!testkit.Names(t, a, "secret") {
		t.Errorf("a wrong secret: %d %s", a.Status, a.Body)
	}
	there.Close()
	if a := app.Post(t, "/v1/connections",
		handing(id, secret, fmt.Sprintf(`, "auth_url": %q`, there.URL()))); a.Status != 503 {
		t.Errorf("while it is unavailable: %d %s", a.Status, a.Body)
	}

	// This cloud by its own URL, and by its own region, is no other one.
	mine, secret := p.AppCredential(t)
	own := create(t, app, handing(mine, secret, fmt.Sprintf(`, "auth_url": %q, "region": "RegionOne"`,
		testkit.Login(t, "demo").IdentityEndpoint)))
	if own.AuthURL != "" || own.Region != "" {
		t.Errorf("got %+v", own)
	}
}

// TestLongConnectionEndsBeforeItsCredential parses ends without a zone, as Keystone writes them. The error of a later
// end says when the credential ends.
func TestLongConnectionEndsBeforeItsCredential(t *testing.T) {
	t.Parallel()
	app, _, _, _ := started(t, nil)
	p := testkit.BorrowProject(t)
	end := time.Now().Add(90 * time.Minute).UTC().Truncate(time.Microsecond)
	for form, end := range map[string]time.Time{"with microseconds": end, "without": end.Truncate(time.Second)} {
		id, secret := p.AppCredentialUntil(t, end)
		c := create(t, app.As(p.Token(t)), handing(id, secret, ""))
		if c.Status != "active" || c.ActsAs.UserID != p.UserID {
			t.Errorf("%s: got %+v", form, c)
		}
		until := func(at time.Time) string {
			return fmt.Sprintf(
				`{"kind": "application_credential", "id": %q, "secret": %q, "actions": ["start"], "expires_at": %q}`,
				id, secret, at.Format(time.RFC3339Nano))
		}
		a := app.As(p.Token(t)).Post(t, "/v1/connections", until(end.Add(time.Microsecond)))
		if a.Status != 400 || !testkit.Names(t, a, "expires_at") ||
			!strings.Contains(string(a.Body), end.Format(time.RFC3339Nano)) {
			t.Errorf("%s: later than the credential: %d %s", form, a.Status, a.Body)
		}
		if c := create(t, app.As(p.Token(t)), until(end)); !c.ExpiresAt.Equal(end) {
			t.Errorf("%s: it ends at %s, want %s", form, c.ExpiresAt, end)
		}
		token := testkit.Canary(p.AppCredentialToken(t, id, secret))
		if a := app.As(token).Get(t, "/v1/connections"); a.Status != 200 {
			t.Errorf("%s: its token: %d %s", form, a.Status, a.Body)
		}
	}
}

// byName is a request with one name in usable_by.
func byName(kind, name, in string) string {
	if in != "" {
		in = fmt.Sprintf(`, "domain": %q`, in)
	}
	return asking("trust", fmt.Sprintf(`, "usable_by": [{%q: %q%s}]`, kind, name, in))
}

// TestResolveNamesAsMember finds only the projects in which the member has a role. The error says how to find ids.
func TestResolveNamesAsMember(t *testing.T) {
	t.Parallel()
	app, _, _, _ := started(t, nil)
	p, other := testkit.BorrowProject(t), testkit.BorrowProject(t)
	other.Grant(t, p.UserID, "reader")
	app = app.As(p.Token(t))
	for _, in := range []string{"", "Default", "default"} {
		c := create(t, app, byName("project", other.Name, in))
		if !slices.Equal(c.UsableBy, []string{other.ID}) || len(c.UsableNames) != 1 ||
			c.UsableNames[0].Project != other.Name || c.UsableNames[0].Domain != in || c.UsableNames[0].ID != other.ID {
			t.Errorf("got %v %+v", c.UsableBy, c.UsableNames)
		}
		if shown := app.As(other.Token(t)).Get(t, "/v1/connections/"+c.ID.String()); shown.Status != 200 ||
			strings.Contains(string(shown.Body), "usable_by") {
			t.Errorf("the project that was named is shown %d %s", shown.Status, shown.Body)
		}
	}
	stranger := testkit.BorrowProject(t)
	there, absent := app.Post(t, "/v1/connections", byName("user", stranger.Name, "")),
		app.Post(t, "/v1/connections", byName("user", "nobody", ""))
	for _, a := range []testkit.Answer{there, absent} {
		if a.Status != 400 || !testkit.Names(t, a, "usable_by[0]") ||
			!strings.Contains(string(a.Body), "openstack token issue -f value -c user_id") {
			t.Errorf("got %d %s", a.Status, a.Body)
		}
	}
	if unnamed(there, stranger.Name) != unnamed(absent, "nobody") {
		t.Errorf("they differ: %s and %s", there.Body, absent.Body)
	}
	for text, field := range map[string]string{
		`5`: "usable_by[0]", `{}`: "usable_by[0]", `{"user": "a", "project": "b"}`: "usable_by[0]",
		`{"domain": "Default"}`:                                "usable_by[0]",
		strings.Repeat(`{"user": "a"},`, 20) + `{"user": "a"}`: "usable_by",
	} {
		if a := app.Post(t, "/v1/connections", asking("trust", `, "usable_by": [`+text+`]`)); a.Status != 400 ||
			!testkit.Names(t, a, field) {
			t.Errorf("%.100s: got %d %s, want 400 that names %s", text, a.Status, a.Body, field)
		}
	}
}

// TestLongResolveNamesAsAdministrator finds users and projects of any domain. The ids stay, with the names of that
// time.
func TestLongResolveNamesAsAdministrator(t *testing.T) {
	t.Parallel()
	app, _, _, _ := started(t, nil)
	p, other := testkit.BorrowProject(t), testkit.BorrowProject(t)
	p.Grant(t, p.UserID, "admin")
	elsewhere, namesake := other.OtherDomain(t)
	app = app.As(p.Token(t))
	for _, tc := range []struct{ kind, in, want string }{
		{"user", "", other.UserID},
		{"user", "Default", other.UserID},
		{"user", elsewhere, namesake},
		{"project", "", other.ID},
	} {
		c := create(t, app, byName(tc.kind, other.Name, tc.in))
		if !slices.Equal(c.UsableBy, []string{tc.want}) || len(c.UsableNames) != 1 || c.UsableNames[0].Domain != tc.in {
			t.Errorf("the %s of %q: %v %+v", tc.kind, tc.in, c.UsableBy, c.UsableNames)
		}
	}
	c := create(t, app, asking("trust", fmt.Sprintf(`, "usable_by": [%q, {"user": %q}, {"user": %q}]`, other.UserID,
		other.Name, p.Name)))
	if !slices.Equal(c.UsableBy, []string{other.UserID, p.UserID}) || len(c.UsableNames) != 1 ||
		c.UsableNames[0].User != p.Name {
		t.Errorf("an id and its name: %v %+v", c.UsableBy, c.UsableNames)
	}
	for _, tc := range [][3]string{
		{"user", "nobody", ""},
		{"project", "nothing", ""},
		{"project", other.Name, elsewhere},
		{"user", other.Name, "no-such-domain"},
	} {
		a := app.Post(t, "/v1/connections", byName(tc[0], tc[1], tc[2]))
		if a.Status != 400 || !testkit.Names(t, a, "usable_by[0]") ||
			!strings.Contains(string(a.Body), "shows no "+tc[0]) {
			t.Errorf("%v: got %d %s", tc, a.Status, a.Body)
		}
	}
}

// TestResolveNamesWhenKeystoneFails is not the caller's mistake, and creates nothing.
func TestResolveNamesWhenKeystoneFails(t *testing.T) {
	t.Parallel()
	for code, want := range map[apperr.Code]apperr.Code{
		apperr.Unavailable: apperr.Unavailable, apperr.Timeout: apperr.Timeout, apperr.RateLimited: apperr.RateLimited,
		apperr.Forbidden: apperr.Invalid, apperr.NotFound: apperr.Invalid,
	} {
		name, in, f := plainText("joe"), plainText("north"), &fakeCloud{}
		f.nameResolver = failingNames{apperr.New(code, "x")}
		for _, n := range []UsableName{
			{User: &name, field: "usable_by[0]"},
			{Project: &name, Domain: &in, field: "usable_by[0]"},
		} {
			w := draftOf(domain.TrustConnection, "")
			w.names = []UsableName{n}
			_, err := f.service().Create(t.Context(), domain.Identity{ProjectID: "p1"}, "", w)
			if apperr.CodeOf(err) != want || len(f.calls) != 0 {
				t.Errorf("%s: got %v, and %v was done", code, err, f.calls)
			}
		}
	}
}

// failingNames is a Keystone that cannot look names up at that moment, which the sandbox's cannot be made to be.
type failingNames struct{ err error }

func (f failingNames) FindUser(context.Context, string, string) (string, error) { return "", f.err }

func (f failingNames) FindProject(context.Context, string, string) (string, error) { return "", f.err }

func (f failingNames) FindDomain(context.Context, string, string) (string, error) { return "", f.err }
