package callbacks

import (
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"

	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/postgres"
	"github.com/cloudfn/cloudfn/shared/testkit"
)

// TestDeliveries lists them, and makes some by hand.
func TestDeliveries(t *testing.T) {
	t.Parallel()
	p := testkit.BorrowProject(t)
	database := testkit.Database(t)
	conn := testkit.Connect(t, database)
	app := testkit.Start(t, testkit.Env(t, database, nil), Function).As(p.Token(t))
	c := create(t, app, `{"url": "https://receiver.example.com"}`)
	other := create(t, app, `{"url": "https://other.example.com"}`)
	path := "/v1/callbacks/" + c.ID.String()
	for seq := range 5 {
		exec(t, conn, "insert into events (project_id, subject, seq, type, at, data) values ($1, 'subject', $2, $3, "+
			"now(), '{}')", p.ID, seq+1, domain.InstanceEvent)
	}
	exec(t, conn, "update deliveries set status = 'dead', attempts = 40, answer = 500, error = 'the receiver answered "+
		"500', attempted_at = now() where callback_id = $1 and event_seq = 2", c.ID)
	exec(t, conn, "update deliveries set status = 'delivered', attempts = 1, answer = 204, attempted_at = now() where "+
		"callback_id = $1 and event_seq = 1", c.ID)

	list := func(query string) (all []Delivery, pages int) {
		t.Helper()
		for next := path + "/deliveries" + query; next != ""; pages++ {
			var page DeliveryPage
			a := app.Get(t, next)
			if a.JSON(t, &page); a.Status != 200 {
				t.Fatalf("%s: got %d %s", next, a.Status, a.Body)
			}
			all, next = append(all, page.Deliveries...), domain.Deref(page.Next)
		}
		return all, pages
	}
	all, pages := list("?limit=2")
	seen := map[string]bool{}
	for i, d := range all {
		seen[d.EventID] = true
		if d.CallbackID != c.ID || d.Subject != "subject" || i > 0 && d.CreatedAt.After(all[i-1].CreatedAt) {
			t.Errorf("got %+v", d)
		}
	}
	if len(all) != 5 || len(seen) != 5 || pages != 3 {
		t.Errorf("got %d deliveries in %d pages", len(all), pages)
	}
	dead, _ := list("?status=dead")
	if len(dead) != 1 || dead[0].EventID != "subject:2" || dead[0].Attempts != 40 || dead[0].Answer != 500 ||
		dead[0].Error == "" || dead[0].AttemptedAt.IsZero() {
		t.Fatalf("the dead ones are %+v", dead)
	}
	due, _ := list("?status=due")
	if len(due) != 3 {
		t.Errorf("%d are due", len(due))
	}

	// Again, by hand: the same event in a delivery and a stream of its own.
	var again Delivery
	a := app.Post(t, path+"/deliveries/"+dead[0].ID.String()+"/redeliver", "")
	if a.JSON(t, &again); a.Status != 202 || again.ID == dead[0].ID || again.EventID != dead[0].EventID ||
		again.Status != domain.DeliveryDue || again.EventType != domain.InstanceEvent || again.Attempts != 0 {
		t.Errorf("got %d %+v", a.Status, again)
	}
	for what, want := range map[string]int{due[0].ID.String(): 409, uuid.NewString(): 404, "x": 404} {
		if a := app.Post(t, path+"/deliveries/"+what+"/redeliver", ""); a.Status != want {
			t.Errorf("redeliver %s: got %d %s, want %d", what, a.Status, a.Body, want)
		}
	}
	if a := app.Post(t, "/v1/callbacks/"+other.ID.String()+"/deliveries/"+dead[0].ID.String()+"/redeliver",
		""); a.Status != 404 {
		t.Errorf("another callback's delivery: got %d %s", a.Status, a.Body)
	}

	// A test: for this callback only, whatever events it has chosen.
	exec(t, conn, "update callbacks set events = $2 where id = $1", c.ID, []string{domain.OrderEvent})
	var test Delivery
	a = app.Post(t, path+"/test", "")
	if a.JSON(t, &test); a.Status != 202 || test.EventType != domain.CallbackTestEvent ||
		test.Subject != c.ID.String() || test.EventID != c.ID.String()+":1" || test.Status != domain.DeliveryDue {
		t.Errorf("got %d %+v", a.Status, test)
	}
	if n := testkit.Scalar[int](t, conn,
		"select count(*) from deliveries d join events e on e.project_id = d.event_project and e.subject = d.subject and "+
			"e.seq = d.event_seq where e.type = $1", domain.CallbackTestEvent); n != 1 {
		t.Errorf("%d callbacks get the test", n)
	}
	if n := testkit.Scalar[int](t, conn,
		"select count(*) from streams where callback_id = $1 and head = 0 and tail = 1 and next_at <= clock_timestamp() "+
			"and (stream like 'test/%' or stream like 'redelivery/%')", c.ID); n != 2 {
		t.Errorf("%d streams of deliveries made by hand", n)
	}
	exec(t, conn, "update callbacks set status = 'gone' where id = $1", c.ID)
	for _, action := range []string{"/test", "/deliveries/" + dead[0].ID.String() + "/redeliver"} {
		if a := app.Post(t, path+action, ""); a.Status != 409 {
			t.Errorf("%s of a gone one: got %d %s", action, a.Status, a.Body)
		}
	}
	if a := app.Get(t, path+"/deliveries?marker="+uuid.NewString()); a.Status != 400 || !testkit.Names(t, a, "marker") {
		t.Errorf("an unknown marker: got %d %s", a.Status, a.Body)
	}
}

