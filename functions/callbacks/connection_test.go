package callbacks

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/postgres"
	"github.com/cloudfn/cloudfn/shared/testkit"
)

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

// TestReadersCannotChange checks a token that only reads.
func TestReadersCannotChange(t *testing.T) {
	t.Parallel()
	p := testkit.BorrowProject(t)
	app := testkit.Start(t, testkit.Env(t, testkit.Database(t), nil), Function)
	c := create(t, app.As(p.Token(t)), `{"url": "https://receiver.example.com"}`)
	reads := app.As(p.ReaderToken(t))
	path := "/v1/callbacks/" + c.ID.String()
	for route, want := range map[[2]string]int{
		{"GET", "/v1/callbacks"}: 200, {"GET", path}: 200, {"GET", path + "/deliveries"}: 200, {"POST", "/v1/callbacks"}: 403,
		{"PATCH", path}:  403,
		{"DELETE", path}: 403, {"POST", path + "/secret"}: 403, {"POST", path + "/test"}: 403,
		{"POST", path + "/deliveries/" + uuid.NewString() + "/redeliver"}: 403,
		{"DELETE", "/v1/callbacks/" + uuid.NewString()}:                   403,
	} {
		if a := reads.Do(t, route[0], route[1], `{"url": "https://a.example.com"}`, "Content-Type",
			"application/json"); a.Status != want {
			t.Errorf("%v: got %d %s, want %d", route, a.Status, a.Body, want)
		}
	}
}
