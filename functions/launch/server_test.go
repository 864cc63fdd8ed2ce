package launch

import (
	"context"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"golang.org/x/crypto/ssh"

	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/openstack"
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

// TestSecurityGroupsOfNetworks: each port has the security groups of its network, else the server's. A group that does
// not exist and a network whose ports cannot be distinguished are rejected.
func TestSecurityGroupsOfNetworks(t *testing.T) {
	t.Parallel()
	p, app, _ := start(t)
	p.Network(t, "back", "10.98.9.0/24")
	web, db, all := p.MakeSecurityGroup(t, "web"), p.MakeSecurityGroup(t, "db"), p.MakeSecurityGroup(t, "all")
	front := testkit.Sandbox(t).NetworkID
	networks := func(back ...object) string {
		given := append([]object{{"network": front, "security_groups": []string{"web", web}}}, back...)
		return body(t, object{"networks": given, "security_groups": []string{"all"}, "floating_ip": nil})
	}
	ofDB := object{"network": "back", "security_groups": []string{"db"}}
	for name, back := range map[string]object{
		"networks[1].security_groups[0]": {"network": "back", "security_groups": []string{"absent"}},
		"networks[0].security_groups":    {"network": front},
	} {
		for _, query := range []string{"", "?dry_run=true"} {
			if a := app.Post(t, "/v1/launch"+query, networks(back)); !strings.Contains(string(a.Body), `"`+name+`"`) {
				t.Errorf("%s%s: got %d %s", name, query, a.Status, a.Body)
			}
		}
	}
	var order Order
	a := app.Post(t, "/v1/launch", networks(ofDB, object{"network": "back", "fixed_ip": "10.98.9.40"}))
	if a.Status != 400 || !testkit.Names(t, a, "networks[1].security_groups") {
		t.Errorf("an address beside none: got %d %s", a.Status, a.Body)
	}
	ofDB["fixed_ip"] = "10.98.9.41"
	a = app.Post(t, "/v1/launch", networks(ofDB, object{"network": "back", "fixed_ip": "10.98.9.40"}))
	if a.JSON(t, &order); a.Status != 202 {
		t.Fatalf("got %d %s", a.Status, a.Body)
	}
	testkit.Eventually(t, time.Minute, "the order is done", func() bool {
		app.Get(t, "/v1/launch/"+order.ID.String()).JSON(t, &order)
		return order.Status == domain.OrderDone
	})
	ports, err := p.Session(t).Interfaces(t.Context(), order.Instances[0].ServerID)
	if err != nil || len(ports) != 3 {
		t.Fatalf("got %+v, %v", ports, err)
	}
	for _, port := range ports {
		want := all
		switch {
		case port.NetworkID == front:
			want = web
		case port.HasAddress("10.98.9.41"):
			want = db
		}
		if !slices.Equal(port.Groups, []string{want}) {
			t.Errorf("got %+v, want the group %s", port, want)
		}
	}
}

// TestNetworkInHash: a network alone is hashed as the text that it was in stored orders.
func TestNetworkInHash(t *testing.T) {
	t.Parallel()
	for given, want := range map[string]string{
		`"private"`:              `"private"`,
		`{"network": "private"}`: `"private"`,
		`{"network": "private", "fixed_ip": "10.0.0.9"}`:        `{"network":"private","fixed_ip":"10.0.0.9"}`,
		`{"network": "private", "security_groups": ["b", "a"]}`: `{"network":"private","security_groups":["b","a"]}`,
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

// TestLaunchWithOptions compares the servers in Nova with their options. One server has its own.
func TestLaunchWithOptions(t *testing.T) {
	t.Parallel()
	p, app, _ := start(t)
	nova := testkit.Compute(t, p.Login(t))
	nova.Microversion = "2.52"
	groups := map[string]string{}
	for _, name := range []string{"apart", "together"} {
		groups[name] = p.MakeServerGroup(t, name)
	}
	request := object{
		"id": uuid.NewString(), "tags": []string{"team:a", "web ✓"}, "description": "of the course ✓",
		"config_drive": true, "server_group": "apart", "scheduler_hints": object{"different_host": []string{uuid.NewString()}},
		"instances": []object{{}, {
			"tags": []string{}, "description": "", "config_drive": false, "server_group": groups["together"],
			"scheduler_hints": object{},
		}, {"server_group": ""}},
	}
	var report launchReport
	app.Post(t, "/v1/launch?dry_run=true", body(t, request)).JSON(t, &report)
	if !report.OK || len(report.Resolved) != 3 || report.Resolved[0].ServerGroupID != groups["apart"] ||
		report.Resolved[1].ServerGroupID != groups["together"] || report.Resolved[2].ServerGroupID != "" {
		t.Errorf("the dry run gives %+v", report)
	}
	unknown := app.Post(t, "/v1/launch?dry_run=true", body(t, object{"server_group": "apartt"}))
	if text := string(unknown.Body); !strings.Contains(text, `did you mean \"apart\"?`) {
		t.Errorf("an unknown group: got %s", text)
	}
	var order Order
	if a := app.Post(t, "/v1/launch", body(t, request)); a.Status != 202 {
		t.Fatalf("got %d %s", a.Status, a.Body)
	} else if a.JSON(t, &order); len(order.Instances) != 3 {
		t.Fatalf("got %s", a.Body)
	}
	if a := app.Post(t, "/v1/launch", body(t, request)); a.Status != 200 {
		t.Errorf("again: got %d %s", a.Status, a.Body)
	}
	type shown struct {
		Description string   `json:"description"`
		ConfigDrive string   `json:"config_drive"`
		Tags        []string `json:"tags"`
	}
	for n, want := range []struct {
		description, drive, group string
		tags                      []string
	}{
		{"of the course ✓", "True", "apart", []string{"team:a", "web ✓"}},
		{"", "", "together", nil},
		{"of the course ✓", "True", "", []string{"team:a", "web ✓"}},
	} {
		i := order.Instances[n]
		var body struct{ Server shown }
		if _, err := nova.Get(t.Context(), nova.ServiceURL("servers", i.ServerID), &body, nil); err != nil {
			t.Fatal(err)
		}
		own := slices.DeleteFunc(body.Server.Tags, func(tag string) bool {
			return strings.HasPrefix(tag, "cloudfn-") || tag == i.ID.String()
		})
		slices.Sort(own)
		if len(own) != len(want.tags) || len(own) > 0 && !reflect.DeepEqual(own, want.tags) ||
			body.Server.ConfigDrive != want.drive ||
			want.description != "" && body.Server.Description != want.description {
			t.Errorf("server %d is %+v, want %+v", n, body.Server, want)
		}
		for name, id := range groups {
			if isIn := slices.Contains(p.ServerGroupMembers(t, id), i.ServerID); isIn != (name == want.group) {
				t.Errorf("server %d is in %s: %t", n, name, isIn)
			}
		}
	}
}

// TestOptionsInHash: what says nothing does not make another request of it.
func TestOptionsInHash(t *testing.T) {
	t.Parallel()
	plain := launchRequest{Name: "a"}
	empty, tagged, own := plain, plain, plain
	empty.Options = Options{
		Tags: []string{}, Description: new(""), ConfigDrive: new(false), ServerGroup: new(""), Hints: hints{},
	}
	tagged.Tags = []string{"a"}
	own.Instances = []launchInstance{{Options: Options{Tags: []string{}}}}
	none := own
	none.Instances = []launchInstance{{}}
	if plain.hash() != empty.hash() {
		t.Error("options that say nothing change the hash")
	}
	if plain.hash() == tagged.hash() || own.hash() == none.hash() {
		t.Error("tags do not change the hash")
	}
}

// TestGeneratedKey checks that the private key is in the first answer only, and stored nowhere.
func TestGeneratedKey(t *testing.T) {
	t.Parallel()
	p, app, database := start(t)
	id := uuid.NewString()
	request := body(t, object{"id": id, "generate_key": true})
	var order Order
	app.Post(t, "/v1/launch", request).JSON(t, &order)
	key, err := ssh.ParsePrivateKey([]byte(order.PrivateKey))
	if err != nil {
		t.Fatalf("%v: %+v", err, order)
	}
	name := "cloudfn-" + id
	held, _, _, _, err := ssh.ParseAuthorizedKey([]byte(p.KeyPairs(t)[name]))
	if err != nil || string(held.Marshal()) != string(key.PublicKey().Marshal()) {
		t.Errorf("Nova has %v (%v), which is not the public half", held, err)
	}
	if made := p.Servers(t); len(made) != 1 || made[0].KeyName != name || order.Instances[0].KeyName != name {
		t.Errorf("the server is %+v, the order %+v", made, order)
	}
	conn := testkit.Connect(t, database)
	if got := testkit.Scalar[string](t, conn,
		"select key_fingerprint from instances"); got != ssh.FingerprintLegacyMD5(held) {
		t.Errorf("the fingerprint is %q, want %q", got, ssh.FingerprintLegacyMD5(held))
	}
	for _, line := range strings.Split(order.PrivateKey, "\n")[1:3] {
		if strings.Contains(testkit.Dump(t, database), line) {
			t.Error("the private key is in the database")
		}
	}
	var again Order
	app.Post(t, "/v1/launch", request).JSON(t, &again)
	if again.PrivateKey != "" || again.ID != order.ID {
		t.Errorf("the same request: %+v", again)
	}
	// An order that Nova rejects leaves no key pair.
	rejected := body(t, object{"generate_key": true, "availability_zone": "nowhere"})
	if a := app.Post(t, "/v1/launch", rejected); a.Status != 400 {
		t.Errorf("rejected: got %d %s", a.Status, a.Body)
	}
	if keys := p.KeyPairs(t); len(keys) != 1 {
		t.Errorf("key pairs: %v", keys)
	}
}

// TestKeyPairOfReader: who reads an order of another user keeps a key pair of the same name. Nova's key pairs are a
// user's, and an id of an order is a project's.
func TestKeyPairOfReader(t *testing.T) {
	t.Parallel()
	p, app, database := start(t)
	other, id := testkit.BorrowProject(t), uuid.NewString()
	p.Grant(t, other.UserID, "member")
	p.SetQuota(t, 0)
	request := body(t, object{"id": id, "on_failure": "rollback", "generate_key": true})
	if a := app.Post(t, "/v1/launch", request); a.Status != 403 {
		t.Fatalf("got %d %s", a.Status, a.Body)
	}
	name, theirs := "cloudfn-"+id, other.Session(t)
	public, _, err := openstack.NewKey(name)
	if err == nil {
		_, err = theirs.ImportKeyPair(t.Context(), name, public)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = theirs.DeleteKeyPair(context.Background(), name) })
	in := *other
	in.ID = p.ID
	reader := app.As(in.Token(t))
	kept := func(when string, a testkit.Answer, want int) {
		t.Helper()
		if a.Status != want || other.KeyPairs(t)[name] == "" {
			t.Errorf("%s: got %d %s, the keys %v", when, a.Status, a.Body, other.KeyPairs(t))
		}
	}
	kept("read", reader.Get(t, "/v1/launch/"+id), 200)
	kept("sent again", reader.Post(t, "/v1/launch", request), 200)
	conn := testkit.Connect(t, database)
	exec(t, conn, "update orders set status = 'running'")
	exec(t, conn, "update instances set state = 'requested', problem = null")
	kept("resumed", reader.Post(t, "/v1/launch", request), 409) // the order's pair would have that name
}

// TestLongGeneratedKeyAfterReplicaDied checks that a resumed order without servers gets a new key pair: the private
// half of the first is lost.
func TestLongGeneratedKeyAfterReplicaDied(t *testing.T) {
	t.Parallel()
	p, app, database := start(t)
	text := body(t, object{"id": uuid.NewString(), "generate_key": true})
	var first, second Order
	app.Post(t, "/v1/launch", text).JSON(t, &first)
	// A replica that dies before its first server leaves the order and the key pair.
	conn := testkit.Connect(t, database)
	for _, s := range p.Servers(t) {
		p.Delete(t, s.ID)
	}
	exec(t, conn, `update instances
		set server_id = null, state = 'requested', seen_at = null, key_fingerprint = ''`)
	app.Post(t, "/v1/launch", text).JSON(t, &second)
	key, err := ssh.ParsePrivateKey([]byte(second.PrivateKey))
	if err != nil || second.PrivateKey == first.PrivateKey {
		t.Fatalf("%v: first %+v, then %+v", err, first, second)
	}
	for _, public := range p.KeyPairs(t) {
		if !strings.Contains(string(ssh.MarshalAuthorizedKey(key.PublicKey())), strings.Fields(public)[1]) {
			t.Errorf("Nova has %s, which is not the public half", public)
		}
	}
}