// TestDeliveredEvent: a delivery is shown with the CloudEvent that its receiver gets, to the callback's project alone.
func TestDeliveredEvent(t *testing.T) {
	t.Parallel()
	p, q := testkit.BorrowProject(t), testkit.BorrowProject(t)
	database := testkit.Database(t)
	server := testkit.Start(t, testkit.Env(t, database, nil), Function)
	app := server.As(p.Token(t))
	c, other := create(t, app, `{"url": "https://receiver.example.com"}`), create(t, app, `{"url": "https://b.example.com"}`)
	exec(t, testkit.Connect(t, database), "insert into events (project_id, subject, seq, type, at, data) values "+
		`($1, 'subject', 7, $2, '2026-01-02T03:04:05.678901Z', '{"name": "a <b>", "n": [1, null]}')`, p.ID,
		domain.InstanceEvent)
	path := "/v1/callbacks/" + c.ID.String() + "/deliveries"
	var page DeliveryPage
	app.Get(t, path).JSON(t, &page)
	path += "/" + page.Deliveries[0].ID.String()
	var got DeliveryWithEvent
	app.Get(t, path).JSON(t, &got)
	want := CloudEvent{
		SpecVersion: "1.0", ID: "subject:7", Source: "/cloudfn/projects/" + p.ID, Type: domain.InstanceEvent,
		Subject: "subject", Time: time.Date(2026, 1, 2, 3, 4, 5, 678901000, time.UTC), Sequence: "00000000000000000007",
		DataContentType: "application/json", Data: map[string]any{"name": "a <b>", "n": []any{1.0, nil}},
	}
	if diff := cmp.Diff(want, got.Event); diff != "" || got.Delivery != page.Deliveries[0] {
		t.Errorf("got %+v %s", got, diff)
	}
	// An event of another project, as a callback of a connection gets it: without the actors of others.
	exec(t, testkit.Connect(t, database), `with e as (insert into events (project_id, subject, seq, type, at, data)
		values ('another', 'theirs', 1, $3, now(), jsonb_build_object('actor', jsonb_build_object('project_id', $4::text))),
			('another', 'ours', 1, $3, now(), jsonb_build_object('actor', jsonb_build_object('project_id', $1::text)))
		returning *)
		insert into deliveries (project_id, callback_id, stream, seq, event_project, subject, event_seq, created_at)
		select $1, $2, subject, 1, project_id, subject, seq, now() from e`, p.ID, c.ID, domain.InstanceEvent, q.ID)
	var all DeliveryPage
	app.Get(t, "/v1/callbacks/"+c.ID.String()+"/deliveries").JSON(t, &all)
	if len(all.Deliveries) != 3 {
		t.Errorf("got %+v", all)
	}
	for _, d := range all.Deliveries {
		var got DeliveryWithEvent
		app.Get(t, "/v1/callbacks/"+c.ID.String()+"/deliveries/"+d.ID.String()).JSON(t, &got)
		if _, hasActor := got.Event.Data["actor"]; hasActor != (d.Subject == "ours") {
			t.Errorf("%s: %v", d.Subject, got.Event.Data)
		}
	}
	for path, client := range map[string]*testkit.Client{
		path: server.As(q.Token(t)), strings.Replace(path, c.ID.String(), other.ID.String(), 1): app,
		strings.Replace(path, page.Deliveries[0].ID.String(), uuid.NewString(), 1): app,
	} {
		if a := client.Get(t, path); a.Status != 404 {
			t.Errorf("%s: got %d %s", path, a.Status, a.Body)
		}
	}
}

