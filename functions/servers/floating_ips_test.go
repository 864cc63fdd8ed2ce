package servers

import (
	"strings"
	"testing"

	"github.com/google/uuid"

	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/testkit"
)

// TestFloatingIPsOfServer attaches floating IPs in the real Neutron, moves one, and detaches it. Each request may be
// repeated. What an order has made for the server stays once it is detached.
func TestFloatingIPsOfServer(t *testing.T) {
	t.Parallel()
	p := testkit.NewProject(t)
	routed := p.RoutedNetwork(t, "inside", "10.42.0.0/24")
	p.Network(t, "alone", "10.43.0.0/24")
	app := testkit.Start(t, testkit.Env(t, testkit.Database(t), nil), Function).As(p.Token(t))
	one, two := p.BootOn(t, "one", routed.NetworkID, p.NetworkID(t, "alone")), p.BootOn(t, "two", routed.NetworkID)
	path, other := "/v1/servers/"+one+"/floating-ips", "/v1/servers/"+two+"/floating-ips"

	var made ServerFloatingIP
	a := app.Post(t, path, `{}`)
	if a.JSON(t, &made); a.Status != 201 || made.NetworkID != routed.ExternalID ||
		!strings.HasPrefix(made.FixedAddress, "10.42.0.") {
		t.Fatalf("got %d %s", a.Status, a.Body)
	}
	for _, body := range []string{
		`{}`, `{"network": "public"}`, `{"floating_ip_id": "` + made.ID + `"}`, `{"address": "` + made.Address + `"}`,
	} {
		if a := app.Post(t, path, body); a.Status != 200 || !strings.Contains(string(a.Body), made.ID) {
			t.Errorf("%s again: got %d %s", body, a.Status, a.Body)
		}
	}
	if n := len(p.FloatingIPs(t)); n != 1 {
		t.Errorf("there are %d floating IPs", n)
	}
	address := `{"address": "` + made.Address + `"}`
	if a := app.Post(t, other, address); a.Status != 409 || !strings.Contains(string(a.Body), one) {
		t.Errorf("attached elsewhere: got %d %s", a.Status, a.Body)
	}
	for body, want := range map[string]int{
		`{"fixed_address": "10.43.0.250"}`: 400, `{"network": "absent"}`: 400, `{"address": "203.0.113.1"}`: 404,
		`{"floating_ip_id": "` + uuid.NewString() + `"}`: 404, `{"network": "public", "address": "203.0.113.1"}`: 400,
		`{"move": true}`: 400, `{"address": "::1"}`: 400,
	} {
		if a := app.Post(t, path, body); a.Status != want {
			t.Errorf("%s: got %d %s, want %d", body, a.Status, a.Body, want)
		}
	}
	if a := app.Post(t, other, `{"move": true, `+address[1:]); a.Status != 201 {
		t.Errorf("moved: got %d %s", a.Status, a.Body)
	}
	var all ServerFloatingIPs
	if app.Get(t, path).JSON(t, &all); len(all.FloatingIPs) != 0 {
		t.Errorf("the first server still has %+v", all.FloatingIPs)
	}
	if app.Get(t, other).JSON(t, &all); len(all.FloatingIPs) != 1 || all.FloatingIPs[0].ID != made.ID {
		t.Errorf("the second server has %+v", all.FloatingIPs)
	}
	for n, want := range []int{204, 404} {
		if a := app.Do(t, "DELETE", other+"/"+made.ID, ""); a.Status != want {
			t.Errorf("detached %d times: got %d %s, want %d", n+1, a.Status, a.Body, want)
		}
	}
	if all := p.FloatingIPs(t); len(all) != 1 || all[0].PortID != "" {
		t.Errorf("there are %+v", all)
	}
	marked, _, err := p.Session(t).EnsureFloatingIP(t.Context(), one, domain.FloatingIPAttach{
		Description: domain.FloatingIPMark(uuid.New()),
	})
	if err != nil {
		t.Fatal(err)
	}
	if a := app.Do(t, "DELETE", path+"/"+marked.ID, ""); a.Status != 204 {
		t.Errorf("detached: got %d %s", a.Status, a.Body)
	}
	for _, f := range p.FloatingIPs(t) {
		if f.PortID != "" || f.Description != "" {
			t.Errorf("who deletes the server that it was ordered with would release %+v", f)
		}
	}
	stranger := testkit.NewProject(t)
	stranger.Grant(t, stranger.UserID, "admin")
	if a := app.As(stranger.Token(t)).Post(t, path, `{}`); a.Status != 404 {
		t.Errorf("an admin of another project got %d %s", a.Status, a.Body)
	}
}

// TestNoRouteToFloatingIPs rejects what no router can serve, and names the addresses.
func TestNoRouteToFloatingIPs(t *testing.T) {
	t.Parallel()
	p := testkit.NewProject(t)
	p.Network(t, "alone", "10.44.0.0/24")
	first := p.RoutedNetwork(t, "first", "10.45.0.0/24")
	second := p.RoutedNetwork(t, "second", "10.46.0.0/24")
	app := testkit.Start(t, testkit.Env(t, testkit.Database(t), nil), Function).As(p.Token(t))
	alone := p.BootOn(t, "alone", p.NetworkID(t, "alone"))
	hidden := p.BootOn(t, "hidden", testkit.Sandbox(t).NetworkID)
	both := p.BootOn(t, "both", first.NetworkID, second.NetworkID)
	for server, detail := range map[string]string{
		alone: "no router connects", hidden: "not reachable from subnet", both: "fixed_address",
		p.Boot(t, "without", 1)[0].ID: "no IPv4 address",
	} {
		a := app.Post(t, "/v1/servers/"+server+"/floating-ips", `{"network": "public"}`)
		if a.Status != 409 || !strings.Contains(string(a.Body), detail) {
			t.Errorf("got %d %s, want 409 with %q", a.Status, a.Body, detail)
		}
	}
	if n := len(p.FloatingIPs(t)); n != 0 {
		t.Errorf("%d floating IPs are left", n)
	}
}
