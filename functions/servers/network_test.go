package servers

import (
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/testkit"
)

// TestSecurityGroupsOfServer: per port in the real Neutron; each request may be repeated.
func TestSecurityGroupsOfServer(t *testing.T) {
	t.Parallel()
	p := testkit.NewProject(t)
	app := testkit.Start(t, testkit.Env(t, testkit.Database(t), nil), Function).As(p.Token(t))
	web, twin := p.MakeSecurityGroup(t, "web"), p.MakeSecurityGroup(t, "twin")
	p.MakeSecurityGroup(t, "twin")
	server := p.BootWithAddress(t, "grouped", 1)[0].ID
	path := "/v1/servers/" + server + "/security-groups"
	list := func() string {
		var names []string
		var all ServerSecurityGroups
		app.Get(t, path).JSON(t, &all)
		for _, g := range all.SecurityGroups {
			names = append(names, g.Name)
		}
		return strings.Join(names, " ")
	}
	if got := list(); got != "default" {
		t.Fatalf("got %q", got)
	}
	for _, status := range []int{201, 200} {
		var has ServerSecurityGroup
		a := app.Post(t, path, `{"security_group": "web"}`)
		if a.JSON(t, &has); a.Status != status || has.ID != web || has.Name != "web" || len(has.PortIDs) != 1 {
			t.Errorf("got %d %s", a.Status, a.Body)
		}
	}
	var ports ServerInterfaces
	app.Get(t, "/v1/servers/"+server+"/interfaces").JSON(t, &ports)
	port := ports.Interfaces[0].PortID
	for body, status := range map[string]int{
		`{"security_group": "absent"}`: 400,
		`{"security_group": "twin"}`:   409,
		`{"security_group": "` + twin + `", "port_id": "` + uuid.NewString() + `"}`: 404,
		`{"security_group": "` + twin + `", "port_id": "` + port + `"}`:             201,
	} {
		a := app.Post(t, path, body)
		if a.Status != status || status == 409 && !strings.Contains(string(a.Body), twin) {
			t.Errorf("%s: got %d %s, want %d", body, a.Status, a.Body, status)
		}
	}
	if got := list(); got != "default twin web" {
		t.Errorf("got %q", got)
	}
	for _, tc := range []struct {
		path   string
		status int
	}{
		{"/" + uuid.NewString(), 404},
		{"/" + twin + "?port_id=" + uuid.NewString(), 404},
		{"/" + twin + "?port_id=" + port, 204},
		{"/" + twin, 404},
		{"/" + web, 204},
		{"/" + web, 404},
	} {
		if a := app.Do(t, "DELETE", path+tc.path, ""); a.Status != tc.status {
			t.Errorf("%s: got %d %s, want %d", tc.path, a.Status, a.Body, tc.status)
		}
	}
	if got := list(); got != "default" {
		t.Errorf("got %q", got)
	}
	stranger := testkit.NewProject(t)
	stranger.Grant(t, stranger.UserID, "admin")
	if a := app.As(stranger.Token(t)).Post(t, path, `{"security_group": "`+web+`"}`); a.Status != 404 {
		t.Errorf("an admin of another project got %d %s", a.Status, a.Body)
	}
	bare := p.Boot(t, "bare", 1)[0].ID
	if a := app.Post(t, "/v1/servers/"+bare+"/security-groups", `{"security_group": "web"}`); a.Status != 409 {
		t.Errorf("without a port: got %d %s", a.Status, a.Body)
	}
}