// TestOtherProjectsObjects: another project's instance or order is rejected as an absent one is, and another project's
// callback is not listed.
func TestOtherProjectsObjects(t *testing.T) {
	t.Parallel()
	p, q := testkit.BorrowProject(t), testkit.BorrowProject(t)
	database := testkit.Database(t)
	conn := testkit.Connect(t, database)
	app := testkit.Start(t, testkit.Env(t, database, nil), Function)
	mine, theirs := app.As(p.Token(t)), app.As(q.Token(t))
	absent, instance, order := uuid.New(), uuid.New(), uuid.New()
	mask := func(a testkit.Answer, id uuid.UUID) string {
		return fmt.Sprint(a.Status, strings.NewReplacer(id.String(), "ID", a.Header.Get("X-Request-Id"),
			"R").Replace(string(a.Body)))
	}
	exec(t, conn, "insert into orders (project_id, id, domain_id, user_id, body_sha256, spec, status) values ($1, $2, "+
		"'', '', '', '{}', 'running')", p.ID, order)
	exec(t, conn, "insert into instances (project_id, id, order_id, position, name, state, origin) "+
		"values ($1, $2, $3, 0, 'x', 'requested', 'launched')", p.ID, instance, order)
	for field, id := range map[string]uuid.UUID{"instance_id": instance, "order_id": order} {
		body := func(id uuid.UUID) string {
			return fmt.Sprintf(`{"url": "https://receiver.example.com", "%s": "%s"}`, field,
				strings.ToUpper(id.String()))
		}
		a, b := theirs.Post(t, "/v1/callbacks", body(id)), theirs.Post(t, "/v1/callbacks", body(absent))
		if a.Status != 400 || !testkit.Names(t, a, field) || mask(a, id) != mask(b, absent) {
			t.Errorf("%s: another project's: %d %s\nabsent: %d %s", field, a.Status, a.Body, b.Status, b.Body)
		}
		if c := create(t, mine, body(id)); c.InstanceID != instance && c.OrderID != order {
			t.Errorf("of its own: %+v", c)
		}
	}
	var list CallbackPage
	if theirs.Get(t, "/v1/callbacks").JSON(t, &list); len(list.Callbacks) != 0 || list.Callbacks == nil {
		t.Errorf("they see %+v", list.Callbacks)
	}
}

