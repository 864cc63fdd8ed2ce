package securitygroups

import (
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/google/uuid"

	"github.com/cloudfn/cloudfn/shared/testkit"
)

const path = "/v1/security-groups"

func create(t *testing.T, app *testkit.Client, body string, header ...string) SecurityGroupWithRules {
	t.Helper()
	var made SecurityGroupWithRules
	a := app.Do(t, "POST", path, body, append(header, "Content-Type", "application/json")...)
	if a.JSON(t, &made); a.Status != 201 || a.Header.Get("Location") != path+"/"+made.ID {
		t.Fatalf("%s: got %d %v %s", body, a.Status, a.Header, a.Body)
	}
	return made
}

// TestSecurityGroups of the real Neutron: made, listed, with rules, and deleted. Another project's admin sees none.
func TestSecurityGroups(t *testing.T) {
	t.Parallel()
	p, stranger := testkit.NewProject(t), testkit.NewProject(t)
	stranger.Grant(t, stranger.UserID, "admin")
	server := testkit.Start(t, testkit.Env(t, testkit.Database(t), nil), Function)
	app, other := server.As(p.Token(t)), server.As(stranger.Token(t))
	web := create(t, app, `{"name": "Web ü", "description": "of tests"}`)
	t.Cleanup(func() { app.Do(t, "DELETE", path+"/"+web.ID, "") })
	if web.Name != "Web ü" || web.Description != "of tests" || len(web.Rules) != 2 || web.CreatedAt.IsZero() ||
		web.Rules[0].Direction != "egress" {
		t.Errorf("got %+v", web)
	}
	twin := create(t, app, `{"name": "Web ü"}`)
	for query, want := range map[string]int{
		"?limit=1": 3, "": 3, "?name=WEB": 2, "?name=web&limit=1": 2, "?name=absent": 0,
	} {
		var names []string
		for next := path + query; next != ""; {
			var page SecurityGroupPage
			app.Get(t, next).JSON(t, &page)
			for _, g := range page.Groups {
				names = append(names, g.Name)
			}
			if next = ""; page.Next != nil {
				next = *page.Next
			}
		}
		if len(names) != want || !slices.IsSorted(names) {
			t.Errorf("%s: got %v, want %d", query, names, want)
		}
	}
	own := path + "/" + web.ID
	for _, a := range []testkit.Answer{
		other.Get(t, own), other.Do(t, "DELETE", own, ""), other.Post(t, own+"/rules", `{}`),
		app.Get(t, path+"/"+uuid.NewString()),
	} {
		if a.Status != 404 {
			t.Errorf("another's, or none: got %d %s", a.Status, a.Body)
		}
	}
	if a := app.Post(t, own+"/rules", `{"remote_group": "Web ü"}`); a.Status != 409 ||
		!strings.Contains(string(a.Body), twin.ID) {
		t.Errorf("a name of two: got %d %s", a.Status, a.Body)
	}
	if a := app.Do(t, "DELETE", path+"/"+twin.ID, ""); a.Status != 204 {
		t.Errorf("got %d %s", a.Status, a.Body)
	}
	if a := app.Get(t, path+"?marker="+twin.ID); a.Status != 400 || !testkit.Names(t, a, "marker") {
		t.Errorf("after a deleted one: got %d %s", a.Status, a.Body)
	}
	var page SecurityGroupPage
	app.Get(t, path+"?name=default").JSON(t, &page)
	if a := app.Do(t, "DELETE", path+"/"+page.Groups[0].ID, ""); a.Status != 409 {
		t.Errorf("the default one: got %d %s", a.Status, a.Body)
	}
}

