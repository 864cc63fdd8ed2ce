package launch

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/testkit"
)

// body is a request for the sandbox's smallest flavor, with changes.
func body(t *testing.T, changes object) string {
	t.Helper()
	f := testkit.Sandbox(t)
	in := object{"name": "server", "flavor": f.Flavor, "image": f.Image, "networks": []string{f.Network}}
	maps.Copy(in, changes)
	maps.DeleteFunc(in, func(_ string, v any) bool { return v == nil })
	text, err := json.Marshal(in)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

func start(t *testing.T) (*testkit.Project, *testkit.Client, string) {
	t.Helper()
	p := testkit.BorrowProject(t)
	database := testkit.Database(t)
	return p, testkit.Start(t, testkit.Env(t, database, nil), Function).As(p.Token(t)), database
}

// TestLaunchByName launches servers by names and checks them in Nova. Glance takes the text before the first colon of a
// filter for an operator.
func TestLaunchByName(t *testing.T) {
	t.Parallel()
	p, app, database := start(t)
	id := uuid.NewString()
	const text, zipped = "#cloud-config\n# canary-user-data", "\x1f\x8b\x08\x00\xff\xfe canary-user-data"
	images := map[string]string{}
	for _, name := range []string{"ubuntu:22.04", "in:cirros", "eq:x"} {
		images[name] = p.MakeImage(t, name, nil)
		var report launchReport
		a := app.Post(t, "/v1/launch?dry_run=true", body(t, object{"image": name}))
		if a.JSON(t, &report); !report.OK || len(report.Resolved) != 1 || report.Resolved[0].ImageID != images[name] {
			t.Errorf("dry run with %s: got %d %s, want %s", name, a.Status, a.Body, images[name])
		}
	}
	a := app.Post(t, "/v1/launch", body(t, object{
		"id": id, "name": "wëb ✓", "image": "ubuntu:22.04", "instances": []object{
			{},
			{"image": "in:cirros", "user_data_base64": base64.StdEncoding.EncodeToString([]byte(zipped))},
		},
		"user_data": text,
		"metadata":  object{"role": "web"}, "security_groups": []string{"default"}, "availability_zone": "nova",
	}))
	var order Order
	a.JSON(t, &order)
	if a.Status != 202 || a.Header.Get("Location") != "/v1/launch/"+id || len(order.Instances) != 2 ||
		order.Status != domain.OrderRunning {
		t.Fatalf("got %d %v %s", a.Status, a.Header, a.Body)
	}
	testkit.Eventually(t, 4*time.Minute, "the order is done", func() bool {
		app.Get(t, "/v1/launch/"+id).JSON(t, &order)
		return order.Status == domain.OrderDone
	})
	made := p.Servers(t)
	for k, i := range order.Instances {
		n := slices.IndexFunc(made, func(s testkit.Server) bool { return s.ID == i.ServerID })
		if n < 0 {
			t.Fatalf("Nova has no server %s: %+v", i.ServerID, made)
		}
		s := made[n]
		if i.State != domain.InstanceActive || s.Status != "ACTIVE" || s.Name != i.Name ||
			s.Metadata["role"] != "web" || !slices.Contains(*s.Tags, i.ID.String()) {
			t.Errorf("instance %+v, server %+v", i, s)
		}
		if name := []string{"ubuntu:22.04", "in:cirros"}[k]; s.Image["id"] != images[name] {
			t.Errorf("the image of server %d is %v, want %s", k, s.Image, images[name])
		}
		if data := testkit.UserData(t, s.ID); data != []string{text, zipped}[k] {
			t.Errorf("the user_data of server %d is %q", k, data)
		}
	}
	if order.Instances[0].Name != "wëb ✓-1" || order.Instances[1].Name != "wëb ✓-2" {
		t.Errorf("the instances are %+v", order.Instances)
	}
	// user_data is nowhere in our database.
	if dump := testkit.Dump(t, database); strings.Contains(dump, "canary-user-data") {
		t.Error("user_data is in the database")
	}
}

// TestSameIDTwice gives the same order for the same request, and a conflict for another.
func TestSameIDTwice(t *testing.T) {
	t.Parallel()
	p, app, _ := start(t)
	id := uuid.NewString()
	request := body(t, object{"id": id, "name": "once"})
	var first, second Order
	if a := app.Post(t, "/v1/launch", request); a.Status != 202 {
		t.Fatalf("got %d %s", a.Status, a.Body)
	} else {
		a.JSON(t, &first)
	}
	// The same request, with other white space and in another order of fields.
	var fields object
	if err := json.Unmarshal([]byte(request), &fields); err != nil {
		t.Fatal(err)
	}
	again, _ := json.MarshalIndent(fields, "", "   ")
	if a := app.Post(t, "/v1/launch", string(again)); a.Status != 200 {
		t.Errorf("the same request: got %d %s", a.Status, a.Body)
	} else if a.JSON(t, &second); second.Instances[0].ServerID != first.Instances[0].ServerID {
		t.Errorf("first %+v, then %+v", first, second)
	}
	if a := app.Post(t, "/v1/launch", body(t, object{"id": id, "name": "other"})); a.Status != 409 {
		t.Errorf("another request under the same id: got %d %s", a.Status, a.Body)
	}
	if n := len(p.Servers(t)); n != 1 {
		t.Errorf("Nova has %d servers, want 1", n)
	}
	// Another project may use the same id, and learns nothing.
	alt := app.As(testkit.Token(t, "alt"))
	if a := alt.Get(t, "/v1/launch/"+id); a.Status != 404 {
		t.Errorf("alt: got %d %s", a.Status, a.Body)
	}
	if a := alt.Post(t, "/v1/launch?dry_run=true", body(t, object{"id": id})); a.Status != 200 {
		t.Errorf("alt, dry run: got %d %s", a.Status, a.Body)
	}
}

// TestLongSameIDConcurrently sends one order twenty times at once.
func TestLongSameIDConcurrently(t *testing.T) {
	t.Parallel()
	p, app, _ := start(t)
	request := body(t, object{"id": uuid.NewString(), "count": 3})
	var all sync.WaitGroup
	statuses := make([]int, 20)
	for i := range statuses {
		all.Go(func() { statuses[i] = app.Post(t, "/v1/launch", request).Status })
	}
	all.Wait()
	slices.Sort(statuses)
	if statuses[18] != 200 || statuses[19] != 202 {
		t.Errorf("one is to answer 202 and the others 200, got %v", statuses)
	}
	if n := len(p.Servers(t)); n != 3 {
		t.Errorf("Nova has %d servers, want 3", n)
	}
}

// TestLaunchRejectedByNova passes on Nova's status and message with the order's id, and keeps the order as failed.
func TestLaunchRejectedByNova(t *testing.T) {
	t.Parallel()
	f := testkit.Sandbox(t)
	_, app, _ := start(t)
	id := uuid.NewString()
	a := app.Post(t, "/v1/launch", body(t, object{"id": id, "image": f.RetiredID}))
	if a.Status != 400 && a.Status != 403 || !strings.Contains(string(a.Body), `"detail":"nova: `) ||
		!strings.Contains(string(a.Body), "(order "+id+")") {
		t.Errorf("a deactivated image: got %d %s", a.Status, a.Body)
	}
	var order Order
	app.Get(t, "/v1/launch/"+id).JSON(t, &order)
	if order.Status != domain.OrderFailed || order.Instances[0].Error == nil {
		t.Errorf("the order is %+v", order)
	}
}

// TestLongLaunchOverQuota has room for two of three servers: the order ends as Nova decides.
func TestLongLaunchOverQuota(t *testing.T) {
	t.Parallel()
	p, app, _ := start(t)
	p.SetQuota(t, 2)
	var order Order
	a := app.Post(t, "/v1/launch", body(t, object{"count": 3}))
	a.JSON(t, &order)
	if a.Status != 202 {
		t.Fatalf("got %d %s", a.Status, a.Body)
	}
	testkit.Eventually(t, 4*time.Minute, "the order ends", func() bool {
		app.Get(t, fmt.Sprintf("/v1/launch/%s", order.ID)).JSON(t, &order)
		return order.Status != domain.OrderRunning
	})
	// Nova counts a server only after its conductor has stored it, so it may accept all three, count once more, and put
	// one or even more into ERROR. The order must agree with its decision, with the reason.
	active := map[string]bool{}
	for _, s := range p.Servers(t) {
		active[s.ID] = s.Status == "ACTIVE"
	}
	running := 0
	for _, i := range order.Instances {
		if active[i.ServerID] {
			running++
		}
		if active[i.ServerID] != (i.State == domain.InstanceActive) || active[i.ServerID] != (i.Error == nil) {
			t.Errorf("Nova runs it: %v, the order says %+v", active[i.ServerID], i)
		}
	}
	want := domain.OrderPartial
	if running == 0 {
		want = domain.OrderFailed
	}
	if running > 2 || order.Status != want {
		t.Errorf("%d run and the order is %s, want 2 at most and %s", running, order.Status, want)
	}
	if a := app.Post(t, "/v1/launch", body(t, nil)); a.Status != 403 ||
		!strings.Contains(string(a.Body), "quota_exceeded") {
		t.Errorf("one more: got %d %s, want 403", a.Status, a.Body)
	}
}
