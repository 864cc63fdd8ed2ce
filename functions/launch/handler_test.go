package launch

import (
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
func body(t *testing.T, changes map[string]any) string {
	t.Helper()
	f := testkit.Sandbox(t)
	in := map[string]any{"name": "server", "flavor": f.Flavor, "image": f.Image, "networks": []string{f.Network}}
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
	p := testkit.NewProject(t)
	database := testkit.Database(t)
	return p, testkit.Start(t, testkit.Env(t, database, nil), Function).As(p.Token(t)), database
}

// TestLaunchByName is the main job: a server by names, ACTIVE, with what was asked for, tagged with its UUID.
func TestLaunchByName(t *testing.T) {
	t.Parallel()
	p, app, database := start(t)
	id := uuid.NewString()
	a := app.Post(t, "/v1/launch", body(t, map[string]any{
		"id": id, "name": "wëb ✓", "count": 2, "user_data": "#cloud-config\n# canary-user-data", "metadata": map[string]string{"role": "web"},
		"security_groups": []string{"default"}, "availability_zone": "nova",
	}))
	var order answer
	a.JSON(t, &order)
	if a.Status != 202 || a.Header.Get("Location") != "/v1/launch/"+id || len(order.Instances) != 2 || order.Status != domain.OrderRunning {
		t.Fatalf("got %d %v %s", a.Status, a.Header, a.Body)
	}
	testkit.Eventually(t, 4*time.Minute, "the order is done", func() bool {
		app.Get(t, "/v1/launch/"+id).JSON(t, &order)
		return order.Status == domain.OrderDone
	})
	made := p.Servers(t)
	for _, i := range order.Instances {
		n := slices.IndexFunc(made, func(s testkit.Server) bool { return s.ID == i.ServerID })
		if n < 0 {
			t.Fatalf("Nova has no server %s: %+v", i.ServerID, made)
		}
		s := made[n]
		if i.State != domain.InstanceActive || s.Status != "ACTIVE" || s.Name != i.Name || s.Metadata["role"] != "web" || !slices.Contains(*s.Tags, i.ID.String()) {
			t.Errorf("instance %+v, server %+v", i, s)
		}
	}
	if names := []string{order.Instances[0].Name, order.Instances[1].Name}; !slices.Equal(names, []string{"wëb ✓-1", "wëb ✓-2"}) {
		t.Errorf("the names are %v", names)
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
	request := body(t, map[string]any{"id": id, "name": "once"})
	var first, second answer
	if a := app.Post(t, "/v1/launch", request); a.Status != 202 {
		t.Fatalf("got %d %s", a.Status, a.Body)
	} else {
		a.JSON(t, &first)
	}
	// The same request, with other white space and in another order of fields.
	var fields map[string]any
	if err := json.Unmarshal([]byte(request), &fields); err != nil {
		t.Fatal(err)
	}
	again, _ := json.MarshalIndent(fields, "", "   ")
	if a := app.Post(t, "/v1/launch", string(again)); a.Status != 200 {
		t.Errorf("again: got %d %s", a.Status, a.Body)
	} else if a.JSON(t, &second); second.Instances[0].ServerID != first.Instances[0].ServerID {
		t.Errorf("first %+v, then %+v", first, second)
	}
	if a := app.Post(t, "/v1/launch", body(t, map[string]any{"id": id, "name": "other"})); a.Status != 409 {
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
	if a := alt.Post(t, "/v1/launch?dry_run=true", body(t, map[string]any{"id": id})); a.Status != 200 {
		t.Errorf("alt, dry run: got %d %s", a.Status, a.Body)
	}
}

// TestSameIDAtOnce sends one order twenty times at the same moment.
func TestSameIDAtOnce(t *testing.T) {
	t.Parallel()
	p, app, _ := start(t)
	request := body(t, map[string]any{"id": uuid.NewString(), "count": 3})
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

// TestRefusedByNova passes on its status and words, and keeps the order as failed.
func TestRefusedByNova(t *testing.T) {
	t.Parallel()
	f := testkit.Sandbox(t)
	_, app, _ := start(t)
	id := uuid.NewString()
	a := app.Post(t, "/v1/launch", body(t, map[string]any{"id": id, "key_name": "no-such-key"}))
	if a.Status != 400 || !strings.Contains(string(a.Body), "nova: Invalid key_name provided") {
		t.Errorf("unknown key: got %d %s", a.Status, a.Body)
	}
	var order answer
	app.Get(t, "/v1/launch/"+id).JSON(t, &order)
	if order.Status != domain.OrderFailed || order.Instances[0].Error == nil {
		t.Errorf("the order is %+v", order)
	}
	if a := app.Post(t, "/v1/launch", body(t, map[string]any{"image": f.RetiredID})); a.Status != 400 && a.Status != 403 {
		t.Errorf("a deactivated image: got %d %s", a.Status, a.Body)
	}
}

func TestLaunchRefusals(t *testing.T) {
	t.Parallel()
	p, app, database := start(t)
	for name, tc := range map[string]struct {
		changes map[string]any
		status  int
		field   string
	}{
		"no name":            {map[string]any{"name": nil}, 400, "name"},
		"no flavor":          {map[string]any{"flavor": nil}, 400, "flavor"},
		"unknown flavor":     {map[string]any{"flavor": "m9.huge"}, 400, "flavor"},
		"unknown image":      {map[string]any{"image": "nope"}, 400, "image"},
		"unknown image id":   {map[string]any{"image": uuid.NewString()}, 400, "image"},
		"unknown network":    {map[string]any{"networks": []string{"nope"}}, 400, "networks[0]"},
		"count 0":            {map[string]any{"count": 0}, 400, "count"},
		"count -1":           {map[string]any{"count": -1}, 400, "count"},
		"count 101":          {map[string]any{"count": 101}, 400, "count"},
		"count as text":      {map[string]any{"count": "3"}, 400, "count"},
		"id is no uuid":      {map[string]any{"id": "42"}, 400, "id"},
		"unknown field":      {map[string]any{"flavr": "x"}, 400, "flavr"},
		"no connection's id": {map[string]any{"connection_id": "42"}, 400, "connection_id"},
		"networks as text":   {map[string]any{"networks": "private"}, 400, "networks"},
		"too much user_data": {map[string]any{"user_data": strings.Repeat("x", 50_000)}, 400, "user_data"},
		"NUL in the name":    {map[string]any{"name": "a\x00b"}, 400, "name"},
		"metadata of lists":  {map[string]any{"metadata": map[string]any{"a": []int{1}}}, 400, "metadata"},
	} {
		t.Run(name, func(t *testing.T) {
			if a := app.Post(t, "/v1/launch", body(t, tc.changes)); a.Status != tc.status || !testkit.Names(t, a, tc.field) {
				t.Errorf("got %d %s, want %d that names %s", a.Status, a.Body, tc.status, tc.field)
			}
		})
	}
	for name, tc := range map[string]struct {
		kind, body string
		status     int
	}{
		"not JSON":       {"text/plain", "{}", 415},
		"no type":        {"", "{}", 415},
		"an empty body":  {"application/json", "", 400},
		"half a body":    {"application/json", `{"name":`, 400},
		"a list":         {"application/json", "[]", 400},
		"more behind it": {"application/json", body(t, nil) + "{}", 400},
		"not UTF-8":      {"application/json; charset=utf-8", "{\"name\":\"\xff\"}", 400},
		"too deep":       {"application/json", strings.Repeat(`{"metadata":`, 20_000), 400},
		"too large":      {"application/json", `{"user_data":"` + strings.Repeat("x", 1<<20) + `"}`, 413},
	} {
		t.Run(name, func(t *testing.T) {
			if a := app.Do(t, "POST", "/v1/launch", tc.body, "Content-Type", tc.kind); a.Status != tc.status {
				t.Errorf("got %d %s, want %d", a.Status, a.Body, tc.status)
			}
		})
	}
	if n := testkit.Scalar[int](t, testkit.Pool(t, database), "select count(*)::int from orders"); n != 0 {
		t.Errorf("%d orders were stored", n)
	}
	if n := len(p.Servers(t)); n != 0 {
		t.Errorf("%d servers were made", n)
	}
}

// TestLaunchWithoutNetworks takes the only network there is, and asks when there are several.
func TestLaunchWithoutNetworks(t *testing.T) {
	t.Parallel()
	_, app, _ := start(t) // a project that has only the shared network
	if a := app.Post(t, "/v1/launch?dry_run=true", body(t, map[string]any{"networks": nil})); !strings.Contains(string(a.Body), `"ok":true`) {
		t.Errorf("one network: got %d %s", a.Status, a.Body)
	}
	a := app.As(testkit.Token(t, "demo")).Post(t, "/v1/launch", body(t, map[string]any{"networks": nil}))
	if a.Status != 409 || !testkit.Names(t, a, "networks") {
		t.Errorf("several networks: got %d %s", a.Status, a.Body)
	}
}

func TestDryRun(t *testing.T) {
	t.Parallel()
	f := testkit.Sandbox(t)
	p, app, database := start(t)
	p.SetQuota(t, 2)
	for name, tc := range map[string]struct {
		changes map[string]any
		fields  []string
	}{
		"all is well":       {nil, nil},
		"a community image": {map[string]any{"image": f.CommunityID}, nil},
		"many problems": {map[string]any{
			"image": f.RetiredID, "count": 3, "key_name": "nope", "security_groups": []string{"default", "nope"}, "availability_zone": "nope",
		}, []string{"availability_zone", "count", "image", "key_name", "security_groups"}},
		"an unknown name": {map[string]any{"flavor": "nope"}, []string{"flavor"}},
	} {
		t.Run(name, func(t *testing.T) {
			var got report
			a := app.Post(t, "/v1/launch?dry_run=true", body(t, tc.changes))
			a.JSON(t, &got)
			var fields []string
			for _, p := range got.Problems {
				fields = append(fields, p.Field)
			}
			slices.Sort(fields)
			if a.Status != 200 || got.OK != (len(tc.fields) == 0) || !slices.Equal(fields, tc.fields) {
				t.Errorf("got %d %s, want problems with %v", a.Status, a.Body, tc.fields)
			}
		})
	}
	if n := len(p.Servers(t)) + testkit.Scalar[int](t, testkit.Pool(t, database), "select count(*)::int from orders"); n != 0 {
		t.Errorf("a dry run left %d servers and orders", n)
	}
}

// TestOverQuota has room for two of three: the order ends with what Nova made of it.
func TestOverQuota(t *testing.T) {
	t.Parallel()
	p, app, _ := start(t)
	p.SetQuota(t, 2)
	var order answer
	a := app.Post(t, "/v1/launch", body(t, map[string]any{"count": 3}))
	a.JSON(t, &order)
	if a.Status != 202 {
		t.Fatalf("got %d %s", a.Status, a.Body)
	}
	testkit.Eventually(t, 4*time.Minute, "the order ends", func() bool {
		app.Get(t, fmt.Sprintf("/v1/launch/%s", order.ID)).JSON(t, &order)
		return order.Status != domain.OrderRunning
	})
	// Nova counts a server only once its conductor has stored it, so it may accept all three, count again, and put
	// one or even more into ERROR. Whatever it decides, the order says the same, and why.
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
	if a := app.Post(t, "/v1/launch", body(t, nil)); a.Status != 403 || !strings.Contains(string(a.Body), "quota_exceeded") {
		t.Errorf("one more: got %d %s, want 403", a.Status, a.Body)
	}
}
