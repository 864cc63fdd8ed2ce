package connections

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/testkit"
)

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
		`5`: "usable_by[0]", `null`: "usable_by[0]", `{}`: "usable_by[0]", `{"user": "a", "project": "b"}`: "usable_by[0]",
		`{"name": "a"}`: "usable_by[0]",
		`{"user": 5}`:   "usable_by[0]", `{"user": ""}`: "usable_by[0].user",
		`{"user": "a", "domain": ""}`: "usable_by[0].domain", `{"user": "a\u0000"}`: "usable_by[0].user",
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
			w := asked(domain.TrustConnection, "")
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