// TestRules of the real Neutron: each is there once, however often and in which form it is sent.
func TestRules(t *testing.T) {
	t.Parallel()
	p := testkit.NewProject(t)
	app := testkit.Start(t, testkit.Env(t, testkit.Database(t), nil), Function).As(p.Token(t))
	web := create(t, app, `{"name": "web"}`)
	t.Cleanup(func() { app.Do(t, "DELETE", path+"/"+web.ID, "") })
	rules := path + "/" + web.ID + "/rules"
	for body, status := range map[string]int{
		`{"protocol": "tcp", "port_min": 443, "remote_cidr": "0.0.0.0/0"}`:               201,
		`{"protocol": "tcp", "port_min": 22, "port_max": 23, "remote_cidr": "10.1.2.3"}`: 201,
		`{"protocol": "udp", "port_min": 53, "remote_group": "web", "description": "ü"}`: 201,
		`{"direction": "egress", "ethertype": "IPv6", "protocol": "ipv6-icmp"}`:          201,
		`{"protocol": "icmp", "port_min": 8, "port_max": 0}`:                             201,
		`{"remote_cidr": "2001:db8::1/32"}`:                                              201,
		`{"protocol": "tcp", "port_min": 2, "port_max": 1}`:                              400,
		`{"port_max": 1, "protocol": "tcp"}`:                                             400,
		`{"port_min": 1}`:                                                                400,
		`{"remote_cidr": "10.0.0.0/33"}`:                                                 400,
		`{"remote_cidr": "10.0.0.0/8", "ethertype": "IPv6"}`:                             400,
		`{"remote_cidr": "10.0.0.0/8", "remote_group": "web"}`:                           400,
		`{"remote_group": "absent"}`:                                                     400,
		`{"protocol": "nonsense"}`:                                                       400,
	} {
		a := app.Post(t, rules, body)
		if a.Status != status {
			t.Errorf("%s: got %d %s, want %d", body, a.Status, a.Body, status)
		}
		if status != 201 {
			continue
		}
		var made, again SecurityGroupRule
		a.JSON(t, &made)
		if b := app.Post(t, rules, body); b.Status != 200 || made.ID == "" {
			t.Errorf("%s again: got %d %s", body, b.Status, b.Body)
		} else if b.JSON(t, &again); again.ID != made.ID {
			t.Errorf("%s again: got %+v, want %+v", body, again, made)
		}
	}
	const other = `{"protocol": "6", "port_min": 443, "port_max": 443, "remote_cidr": "0.0.0.0/0"}`
	if a := app.Post(t, rules, other); a.Status != 200 {
		t.Errorf("in another form: got %d %s", a.Status, a.Body)
	}
	var shown SecurityGroupWithRules
	if app.Get(t, path+"/"+web.ID).JSON(t, &shown); len(shown.Rules) != 8 {
		t.Errorf("got %+v", shown.Rules)
	}
	one := rules + "/" + shown.Rules[0].ID
	for _, want := range []int{204, 404} {
		if a := app.Do(t, "DELETE", one, ""); a.Status != want {
			t.Errorf("remove: got %d %s, want %d", a.Status, a.Body, want)
		}
	}
	var page SecurityGroupPage
	app.Get(t, path+"?name=default").JSON(t, &page)
	if a := app.Do(t, "DELETE", rules+"/"+page.Groups[0].Rules[0].ID, ""); a.Status != 404 {
		t.Errorf("another group's rule: got %d %s", a.Status, a.Body)
	}
}

// TestSecurityGroupOnce: a request with an Idempotency-Key makes one security group, also when a replica dies after
// Neutron's answer.
func TestSecurityGroupOnce(t *testing.T) {
	t.Parallel()
	p, database := testkit.NewProject(t), testkit.Database(t)
	app := testkit.Start(t, testkit.Env(t, database, nil), Function).As(p.Token(t))
	key := []string{"Idempotency-Key", uuid.NewString()}
	first := create(t, app, `{"name": "once"}`, key...)
	t.Cleanup(func() { app.Do(t, "DELETE", path+"/"+first.ID, "") })
	testkit.LeaveRequests(t, testkit.Connect(t, database), testkit.Died)
	if again := create(t, app, `{"name": "once"}`, key...); again.ID != first.ID {
		t.Errorf("sent again after a replica has died it made %s", again.ID)
	}
	var page SecurityGroupPage
	if app.Get(t, path+"?name=once").JSON(t, &page); len(page.Groups) != 1 {
		t.Errorf("there are %+v", page.Groups)
	}
}

// TestRuleNotAnswered: a rule whose answer was lost is found by the request that repeats it, and so is one that another
// request has added in between.
func TestRuleNotAnswered(t *testing.T) {
	t.Parallel()
	p := testkit.NewProject(t)
	var isLost, isHidden atomic.Bool
	neutron := testkit.Instead(t, testkit.Endpoint(t, "network"), func(w http.ResponseWriter, r *http.Request) bool {
		if r.Method == http.MethodPost && isLost.Load() {
			w.WriteHeader(http.StatusServiceUnavailable)
			return true
		}
		if r.Method == http.MethodPost && isHidden.Load() && strings.HasSuffix(r.URL.Path, "/security-group-rules") {
			isHidden.Store(false)
			w.WriteHeader(http.StatusConflict)
			return true
		}
		return false
	})
	env := testkit.RedirectTo(t, map[string]string{"network": neutron}).Env(t, "demo")
	app := testkit.Start(t, testkit.Env(t, testkit.Database(t), env), Function).As(p.Token(t))
	web := create(t, app, `{"name": "web"}`)
	t.Cleanup(func() { app.Do(t, "DELETE", path+"/"+web.ID, "") })
	rules := path + "/" + web.ID + "/rules"
	isLost.Store(true)
	if a := app.Post(t, rules, `{"protocol": "tcp"}`); a.Status != 503 {
		t.Errorf("got %d %s", a.Status, a.Body)
	}
	isLost.Store(false)
	if a := app.Post(t, rules, `{"protocol": "tcp"}`); a.Status != 201 {
		t.Errorf("then: got %d %s", a.Status, a.Body)
	}
	isHidden.Store(true)
	if a := app.Post(t, rules, `{"protocol": "udp"}`); a.Status != 409 {
		t.Errorf("a conflict with another rule: got %d %s", a.Status, a.Body)
	}
}