// TestMaxCallbacksPerProject: those of instances and orders count, also with concurrent requests. Those that are `gone`
// do not, so they cannot be resumed.
func TestMaxCallbacksPerProject(t *testing.T) {
	t.Parallel()
	p := testkit.BorrowProject(t)
	database := testkit.Database(t)
	conn := testkit.Connect(t, database)
	env := testkit.Env(t, database, map[string]string{"CALLBACKS_PER_PROJECT": "10"})
	app := testkit.Start(t, env, Function).As(p.Token(t))
	exec(t, conn, `insert into callbacks (project_id, id, user_id, url, status, secret, order_id)
		select project, gen_random_uuid(), 'u', 'https://receiver.example.com',
			case when n <= 5 then 'verified' else 'gone' end, '', case when n <= 2 then gen_random_uuid() end
		from generate_series(1, 30) n, unnest(array[$1, 'another']) project`, p.ID)
	var wg sync.WaitGroup
	answers := make(chan testkit.Answer, 20)
	for range cap(answers) {
		wg.Go(func() {
			a, err := app.Try(t, "POST", "/v1/callbacks", good, "Content-Type", "application/json")
			if err != nil {
				t.Error(err)
			}
			answers <- a
		})
	}
	wg.Wait()
	close(answers)
	got := map[int]int{}
	for a := range answers {
		got[a.Status]++
		if a.Status == 409 && !strings.Contains(string(a.Body), "at most 10 callbacks") {
			t.Errorf("got %s", a.Body)
		}
	}
	if got[201] != 5 || got[409] != 15 {
		t.Errorf("the answers are %v, want 5 that are created", got)
	}
	gone := testkit.Scalar[uuid.UUID](t, conn,
		"select id from callbacks where project_id = $1 and status = 'gone' limit 1", p.ID)
	for body, want := range map[string]int{
		`{"status": "verified"}`: 409, `{"url": "https://other.example.com"}`: 409,
		`{"events": []}`: 200,
	} {
		if a := app.Do(t, "PATCH", "/v1/callbacks/"+gone.String(), body, "Content-Type",
			"application/json"); a.Status != want {
			t.Errorf("a gone one, %s: got %d %s, want %d", body, a.Status, a.Body, want)
		}
	}
	distinct, pages := map[uuid.UUID]bool{}, 0
	for next := "/v1/callbacks?limit=20"; next != ""; pages++ {
		var page CallbackPage
		app.Get(t, next).JSON(t, &page)
		for _, c := range page.Callbacks {
			distinct[c.ID] = true
		}
		next = domain.Deref(page.Next)
	}
	if len(distinct) != 35 || pages != 2 {
		t.Errorf("listed are %d callbacks in %d pages", len(distinct), pages)
	}
}

