package connections

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/cloudfn/cloudfn/shared/testkit"
)

// byName is a request with one name in usable_by.
func byName(kind, name, domain string) string {
	if domain != "" {
		domain = fmt.Sprintf(`, "domain": %q`, domain)
	}
	return asking("trust", fmt.Sprintf(`, "usable_by": [{%q: %q%s}]`, kind, name, domain))
}

// TestNamesWithoutAnAccount: a member's token finds the projects in which he has a role, and nothing else: the answer says how to find ids.
func TestNamesWithoutAnAccount(t *testing.T) {
	t.Parallel()
	app, _, _, _ := started(t, nil)
	p, other := testkit.NewProject(t), testkit.NewProject(t)
	other.Grant(t, p.UserID, "reader")
	app = app.As(p.Token(t))
	for _, in := range []string{"", "Default", "default"} {
		c := create(t, app, byName("project", other.Name, in))
		if !slices.Equal(*c.UsableBy, []string{other.ID}) || len(c.UsableNames) != 1 || c.UsableNames[0].Project != other.Name || c.UsableNames[0].Domain != in || c.UsableNames[0].ID != other.ID {
			t.Errorf("got %v %+v", *c.UsableBy, c.UsableNames)
		}
		if shown := app.As(other.Token(t)).Get(t, "/v1/connections/"+c.ID.String()); shown.Status != 200 || strings.Contains(string(shown.Body), "usable_by") {
			t.Errorf("the project that was named is shown %d %s", shown.Status, shown.Body)
		}
	}
	stranger := testkit.NewProject(t)
	there, absent := app.Post(t, "/v1/connections", byName("user", stranger.Name, "")), app.Post(t, "/v1/connections", byName("user", "nobody", ""))
	for _, a := range []testkit.Answer{there, absent} {
		if a.Status != 400 || !testkit.Names(t, a, "usable_by[0]") || !strings.Contains(string(a.Body), "openstack user show -f value -c id NAME") {
			t.Errorf("got %d %s", a.Status, a.Body)
		}
	}
	if unnamed(there, "") != unnamed(absent, "") {
		t.Errorf("they can be told apart: %s and %s", there.Body, absent.Body)
	}
	for text, field := range map[string]string{
		`5`: "usable_by[0]", `null`: "usable_by[0]", `{}`: "usable_by[0]", `{"user": "a", "project": "b"}`: "usable_by[0]", `{"name": "a"}`: "usable_by[0]",
		`{"user": 5}`: "usable_by[0]", `{"user": ""}`: "usable_by[0].user", `{"user": "a", "domain": ""}`: "usable_by[0].domain", `{"user": "a\u0000"}`: "usable_by[0].user",
		`{"domain": "Default"}`:                                "usable_by[0]",
		strings.Repeat(`{"user": "a"},`, 20) + `{"user": "a"}`: "usable_by",
	} {
		if a := app.Post(t, "/v1/connections", asking("trust", `, "usable_by": [`+text+`]`)); a.Status != 400 || !testkit.Names(t, a, field) {
			t.Errorf("%.100s: got %d %s, want 400 that names %s", text, a.Status, a.Body, field)
		}
	}
}

// TestNamesWithAnAccount that reads one domain: names there are found, by whoever delegates, and of another domain nobody is told anything.
func TestNamesWithAnAccount(t *testing.T) {
	t.Parallel()
	reader := testkit.NewProject(t)
	app, _, _, _ := started(t, reader.ReadsDomain(t))
	p, other := testkit.NewProject(t), testkit.NewProject(t)
	elsewhere := other.OtherDomain(t)
	app = app.As(p.Token(t))
	for _, tc := range []struct{ kind, in, want string }{
		{"user", "", other.UserID}, {"user", "Default", other.UserID}, {"user", "default", other.UserID}, {"project", "", other.ID}, {"project", "Default", other.ID},
	} {
		if c := create(t, app, byName(tc.kind, other.Name, tc.in)); !slices.Equal(*c.UsableBy, []string{tc.want}) || len(c.UsableNames) != 1 {
			t.Errorf("the %s of %q: %v %+v", tc.kind, tc.in, *c.UsableBy, c.UsableNames)
		}
	}
	c := create(t, app, asking("trust", fmt.Sprintf(`, "usable_by": [%q, {"user": %q}, {"user": %q}]`, other.UserID, other.Name, p.Name)))
	if !slices.Equal(*c.UsableBy, []string{other.UserID, p.UserID}) || len(c.UsableNames) != 1 {
		t.Errorf("an id and its name: %v %+v", *c.UsableBy, c.UsableNames)
	}
	for _, kind := range []string{"user", "project"} {
		if a := app.Post(t, "/v1/connections", byName(kind, "no-such-"+kind, "")); a.Status != 400 || !strings.Contains(string(a.Body), "there is no "+kind+` \"no-such-`+kind) {
			t.Errorf("got %d %s", a.Status, a.Body)
		}
	}
	var hidden []string
	for _, tc := range [][2]string{{other.Name, elsewhere}, {"nobody", elsewhere}, {other.Name, "no-such-domain"}} {
		a := app.Post(t, "/v1/connections", byName("user", tc[0], tc[1]))
		if a.Status != 400 || !testkit.Names(t, a, "usable_by[0]") {
			t.Errorf("%v: got %d %s", tc, a.Status, a.Body)
		}
		hidden = append(hidden, strings.ReplaceAll(unnamed(a, tc[0]), tc[1], "DOMAIN"))
	}
	if hidden[0] != hidden[1] || hidden[0] != hidden[2] {
		t.Errorf("what is in another domain can be told apart: %v", hidden)
	}
}