// TestInterfaces attaches and detaches interfaces in the real Nova and Neutron. Each request may be repeated.
func TestInterfaces(t *testing.T) {
	t.Parallel()
	p := testkit.NewProject(t)
	app := testkit.Start(t, testkit.Env(t, testkit.Database(t), nil), Function).As(p.Token(t))
	web := p.MakeSecurityGroup(t, "web")
	network := testkit.Sandbox(t).NetworkID
	port, address := p.MakePort(t, network)
	made := p.Boot(t, "plugged", 2)
	path, other := "/v1/servers/"+made[0].ID+"/interfaces", "/v1/servers/"+made[1].ID+"/interfaces"
	for body, status := range map[string]int{
		`{}`: 400, `{"network": "absent"}`: 400, `{"port_id": "` + uuid.NewString() + `"}`: 404,
		`{"network": "x", "port_id": "` + port + `"}`:                          400,
		`{"fixed_ip": "10.0.0.1", "port_id": "` + port + `"}`:                  400,
		`{"network": "` + network + `", "fixed_ip": "nonsense"}`:               400,
		`{"network": "` + network + `", "fixed_ip": "192.0.2.77"}`:             400,
		`{"network": "` + network + `", "security_groups": ["absent"]}`:        400,
		`{"network": "` + network + `", "security_groups": [""]}`:              400,
		`{"port_id": "` + port + `", "security_groups": ["web", "web\u0000"]}`: 400,
	} {
		if a := app.Post(t, path, body); a.Status != status {
			t.Errorf("%s: got %d %s, want %d", body, a.Status, a.Body, status)
		}
	}
	attach := func(path, body string, status int) (i ServerInterface) {
		t.Helper()
		a := app.Post(t, path, body)
		if a.JSON(t, &i); a.Status != status {
			t.Fatalf("%s: got %d %s, want %d", body, a.Status, a.Body, status)
		}
		return i
	}
	first := attach(path, `{"network": "`+network+`", "security_groups": ["web"]}`, 201)
	if first.Network.ID != network || first.Network.Name == "" || len(first.FixedIPs) == 0 || first.MACAddress == "" ||
		len(first.SecurityGroups) != 1 || first.SecurityGroups[0] != (NamedID{web, "web"}) {
		t.Errorf("got %+v", first)
	}
	if again := attach(path, `{"network": "`+network+`"}`, 200); again.PortID != first.PortID ||
		len(again.SecurityGroups) != 1 {
		t.Errorf("again: got %+v", again)
	}
	if none := attach(path, `{"network": "`+network+`", "security_groups": []}`, 200); len(none.SecurityGroups) != 0 {
		t.Errorf("without groups: got %+v", none)
	}
	second := attach(path, `{"port_id": "`+port+`"}`, 201)
	if second.PortID != port || second.FixedIPs[0].IP != address || second.SecurityGroups[0].Name != "default" {
		t.Errorf("got %+v", second)
	}
	attach(path, `{"network": "`+network+`", "fixed_ip": "`+address+`"}`, 200)
	if a := app.Post(t, other, `{"port_id": "`+port+`"}`); a.Status != 409 ||
		!strings.Contains(string(a.Body), made[0].ID) {
		t.Errorf("a port in use: got %d %s", a.Status, a.Body)
	}
	var all ServerInterfaces
	if app.Get(t, path).JSON(t, &all); len(all.Interfaces) != 2 {
		t.Errorf("got %+v", all.Interfaces)
	}
	for _, id := range []string{first.PortID, port} {
		if a := app.Do(t, "DELETE", path+"/"+id, ""); a.Status != 204 {
			t.Errorf("got %d %s", a.Status, a.Body)
		}
	}
	testkit.Eventually(t, time.Minute, "the interfaces are detached", func() bool {
		time.Sleep(200 * time.Millisecond)
		app.Get(t, path).JSON(t, &all)
		return len(all.Interfaces) == 0
	})
	for _, path := range []string{path + "/" + port, other + "/" + port} {
		if a := app.Do(t, "DELETE", path, ""); a.Status != 404 {
			t.Errorf("detached: got %d %s", a.Status, a.Body)
		}
	}
}

// TestInterfaceHalfway: an interface is attached, and its security groups are not changed. The error says so, and the
// same request does the rest. A change of others at the same time stays.
func TestInterfaceHalfway(t *testing.T) {
	t.Parallel()
	p := testkit.NewProject(t)
	web, extra := p.MakeSecurityGroup(t, "web"), p.MakeSecurityGroup(t, "extra")
	server := p.Boot(t, "halfway", 1)[0].ID
	var fails, interferes atomic.Bool
	neutron := testkit.Instead(t, testkit.Endpoint(t, "network"), func(w http.ResponseWriter, r *http.Request) bool {
		if r.Method != http.MethodPut {
			return false
		}
		if interferes.Swap(false) { // another request is faster
			port := r.URL.Path[strings.LastIndex(r.URL.Path, "/")+1:]
			if err := p.Session(t).SetPortGroups(t.Context(), port, []string{extra}); err != nil {
				t.Error(err)
			}
		}
		if fails.Load() {
			w.WriteHeader(http.StatusServiceUnavailable)
		}
		return fails.Load()
	})
	env := testkit.RedirectTo(t, map[string]string{"network": neutron}).Env(t, "demo")
	app := testkit.Start(t, testkit.Env(t, testkit.Database(t), env), Function).As(p.Token(t))
	path := "/v1/servers/" + server
	body := `{"network": "` + testkit.Sandbox(t).NetworkID + `", "security_groups": ["web"]}`
	fails.Store(true)
	if a := app.Post(t, path+"/interfaces", body); a.Status != 503 ||
		!strings.Contains(string(a.Body), "the interface is attached") {
		t.Errorf("got %d %s", a.Status, a.Body)
	}
	fails.Store(false)
	var made ServerInterface
	if a := app.Post(t, path+"/interfaces", body); a.Status != 200 {
		t.Errorf("then: got %d %s", a.Status, a.Body)
	} else if a.JSON(t, &made); len(made.SecurityGroups) != 1 || made.SecurityGroups[0].ID != web {
		t.Errorf("then: got %+v", made)
	}
	interferes.Store(true)
	if a := app.Do(t, "DELETE", path+"/security-groups/"+web, ""); a.Status != 204 {
		t.Errorf("got %d %s", a.Status, a.Body)
	}
	interferes.Store(true)
	if a := app.Post(t, path+"/security-groups", `{"security_group": "web"}`); a.Status != 201 {
		t.Errorf("got %d %s", a.Status, a.Body)
	}
	var all ServerSecurityGroups
	app.Get(t, path+"/security-groups").JSON(t, &all)
	var got []string
	for _, g := range all.SecurityGroups {
		got = append(got, g.Name)
	}
	if !slices.Equal(got, []string{"extra", "web"}) {
		t.Errorf("got %v", got)
	}
}

// TestPortsFor: ports without port security take no security groups.
func TestPortsFor(t *testing.T) {
	t.Parallel()
	all := []domain.Interface{{ID: "a"}, {ID: "b", IsSecured: true}}
	got, err := portsFor(domain.Server{}, all, "")
	if err != nil || len(got) != 1 || got[0].ID != "b" || len(all) != 2 {
		t.Errorf("got %v %v", got, err)
	}
	if _, err := portsFor(domain.Server{}, all, "a"); err == nil {
		t.Error("a port without port security is taken")
	}
}
