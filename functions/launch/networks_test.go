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

// TestSecurityGroups: names that Neutron takes for one are resolved to ids. One that several groups have is a conflict
// with the ids, also in the dry run.
func TestSecurityGroups(t *testing.T) {
	t.Parallel()
	p, app, database := start(t)
	ids := map[string][]string{}
	for _, name := range []string{"web", "Web", "twin", "twin"} {
		ids[name] = append(ids[name], p.MakeSecurityGroup(t, name))
	}
	given := body(t, object{"security_groups": []string{"web", "default", ids["Web"][0], ids["web"][0]}})
	if a := app.Post(t, "/v1/launch?dry_run=true", given); !strings.Contains(string(a.Body), `"ok":true`) {
		t.Errorf("dry run: got %d %s", a.Status, a.Body)
	}
	if a := app.Post(t, "/v1/launch", given); a.Status != 202 {
		t.Errorf("got %d %s", a.Status, a.Body)
	}
	stored := testkit.Scalar[string](t, testkit.Pool(t, database), "select spec->>'security_groups' from instances")
	if !strings.HasPrefix(stored, `["`+ids["web"][0]) || !strings.HasSuffix(stored, ids["Web"][0]+`"]`) {
		t.Errorf("the instance has %s, want %v", stored, ids)
	}
	twin := body(t, object{"instances": []object{{"security_groups": []string{"web", "twin"}}}})
	dry, a := app.Post(t, "/v1/launch?dry_run=true", twin), app.Post(t, "/v1/launch", twin)
	for _, id := range append(ids["twin"], `"code":"conflict"`, `"instances[0].security_groups[1]"`) {
		if a.Status != 409 || !strings.Contains(string(a.Body), id) || !strings.Contains(string(dry.Body), id) {
			t.Errorf("without %s: got %d %s, dry run %s", id, a.Status, a.Body, dry.Body)
		}
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
