package launch

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/testkit"
)

// TestLaunchOnAddressAndPort launches one server with an address of its own, and one on an existing port.
func TestLaunchOnAddressAndPort(t *testing.T) {
	t.Parallel()
	p, app, _ := start(t)
	p.Network(t, "lab", "10.98.7.0/24")
	port, address := p.MakePort(t, testkit.Sandbox(t).NetworkID)
	instances := func(ip string) string {
		return body(t, object{"networks": nil, "instances": []object{
			{"networks": []object{{"network": "lab", "fixed_ip": ip}}},
			{"networks": []object{{"port_id": port}}},
		}})
	}
	outside := string(app.Post(t, "/v1/launch?dry_run=true", instances("10.98.8.40")).Body)
	if !strings.Contains(outside, `"field":"instances[0].networks[0].fixed_ip"`) ||
		!strings.Contains(outside, `"allowed":["10.98.7.0/24"]`) {
		t.Errorf("an address outside: got %s", outside)
	}
	if dry := app.Post(t, "/v1/launch?dry_run=true", instances("10.98.7.40")); !strings.Contains(string(dry.Body),
		`"ok":true`) {
		t.Errorf("dry run: got %d %s", dry.Status, dry.Body)
	}
	var order Order
	if a := app.Post(t, "/v1/launch", instances("10.98.7.40")); a.Status != 202 {
		t.Fatalf("got %d %s", a.Status, a.Body)
	} else {
		a.JSON(t, &order)
	}
	for n, want := range []string{"10.98.7.40", address} {
		testkit.Eventually(t, time.Minute, fmt.Sprintf("server %d has %s", n, want), func() bool {
			server, err := p.Session(t).Server(t.Context(), order.Instances[n].ServerID)
			has := func(a domain.Address) bool { return a.IP == want }
			return err == nil && slices.ContainsFunc(server.Addresses, has)
		})
	}
	a := app.Post(t, "/v1/launch", body(t, object{"networks": []object{{"port_id": port}}}))
	if a.Status != 409 || !testkit.Names(t, a, "networks[0].port_id") {
		t.Errorf("a port that is in use: got %d %s", a.Status, a.Body)
	}
}

// TestNetworkInHash: a network alone is hashed as the text that it was in stored orders.
func TestNetworkInHash(t *testing.T) {
	t.Parallel()
	for given, want := range map[string]string{
		`"private"`:              `"private"`,
		`{"network": "private"}`: `"private"`,
		`{"network": "private", "fixed_ip": "10.0.0.9"}`: `{"network":"private","fixed_ip":"10.0.0.9"}`,
	} {
		var n launchNetwork
		if err := n.UnmarshalJSON([]byte(given)); err != nil {
			t.Fatal(err)
		}
		if got, err := n.MarshalJSON(); err != nil || string(got) != want {
			t.Errorf("%s: got %s, %v", given, got, err)
		}
	}
}
