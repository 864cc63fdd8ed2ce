package launch

import (
	"net/http"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"

	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/testkit"
)

// awaitOrder reads an order until it has a status.
func awaitOrder(t *testing.T, app *testkit.Client, id string, status domain.OrderStatus) (order Order) {
	t.Helper()
	testkit.Eventually(t, 2*time.Minute, "the order is "+string(status), func() bool {
		time.Sleep(time.Second)
		app.Get(t, "/v1/launch/"+id).JSON(t, &order)
		return order.Status == status
	})
	return order
}

// TestFloatingIP: a server gets a new floating IP, and another one of the project, in the real Neutron. The order shows
// them, and Nova does.
func TestFloatingIP(t *testing.T) {
	t.Parallel()
	p, app, _ := start(t)
	routed := p.RoutedNetwork(t, "inside", "10.47.0.0/24")
	own, err := p.Session(t).CreateFloatingIP(t.Context(), domain.FloatingIPRequest{NetworkID: routed.ExternalID})
	if err != nil {
		t.Fatal(err)
	}
	id := uuid.NewString()
	a := app.Post(t, "/v1/launch", body(t, object{
		"id": id, "networks": []string{"inside"}, "floating_ip": true,
		"instances": []object{{}, {"floating_ip": own.Address}, {"floating_ip": false}, {"floating_ip": "public"}},
	}))
	if a.Status != 202 {
		t.Fatalf("got %d %s", a.Status, a.Body)
	}
	order := awaitOrder(t, app, id, domain.OrderDone)
	all := p.FloatingIPs(t)
	if len(all) != 3 || order.Instances[1].FloatingIP != own.Address || order.Instances[2].FloatingIP != "" {
		t.Errorf("got %+v and %+v", order.Instances, all)
	}
	for n, i := range order.Instances {
		server, err := p.Session(t).Server(t.Context(), i.ServerID)
		var shown string
		for _, address := range server.Addresses {
			if address.Type == "floating" {
				shown = address.IP
			}
		}
		if err != nil || shown != i.FloatingIP || (shown == "") != (n == 2) {
			t.Errorf("server %d has %q in Nova and %q in the order (%v)", n, shown, i.FloatingIP, err)
		}
	}
}

// TestFloatingIPsAreRolledBack: an order whose floating IPs the quota refuses is rolled back, and the one that existed
// is free. The quota has room for none: of two that are requested concurrently, Neutron may let both pass.
func TestFloatingIPsAreRolledBack(t *testing.T) {
	t.Parallel()
	p, app, _ := start(t)
	routed := p.RoutedNetwork(t, "inside", "10.48.0.0/24")
	own, err := p.Session(t).CreateFloatingIP(t.Context(), domain.FloatingIPRequest{NetworkID: routed.ExternalID})
	if err != nil {
		t.Fatal(err)
	}
	p.SetFloatingIPQuota(t, 1)
	id := uuid.NewString()
	app.Post(t, "/v1/launch", body(t, object{
		"id": id, "networks": []string{"inside"}, "on_failure": "rollback",
		"instances": []object{{"floating_ip": true}, {"floating_ip": own.Address}, {"floating_ip": true}},
	}))
	awaitOrder(t, app, id, domain.OrderRolledBack)
	testkit.Eventually(t, time.Minute, "the project's own is left, and free", func() bool {
		all := p.FloatingIPs(t)
		return len(all) == 1 && all[0].ID == own.ID && all[0].PortID == ""
	})
}

// TestWrongFloatingIPs are rejected with their field before anything is stored, by a dry run, too.
func TestWrongFloatingIPs(t *testing.T) {
	t.Parallel()
	p, app, _ := start(t)
	p.RoutedNetwork(t, "inside", "10.49.0.0/24")
	p.Network(t, "alone", "10.50.0.0/24")
	p.SetFloatingIPQuota(t, 1)
	for name, tc := range map[string]struct {
		changes object
		status  int
		field   string
	}{
		"no such network": {object{"networks": []string{"inside"}, "floating_ip": "absent"}, 400, "floating_ip"},
		"not external":    {object{"networks": []string{"inside"}, "floating_ip": "alone"}, 400, "floating_ip"},
		"no such address": {object{"networks": []string{"inside"}, "floating_ip": "203.0.113.1"}, 400, "floating_ip"},
		"not IPv4":        {object{"networks": []string{"inside"}, "floating_ip": "::1"}, 400, "floating_ip"},
		"no router":       {object{"networks": []string{"alone"}, "floating_ip": true}, 409, "floating_ip"},
		"through another": {object{"connection_id": uuid.NewString(), "floating_ip": "203.0.113.1"}, 400, "floating_ip"},
		"one for two":     {object{"count": 2, "floating_ip": "203.0.113.1"}, 400, "floating_ip"},
		"in an instance":  {object{"instances": []object{{"floating_ip": "::1"}}}, 400, "instances[0].floating_ip"},
		"of a wrong type": {object{"floating_ip": 1}, 400, "floating_ip"},
	} {
		a := app.Post(t, "/v1/launch", body(t, tc.changes))
		if a.Status != tc.status || !testkit.Names(t, a, tc.field) {
			t.Errorf("%s: got %d %s, want %d with %s", name, a.Status, a.Body, tc.status, tc.field)
		}
	}
	var report launchReport
	dry := object{"networks": []string{"inside"}, "floating_ip": true, "count": 2}
	app.Post(t, "/v1/launch?dry_run=true", body(t, dry)).JSON(t, &report)
	const want = "needs 2 floating IPs, 1 of 1 are left"
	if len(report.Problems) != 1 || !strings.Contains(report.Problems[0].Detail, want) {
		t.Errorf("a dry run found %+v", report.Problems)
	}
}

// TestCallsOfAPlainLaunch counts what an order without volumes and floating IPs costs: no call for either.
func TestCallsOfAPlainLaunch(t *testing.T) {
	t.Parallel()
	var mu sync.Mutex
	var calls []string
	ids := regexp.MustCompile(`[0-9a-f]{8}-[0-9a-f-]{27}|[0-9a-f]{32}`)
	services := map[string]string{}
	for _, service := range []string{"compute", "image", "network", "volumev3"} {
		services[service], _ = testkit.Intercept(t, testkit.Endpoint(t, service), func(r *http.Request) {
			mu.Lock()
			defer mu.Unlock()
			calls = append(calls, service+" "+r.Method+" "+ids.ReplaceAllString(r.URL.Path, "*"))
		})
	}
	p := testkit.BorrowProject(t)
	env := testkit.Env(t, testkit.Database(t), testkit.RedirectTo(t, services).Env(t, "demo"))
	app := testkit.Start(t, env, Function).As(p.Token(t))
	if a := app.Post(t, "/v1/launch", body(t, nil)); a.Status != 202 {
		t.Fatalf("got %d %s", a.Status, a.Body)
	}
	mu.Lock()
	defer mu.Unlock()
	slices.Sort(calls)
	want := []string{
		"compute GET /v2.1/flavors/detail", "compute POST /v2.1/servers",
		"image GET /v2/images", "network GET /v2.0/networks",
	}
	if diff := cmp.Diff(want, calls); diff != "" {
		t.Error(diff)
	}
}