// TestCallbackOfConnection gets the events through the connection, in another project, while its maker may act
// through it.
func TestCallbackOfConnection(t *testing.T) {
	t.Parallel()
	owner, p := testkit.BorrowProject(t), testkit.BorrowProject(t)
	database := testkit.Database(t)
	conn := testkit.Connect(t, database)
	db, err := postgres.Open(postgres.Config{URL: domain.Secret(database), MaxConns: 1}, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(db.Close)
	connections := postgres.Connections{DB: db}
	k, err := connections.Create(t.Context(), domain.Connection{
		ID: uuid.Must(uuid.NewV7()), ProjectID: owner.ID, DomainID: owner.DomainID, UserID: owner.UserID,
		Kind: domain.TrustConnection, DelegationID: "t",
		Actions: []domain.Permission{domain.MayStart}, UsableBy: []string{p.UserID}, Flavors: []domain.Flavor{},
		ExpiresAt: time.Now().Add(time.Hour),
	})
	if err != nil {
		t.Fatal(err)
	}
	app := testkit.Start(t, testkit.Env(t, database, nil), Function)
	mine, theirs := app.As(p.Token(t)), app.As(owner.Token(t))
	order, instance, own := uuid.New(), uuid.New(), uuid.New()
	exec(t, conn, "insert into orders (project_id, id, domain_id, user_id, body_sha256, spec, status, connection_id) "+
		"values ($1, $2, '', '', '', '{}', 'running', $3)", owner.ID, order, k.ID)
	for id, connection := range map[uuid.UUID]*uuid.UUID{instance: &k.ID, own: nil} {
		exec(t, conn, "insert into instances (project_id, id, position, name, state, origin, connection_id) values ($1, "+
			"$2, 0, 'x', 'active', 'launched', $3)", owner.ID, id, connection)
	}
	body := func(field string, id uuid.UUID) string {
		return fmt.Sprintf(`{"url": "https://receiver.example.com", "connection_id": "%s", "%s": "%s"}`,
			strings.ToUpper(k.ID.String()), field, id)
	}
	all := create(t, mine, `{"url": "https://receiver.example.com", "connection_id": "`+k.ID.String()+
		`", "events": ["cloudfn.action.state.v1", "cloudfn.connection.state.v1", "cloudfn.instance.state.v1"]}`)
	ofOrder, ofInstance := create(t, mine, body("order_id", order)), create(t, mine, body("instance_id", instance))
	for _, c := range []shown{all, ofOrder, ofInstance} {
		var got Callback
		if mine.Get(t, "/v1/callbacks/"+c.ID.String()).JSON(t, &got); got.ConnectionID != k.ID ||
			c.ConnectionID != k.ID {
			t.Errorf("it is shown as %+v", got)
		}
		if a := theirs.Get(t, "/v1/callbacks/"+c.ID.String()); a.Status != 404 {
			t.Errorf("the owner sees it: %d %s", a.Status, a.Body)
		}
	}
	for name, tc := range map[string]struct {
		app    *testkit.Client
		body   string
		status int
		want   string
	}{
		"an instance that is not the connection's": {
			mine, body("instance_id", own), 400,
			"must be the id of an instance of this connection, not",
		},
		"an instance that is absent": {
			mine, body("instance_id", uuid.New()), 400,
			"must be the id of an instance of this connection, not",
		},
		"an order that is absent": {
			mine, body("order_id", uuid.New()), 400,
			"must be the id of an order of this connection, not",
		},
		"the instance without the connection": {
			mine,
			fmt.Sprintf(`{"url": "https://receiver.example.com", "instance_id": "%s"}`, instance), 400,
			"must be the id of an instance of this project, not",
		},
		"no id": {
			mine, `{"url": "https://receiver.example.com", "connection_id": "7"}`,
			400, `"connection_id"`,
		},
		"a connection that is absent": {mine, `{"url": "https://receiver.example.com", "connection_id": "` +
			uuid.NewString() + `"}`, 404, "there is no connection"},
		"a stranger's": {
			app.As(testkit.Token(t, "demo")), body("order_id", order), 404,
			"there is no connection",
		},
	} {
		if a := tc.app.Post(t, "/v1/callbacks", tc.body); a.Status != tc.status ||
			!strings.Contains(string(a.Body), tc.want) {
			t.Errorf("%s: got %d %s, want %d and %s", name, a.Status, a.Body, tc.status, tc.want)
		}
	}
	notified := func() map[uuid.UUID]int {
		t.Helper()
		counts := map[uuid.UUID]int{}
		for _, c := range []shown{all, ofOrder, ofInstance} {
			counts[c.ID] = testkit.Scalar[int](t, conn, "select count(*)::int from deliveries where callback_id = $1", c.ID)
		}
		return counts
	}
	write := func(seq int) {
		t.Helper()
		exec(t, conn, `insert into events (project_id, subject, seq, type, at, connection_id, order_id, data)
			values ($1, $2, $3, $4, now(), $5, $6, jsonb_build_object('instance_id', $2::text))`,
			owner.ID, instance.String(), seq, domain.InstanceEvent, k.ID, order)
	}
	write(1)
	if got := notified(); got[all.ID] != 1 || got[ofOrder.ID] != 1 || got[ofInstance.ID] != 1 {
		t.Errorf("got %v", got)
	}
	var page DeliveryPage
	if mine.Get(t, "/v1/callbacks/"+all.ID.String()+"/deliveries").JSON(t, &page); len(page.Deliveries) != 1 ||
		page.Deliveries[0].Subject != instance.String() {
		t.Errorf("its deliveries are %+v", page)
	}
	if _, err := connections.End(t.Context(), owner.ID, k.ID, domain.ConnectionDeleted, "", true); err != nil {
		t.Fatal(err)
	}
	write(2)
	if got := notified(); got[all.ID] != 2 || got[ofOrder.ID] != 1 || got[ofInstance.ID] != 1 {
		t.Errorf("after its deletion: got %v, want its last event at the first", got)
	}
	if a := mine.Post(t, "/v1/callbacks", body("order_id", order)); a.Status != 404 {
		t.Errorf("after it was deleted: %d %s", a.Status, a.Body)
	}
}
