package launch

import (
	"net/url"
	"slices"
	"strings"
	"testing"

	"github.com/google/uuid"

	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/testkit"
)

// insertOrder stores an order without requesting servers from Nova.
const insertOrder = `
with o as (
    insert into orders (project_id, id, domain_id, user_id, body_sha256, spec, status, connection_id)
    values ($1, $2, '', '', '', '{}', $3, nullif($4, '00000000-0000-0000-0000-000000000000'::uuid)) returning *
)
insert into instances (project_id, id, order_id, position, name, state, origin)
select project_id, gen_random_uuid(), id, 0, 'old', 'requested', 'launched' from o`

func ids(page OrderPage) (ids []string) {
	for _, o := range page.Orders {
		ids = append(ids, o.ID.String())
	}
	return ids
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
		path = value(page.Next)
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
			(page.Orders[n].Callback != nil) == tc.callback && value(page.Orders[n].ConnectionID) == d.ID
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
