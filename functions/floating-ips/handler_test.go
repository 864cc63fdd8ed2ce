package floatingips

import (
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/google/uuid"

	"github.com/cloudfn/cloudfn/shared/testkit"
)

// create makes a floating IP.
func create(t *testing.T, app *testkit.Client, body string, header ...string) FloatingIP {
	t.Helper()
	var made FloatingIP
	a := app.Do(t, "POST", "/v1/floating-ips", body, append(header, "Content-Type", "application/json")...)
	if a.Status != 201 {
		t.Fatalf("%s: got %d %s", body, a.Status, a.Body)
	}
	if a.JSON(t, &made); a.Header.Get("Location") != "/v1/floating-ips/"+made.ID {
		t.Fatalf("%s: got %v %s", body, a.Header, a.Body)
	}
	return made
}

// TestFloatingIPs makes floating IPs in the real Neutron, pages over them, and deletes one. Another project, and an
// admin of one, sees none.
func TestFloatingIPs(t *testing.T) {
	t.Parallel()
	p, stranger := testkit.NewProject(t), testkit.NewProject(t)
	t.Cleanup(func() { p.DeleteFloatingIPs(t) })
	stranger.Grant(t, stranger.UserID, "admin")
	server := testkit.Start(t, testkit.Env(t, testkit.Database(t), nil), Function)
	app, other := server.As(p.Token(t)), server.As(stranger.Token(t))
	first := create(t, app, `{"description": "of tests"}`)
	if first.Description != "of tests" || first.Address == "" || first.NetworkID == "" || first.PortID != nil ||
		first.ServerID != nil || first.FixedAddress != nil || first.Status != "DOWN" || first.CreatedAt.IsZero() {
		t.Errorf("got %+v", first)
	}
	second := create(t, app, `{"network": "public"}`)
	third := create(t, app, `{"network": "`+first.NetworkID+`"}`)
	ids := []string{first.ID, second.ID, third.ID}
	slices.Sort(ids)
	for query, want := range map[string][]string{
		"?limit=1": ids, "?limit=2": ids, "?limit=3": ids, "?attached=false&limit=1": ids, "?attached=true": nil,
		"?address=" + second.Address: {second.ID}, "?address=192.0.2.1": nil, "?marker=" + ids[0]: ids[1:],
	} {
		var got []string
		for next := "/v1/floating-ips" + query; next != ""; {
			var page FloatingIPPage
			app.Get(t, next).JSON(t, &page)
			for _, f := range page.FloatingIPs {
				got = append(got, f.ID)
			}
			if next = ""; page.Next != nil {
				next = *page.Next
			}
		}
		if !slices.Equal(got, want) {
			t.Errorf("%s: got %v, want %v", query, got, want)
		}
	}
	path := "/v1/floating-ips/" + first.ID
	var page FloatingIPPage
	other.Get(t, "/v1/floating-ips").JSON(t, &page)
	if a := other.Get(t, path); a.Status != 404 || len(page.FloatingIPs) != 0 ||
		other.Do(t, "DELETE", path, "").Status != 404 {
		t.Errorf("an admin of another project got %d %s and the list %v", a.Status, a.Body, page.FloatingIPs)
	}
	if a := app.Do(t, "DELETE", path, ""); a.Status != 204 {
		t.Errorf("got %d %s", a.Status, a.Body)
	}
	if a := app.Do(t, "DELETE", path, ""); a.Status != 404 || app.Get(t, path).Status != 404 {
		t.Errorf("deleted again: got %d %s", a.Status, a.Body)
	}
	a := app.Get(t, "/v1/floating-ips?marker="+first.ID)
	a.JSON(t, &page)
	if a.Status != 200 || len(page.FloatingIPs) != len(ids)-1-slices.Index(ids, first.ID) ||
		slices.ContainsFunc(page.FloatingIPs, func(f FloatingIP) bool { return f.ID <= first.ID }) {
		t.Errorf("after a deleted floating IP: got %d %s", a.Status, a.Body)
	}
}

