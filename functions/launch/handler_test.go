package launch

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/testkit"
)

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

// TestLongSameIDConcurrently sends one order twenty times concurrently.
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

// TestListOrders lists the project's orders page by page, also for a reader.
func TestListOrders(t *testing.T) {
	t.Parallel()
	p, app, database := start(t)
	conn := testkit.Connect(t, database)
	var empty OrderPage
	if a := app.Get(t, "/v1/launch"); a.Status != 200 || !strings.Contains(string(a.Body), `"orders":[]`) {
		t.Errorf("without orders: got %d %s", a.Status, a.Body)
	}
	statuses := []string{"partial", "failed", "done", "running"}
	want := make([]string, len(statuses)) // the newest first
	for n, status := range statuses {
		id := uuid.NewString()
		want[len(want)-1-n] = id
		exec(t, conn, insertOrder, p.ID, id, status, uuid.Nil)
	}
	var launched, shown, first Order
	callback := object{"url": "https://receiver.example.com/x"}
	app.Post(t, "/v1/launch", body(t, object{"count": 2, "callback": callback})).JSON(t, &launched)
	want = slices.Insert(want, 0, launched.ID.String())

	reader := app.As(p.ReaderToken(t))
	var read []string
	for path := "/v1/launch?limit=2"; path != ""; {
		var page OrderPage
		a := reader.Get(t, path)
		if a.Status != 200 {
			t.Fatalf("%s: got %d %s", path, a.Status, a.Body)
		}
		if a.JSON(t, &page); len(read) == 0 {
			first = page.Orders[0]
		}
		read = append(read, ids(page)...)
		path = domain.Deref(page.Next)
	}
	if !slices.Equal(read, want) {
		t.Errorf("got %v, want %v", read, want)
	}
	reader.Get(t, "/v1/launch/"+launched.ID.String()).JSON(t, &shown)
	if len(first.Instances) != 2 || first.Callback == nil || *first.Callback != *shown.Callback ||
		first.Callback.Secret != "" || first.CreatedAt != shown.CreatedAt {
		t.Errorf("listed %+v, shown %+v", first, shown)
	}
	var running OrderPage
	app.Get(t, "/v1/launch?status=running,failed&marker="+launched.ID.String()).JSON(t, &running)
	if !slices.Equal(ids(running), []string{want[1], want[3]}) || running.Next != nil ||
		running.Orders[0].Instances[0].Error.Code != "interrupted" {
		t.Errorf("running or failed: %+v", running)
	}
	app.As(testkit.Token(t, "alt")).Get(t, "/v1/launch").JSON(t, &empty)
	if slices.ContainsFunc(want, func(id string) bool { return slices.Contains(ids(empty), id) }) {
		t.Errorf("another project is shown %+v", empty)
	}
}

// TestListOrdersByConnection lists the orders of a connection, with the caller's own callbacks.
func TestListOrdersByConnection(t *testing.T) {
	t.Parallel()
	d := delegated(t, nil)
	var order Order
	callback := object{"url": "https://receiver.example.com/x"}
	d.app.Post(t, "/v1/launch", d.body(t, object{"callback": callback})).JSON(t, &order)
	exec(t, d.conn, insertOrder, d.ProjectID, uuid.NewString(), "done", uuid.Nil)
	path := "/v1/launch?connection_id=" + d.ID.String()
	owner, stranger := d.app.As(d.owner.Token(t)), d.app.As(testkit.Token(t, "demo"))
	for who, tc := range map[string]struct {
		client         *testkit.Client
		path           string
		status, orders int
		callback       bool
	}{
		"its caller":                    {d.app, path, 200, 1, true},
		"its caller, without naming it": {d.app, "/v1/launch", 200, 0, false},
		"the owner":                     {owner, path + "&status=running", 200, 1, false},
		"the owner, without naming it":  {owner, "/v1/launch", 200, 2, false},
		"a stranger":                    {stranger, path, 404, 0, false},
	} {
		var page OrderPage
		a := tc.client.Get(t, tc.path)
		if a.Status != tc.status {
			t.Errorf("%s: got %d %s", who, a.Status, a.Body)
			continue
		}
		a.JSON(t, &page)
		n := slices.Index(ids(page), order.ID.String())
		isRight := n < 0 ||
			(page.Orders[n].Callback != nil) == tc.callback && domain.Deref(page.Orders[n].ConnectionID) == d.ID
		if len(page.Orders) != tc.orders || !isRight {
			t.Errorf("%s: %s", who, a.Body)
		}
	}
	exec(t, d.conn, "update connections set status = 'lost', reason = 'why'")
	if a := d.app.Get(t, path); a.Status != 403 {
		t.Errorf("when it is lost: got %d %s", a.Status, a.Body)
	}
}