// TestFloatingIPOnce: a request with an Idempotency-Key makes one floating IP, also when a replica dies after Neutron's
// answer. Its description is shown as it was given.
func TestFloatingIPOnce(t *testing.T) {
	t.Parallel()
	p, database := testkit.NewProject(t), testkit.Database(t)
	t.Cleanup(func() { p.DeleteFloatingIPs(t) })
	app := testkit.Start(t, testkit.Env(t, database, nil), Function).As(p.Token(t))
	for _, body := range []string{`{}`, `{"description": "once "}`} {
		key := []string{"Idempotency-Key", uuid.NewString()}
		before := len(p.FloatingIPs(t))
		first := create(t, app, body, key...)
		if strings.Contains(first.Description, "cloudfn") {
			t.Errorf("described as %q", first.Description)
		}
		if again := create(t, app, body, key...); again.ID != first.ID {
			t.Errorf("sent again it made %s", again.ID)
		}
		testkit.LeaveRequests(t, testkit.Connect(t, database), testkit.Died)
		if again := create(t, app, body, key...); again.ID != first.ID {
			t.Errorf("sent again after a replica has died it made %s", again.ID)
		}
		if n := len(p.FloatingIPs(t)); n != before+1 {
			t.Errorf("there are %d", n)
		}
	}
}

// TestNeutronRefuses passes on Neutron's words, with its status; one that is attached is deleted only with force.
func TestNeutronRefuses(t *testing.T) {
	t.Parallel()
	p := testkit.NewProject(t)
	routed := p.RoutedNetwork(t, "inside", "10.41.0.0/24")
	p.SetFloatingIPQuota(t, 1)
	app := testkit.Start(t, testkit.Env(t, testkit.Database(t), nil), Function).As(p.Token(t))
	made := create(t, app, `{}`)
	for body, want := range map[string]struct {
		status int
		detail string
	}{
		`{}`:                           {403, "Quota exceeded for resources"},
		`{"network": "absent"}`:        {400, "there is no external network"},
		`{"network": "inside"}`:        {400, "there is no external network"},
		`{"address": "203.0.113.200"}`: {403, "neutron: "},
	} {
		a := app.Post(t, "/v1/floating-ips", body)
		if a.Status != want.status || !strings.Contains(string(a.Body), want.detail) {
			t.Errorf("%s: got %d %s, want %d with %q", body, a.Status, a.Body, want.status, want.detail)
		}
	}
	server := p.BootOn(t, "web", routed.NetworkID)
	if err := p.AttachAddress(t, server, made.Address); err != nil {
		t.Fatal(err)
	}
	path := "/v1/floating-ips/" + made.ID
	var attached FloatingIP
	if app.Get(t, path).JSON(t, &attached); attached.ServerID == nil || *attached.ServerID != server {
		t.Errorf("got %+v", attached)
	}
	if a := app.Do(t, "DELETE", path, ""); a.Status != 409 || !strings.Contains(string(a.Body), server) {
		t.Errorf("attached: got %d %s", a.Status, a.Body)
	}
	if a := app.Do(t, "DELETE", path+"?force=true", ""); a.Status != 204 {
		t.Errorf("by force: got %d %s", a.Status, a.Body)
	}
}

func TestInvalidRequests(t *testing.T) {
	t.Parallel()
	p := testkit.BorrowProject(t)
	server := testkit.Start(t, testkit.Env(t, testkit.Database(t), nil), Function)
	app := server.As(p.Token(t))
	for body, field := range map[string]string{
		`{"address": "2001:db8::1"}`: "address", `{"address": "x"}`: "address", `{"description": "🙂"}`: "description",
		`{"surprise": 1}`: "surprise",
	} {
		if a := app.Post(t, "/v1/floating-ips", body); a.Status != 400 || !testkit.Names(t, a, field) {
			t.Errorf("%s: got %d %s, want 400 with %s in errors", body, a.Status, a.Body, field)
		}
	}
	reader := server.As(p.ReaderToken(t))
	if a := reader.Post(t, "/v1/floating-ips", `{}`); a.Status != 403 {
		t.Errorf("a reader got %d %s, want 403", a.Status, a.Body)
	}
	if a := server.As("").Get(t, "/v1/floating-ips"); a.Status != http.StatusUnauthorized {
		t.Errorf("without a token: got %d %s, want 401", a.Status, a.Body)
	}
}