func TestListOrdersRejectsQueries(t *testing.T) {
	t.Parallel()
	_, app, _ := start(t)
	for query, field := range map[string]string{
		"status=nope": "status[0]", "status=done,": "status[1]", "status=DONE": "status[0]", "status=": "status",
		"status=done&status=failed": "status", "limit=0": "limit", "limit=1001": "limit", "limit=x": "limit",
		"marker=x": "marker", "marker=" + uuid.NewString(): "marker",
		"connection_id=x": "connection_id", "name=x": "name", "status=" + url.QueryEscape("done\x00"): "status",
	} {
		a := app.Get(t, "/v1/launch?"+query)
		if a.Status != 400 || !testkit.Names(t, a, field) {
			t.Errorf("%s: got %d %s", query, a.Status, a.Body)
		}
	}
	if a := app.As("").Get(t, "/v1/launch"); a.Status != 401 {
		t.Errorf("without a token: got %d %s", a.Status, a.Body)
	}
	if got := domain.OrderStatuses(); len(got) != len(domain.OrderTransitions) {
		t.Errorf("the statuses are %v", got)
	}
}

// TestLaunchesAreLimited by all replicas together; dry runs do not count.
func TestLaunchesAreLimited(t *testing.T) {
	t.Parallel()
	p := testkit.BorrowProject(t)
	env := testkit.Env(t, testkit.Database(t), map[string]string{"LAUNCH_RATE_LIMIT": "2"})
	one, two := testkit.Start(t, env, Function).As(p.Token(t)), testkit.Start(t, env, Function).As(p.Token(t))
	text := body(t, object{"flavor": "no-such-flavor"})
	for n, app := range []*testkit.Client{one, two} {
		if a := app.Post(t, "/v1/launch", text); a.Status == 429 {
			t.Fatalf("launch %d: got %d %s", n, a.Status, a.Body)
		}
	}
	for n, app := range []*testkit.Client{one, two} {
		if a := app.Post(t, "/v1/launch", text); a.Status != 429 ||
			a.Header.Get("RateLimit-Policy") != `"launch";q=2;w=60` {
			t.Errorf("replica %d: got %d %v %s", n, a.Status, a.Header, a.Body)
		}
		if a := app.Post(t, "/v1/launch?dry_run=true", text); a.Status != 200 {
			t.Errorf("replica %d, a dry run: got %d %s", n, a.Status, a.Body)
		}
	}
}

// TestRepeatedLaunchIsNotLimited: an order that is there already is shown, also when the limit is used up.
func TestRepeatedLaunchIsNotLimited(t *testing.T) {
	t.Parallel()
	d := delegated(t, nil)
	text := d.body(t, object{"id": uuid.NewString()})
	if a := d.app.Post(t, "/v1/launch", text); a.Status != 202 {
		t.Fatalf("got %d %s", a.Status, a.Body)
	}
	testkit.UseUp(t, d.conn, "launch")
	for text, want := range map[string]int{text: 200, d.body(t, object{"id": uuid.NewString()}): 429} {
		if a := d.app.Post(t, "/v1/launch", text); a.Status != want {
			t.Errorf("%s: got %d %s, want %d", text, a.Status, a.Body, want)
		}
	}
}
