package postgres_test

import (
	"errors"
	"fmt"
	"testing"

	"github.com/google/uuid"

	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/postgres"
	"github.com/cloudfn/cloudfn/shared/testkit"
)

// idle stores an instance of the connection that is stopped, whose order has ended.
func (l testDB) idle(t *testing.T, c domain.Connection, f domain.Flavor, labels map[string]string) uuid.UUID {
	t.Helper()
	o := connectedOrder(c, 1)
	i := &o.Instances[0]
	i.Spec = domain.LaunchSpec{Metadata: labels, ImageID: debian, ImageRef: "debian"}
	i.Spec.Sized(f)
	must(l.Place(t.Context(), o, 0))(t)
	noError(t, change(t, l.Orders, []domain.Instance{with(*i, uuid.NewString(), domain.InstanceStopped)}))
	noError(t, l.Finalize(t.Context(), finalStatus(get(t, l.Orders, o))))
	return i.ID
}

// reusing is an order that takes idle instances.
func reusing(c domain.Connection, n int) domain.Order {
	o := connectedOrder(c, n)
	o.Spec.Reuse = true
	return o
}

// debian is the id of an image.
const debian = "7d3f1d6c-52b8-4b0e-9b7c-6f0f5a1f7c42"

var (
	fits = domain.Flavor{ID: "fits", VCPUs: 2, RAMMB: 2048, DiskGB: 10}
	big  = domain.Flavor{ID: "big", VCPUs: 4, RAMMB: 8192, DiskGB: 80}
)

// TestReuse: an order reuses the smallest instance that suffices, and none that is in use.
func TestReuse(t *testing.T) {
	t.Parallel()
	l := newTestDB(t)
	c, other := l.storeConnection(t, domain.ConnectionQuota{}, nil), l.storeConnection(t, domain.ConnectionQuota{}, nil)
	labels := map[string]string{"pool": "a", "more": "x"}
	larger := l.idle(t, c, big, labels)
	smaller := l.idle(t, c, fits, labels)
	busy := map[string]uuid.UUID{}
	for name, f := range map[string]domain.Flavor{
		"too few vcpus": {ID: "f", VCPUs: 1, RAMMB: 2048, DiskGB: 10}, "too little memory": {
			ID: "f", VCPUs: 2, RAMMB: 2047,
			DiskGB: 10,
		},
		"too small a disk": {ID: "f", VCPUs: 2, RAMMB: 2048, DiskGB: 9},
	} {
		busy[name] = l.idle(t, c, f, labels)
	}
	busy["other labels"] = l.idle(t, c, fits, map[string]string{"pool": "b"})
	busy["no labels"] = l.idle(t, c, fits, nil)
	busy["another connection's"] = l.idle(t, other, fits, labels)
	for name, sql := range map[string]string{
		"an order that runs": `update orders set status = 'running' where id = (select order_id from instances where id = $1)`,
		"an action that runs": fmt.Sprintf(`insert into actions (project_id, id, connection_id, instance_id, user_id, verb)
			select 'p1', gen_random_uuid(), '%s', $1, 'u1', 'start'`, c.ID),
		"disconnected":                        "update instances set disconnected_at = now() where id = $1",
		"missed":                              "update instances set missed_at = now() where id = $1",
		"active":                              "update instances set state = 'active' where id = $1",
		"being started":                       "update instances set state = 'updating' where id = $1",
		"connected, and stopped by its owner": "update instances set origin = 'connected' where id = $1",
		"taken back by its owner":             "update instances set reusable = false where id = $1",
		"another image":                       `update instances set spec = spec || '{"image": "ubuntu", "image_id": "x"}' where id = $1`,
		"from a volume":                       `update instances set spec = spec - 'image' || '{"image_id": ""}' where id = $1`,
		"without server":                      "update instances set server_id = null where id = $1",
		"another project":                     "update instances set project_id = 'p2', order_id = null where id = $1",
	} {
		busy[name] = l.idle(t, c, fits, labels)
		l.exec(t, sql, busy[name])
	}
	placed := func(o domain.Order) []uuid.UUID {
		t.Helper()
		claim := must(l.Place(t.Context(), o, 0))(t)
		var ids []uuid.UUID
		for _, i := range get(t, l.Orders, o).Instances {
			ids = append(ids, i.ID)
		}
		if again, err := l.Place(t.Context(), o, 0); err != nil || again.Fresh || !claim.Fresh {
			t.Errorf("again: %t %v", again.Fresh, err)
		}
		return ids
	}
	one, rest := reusing(c, 1), reusing(c, 3)
	if got := placed(one); len(got) != 1 || got[0] != smaller {
		t.Errorf("taken was %v, want %s", got, smaller)
	}
	if got := placed(rest); len(got) != 3 || got[0] != larger || got[1] != rest.Instances[1].ID ||
		got[2] != rest.Instances[2].ID {
		t.Errorf("taken were %v, want %s and two new ones", got, larger)
	}
	for id, order := range map[uuid.UUID]uuid.UUID{smaller: one.ID, larger: rest.ID} {
		events := testkit.Scalar[string](t, l.conn, `select string_agg(seq || ' ' || (data->>'state'), ', ' order by seq) from events
			where subject = $1::text and order_id = $2`, id, order)
		if events != "3 stopped" {
			t.Errorf("the order that reuses %s has the events %q", id, events)
		}
	}
	for name, id := range busy {
		if testkit.Scalar[bool](t, l.conn, "select coalesce(order_id = any($2), false) from instances where id = $1", id,
			[]uuid.UUID{one.ID, rest.ID}) {
			t.Errorf("taken was one that is busy: %s", name)
		}
	}
	plain := connectedOrder(c, 1)
	l.idle(t, c, fits, labels)
	if got := placed(plain); got[0] != plain.Instances[0].ID {
		t.Error("an idle instance was reused without a request for it")
	}
}

// TestReuseConcurrently: of several concurrent orders, one reuses an idle instance, and that uses no more of the quota.
func TestReuseConcurrently(t *testing.T) {
	t.Parallel()
	l := newTestDB(t)
	three := 3
	for range 25 {
		c := l.storeConnection(t, domain.ConnectionQuota{Instances: &three}, nil)
		first, second := l.idle(t, c, fits, map[string]string{"pool": "a"}), l.idle(t, c, fits,
			map[string]string{"pool": "a"})
		orders := []domain.Order{reusing(c, 1), reusing(c, 1), reusing(c, 1)}
		for _, err := range l.placeConcurrently(t, orders...) {
			if err != nil {
				t.Fatal(err)
			}
		}
		taken := map[uuid.UUID]int{}
		for _, o := range orders {
			got := get(t, l.Orders, o).Instances
			if len(got) != 1 {
				t.Fatalf("an order has %d instances", len(got))
			}
			taken[got[0].ID]++
		}
		if used := l.used(t, c); len(taken) != 3 || taken[first] != 1 || taken[second] != 1 || used.Instances != 3 {
			t.Fatalf("taken were %v, used are %+v", taken, used)
		}
		// There is no idle one, and no room: nothing is taken back from those orders.
		if _, err := l.Place(t.Context(), reusing(c, 1), 0); apperr.CodeOf(err) != apperr.Quota {
			t.Fatalf("a fourth: %v", err)
		}
		must(postgres.Connections{DB: l.DB}.End(t.Context(), "p1", c.ID, domain.ConnectionDeleted, "",
			true))(t)
	}
}

// TestReuseRollsBack: an order that fails leaves the idle instance with its earlier order.
func TestReuseRollsBack(t *testing.T) {
	t.Parallel()
	l := newTestDB(t)
	two := 2
	c := l.storeConnection(t, domain.ConnectionQuota{Instances: &two}, nil)
	id := l.idle(t, c, fits, map[string]string{"pool": "a"})
	order := testkit.Scalar[uuid.UUID](t, l.conn, "select order_id from instances where id = $1", id)
	wantCode(t, "got", errOf(l.Place(t.Context(), reusing(c, 3), 0)), apperr.Quota)
	if got := testkit.Scalar[uuid.UUID](t, l.conn, "select order_id from instances where id = $1", id); got != order {
		t.Error("it was taken all the same")
	}
}

// TestPlaceRejectsTakenIDs: events are distinguished by the ids of their subjects, so no two resources of a project may
// have the same id.
func TestPlaceRejectsTakenIDs(t *testing.T) {
	t.Parallel()
	l := newTestDB(t)
	c := l.storeConnection(t, domain.ConnectionQuota{}, nil)
	known := connectedOrder(c, 1)
	must(l.Place(t.Context(), known, 0))(t)
	callback, err := postgres.Callbacks{DB: l.DB}.Create(t.Context(), domain.Callback{
		Most:      100,
		ProjectID: "p1", ID: uuid.New(),
		UserID: "u1", URL: "https://a.example", Secret: []byte("x"),
	})
	if err != nil {
		t.Fatal(err)
	}
	action, err := postgres.Actions{DB: l.DB}.Create(t.Context(), domain.DelegatedAction{
		ID: uuid.New(), ProjectID: "p1", ConnectionID: c.ID, InstanceID: known.Instances[0].ID, UserID: "u1",
		Request: domain.ActionRequest{Action: domain.Start},
	})
	if err != nil {
		t.Fatal(err)
	}
	l.exec(t, "delete from events") // for their age: it is not they alone that tell
	for name, id := range map[string]uuid.UUID{
		"an instance": known.Instances[0].ID, "an order": known.ID, "a callback": callback.ID, "a connection": c.ID,
		"an action": action.ID,
	} {
		expect := func(what, field string, err error) {
			t.Helper()
			e := apperr.As(err)
			if err == nil || e.Code != apperr.Conflict || len(e.Fields) != 1 || e.Fields[0].Field != field {
				t.Errorf("%s has the id of %s: got %v, want a conflict at %s", what, name, err, field)
			}
		}
		own, delegated := newOrder(2), connectedOrder(c, 2)
		own.Instances[1].ID, delegated.Instances[1].ID = id, id
		_, err := l.Place(t.Context(), own, long)
		expect("an instance", "instances[1].id", err)
		_, err = l.Place(t.Context(), delegated, 0)
		expect("an instance through a connection", "instances[1].id", err)
		_, _, err = postgres.Instances{DB: l.DB}.Connect(t.Context(), domain.Instance{
			ID: id, ProjectID: "p1",
			ServerID: uuid.NewString(), State: domain.InstanceActive,
		})
		expect("a server that is connected", "id", err)
		if id != known.ID {
			own, delegated = newOrder(1), connectedOrder(c, 1)
			own.ID, delegated.ID = id, id
			_, err = l.Place(t.Context(), own, long)
			expect("an order", "id", err)
			_, err = l.Place(t.Context(), delegated, 0)
			expect("an order through a connection", "id", err)
		}
		foreign := newOrder(1)
		foreign.ProjectID, foreign.Instances[0].ProjectID, foreign.Instances[0].ID = "p2", "p2", id
		if _, err := l.Place(t.Context(), foreign, long); err != nil {
			t.Errorf("in another project it is free: %v", err)
		}
	}
	wantValue(t, l.conn, 1, "%d orders are stored", "select count(*)::int from orders where project_id = 'p1'")
}

// TestReuseComparesImages, by id and by name. Where the name is not known the image is compared later, and what is
// known goes first.
func TestReuseComparesImages(t *testing.T) {
	t.Parallel()
	l := newTestDB(t)
	const other = "0f8fad5b-d9cb-469f-a165-70867728950e"
	for name, tc := range map[string]struct {
		id, ref string // of the idle one; "" = the name is not known
		image   string
		taken   bool
	}{
		"the name":             {debian, "debian", "debian", true},
		"another name":         {debian, "debian", "ubuntu", false},
		"the id":               {debian, "debian", debian, true},
		"another id":           {debian, "debian", other, false},
		"by name, id known":    {debian, debian, "debian", true},
		"by name, not stored":  {debian, "", "debian", true},
		"by id, not stored":    {debian, "", other, false},
		"an id that is a name": {debian, other, other, true},
	} {
		c := l.storeConnection(t, domain.ConnectionQuota{}, nil)
		idle := l.idle(t, c, fits, map[string]string{"pool": "a"})
		l.exec(t, `update instances set spec = jsonb_strip_nulls(spec || jsonb_build_object('image_id', $2::text,
  'image', nullif($3::text, ''))) where id = $1`, idle, tc.id, tc.ref)
		o := reusing(c, 1)
		o.Instances[0].Spec.ImageRef = tc.image
		must(l.Place(t.Context(), o, 0))(t)
		if taken := get(t, l.Orders, o).Instances[0].ID == idle; taken != tc.taken {
			t.Errorf("%s: taken is %t", name, taken)
		}
	}
	c := l.storeConnection(t, domain.ConnectionQuota{}, nil)
	unknown, known := l.idle(t, c, fits, map[string]string{"pool": "a"}), l.idle(t, c, big, map[string]string{"pool": "a"})
	l.exec(t, "update instances set spec = spec - 'image' where id = $1", unknown)
	o := reusing(c, 1)
	must(l.Place(t.Context(), o, 0))(t)
	if got := get(t, l.Orders, o).Instances[0].ID; got != known {
		t.Error("taken is the one whose image is not known")
	}
}

// TestMarkReusable: the owner marks what he has connected, and takes a mark back, from what was launched too. Who
// connects a server again, or adopts it, gets it without the mark.
func TestMarkReusable(t *testing.T) {
	t.Parallel()
	l := newTestDB(t)
	instances := postgres.Instances{DB: l.DB}
	c, other := l.storeConnection(t, domain.ConnectionQuota{}, nil), l.storeConnection(t, domain.ConnectionQuota{}, nil)
	own := domain.Instance{
		ID: uuid.New(), ProjectID: "p1", ServerID: uuid.NewString(), State: domain.InstanceStopped,
		ConnectionID: c.ID,
	}
	own.Spec = domain.LaunchSpec{ImageID: debian, Metadata: map[string]string{"pool": "a"}}
	own.Spec.Sized(fits)
	must2(instances.Connect(t.Context(), own))(t)
	takes := func(what string, c domain.Connection, id uuid.UUID, want bool) {
		t.Helper()
		o := reusing(c, 1)
		must(l.Place(t.Context(), o, 0))(t)
		if got := get(t, l.Orders, o).Instances[0].ID == id; got != want {
			t.Errorf("%s: taken is %t", what, got)
		}
		l.exec(t, "update orders set status = 'done'")
	}
	mark := func(id string, reusable bool) {
		t.Helper()
		if _, found, err := instances.MarkReusable(t.Context(), "p1", id, reusable); !found || err != nil {
			t.Fatalf("%t %v", found, err)
		}
	}
	takes("connected", c, own.ID, false)
	mark(own.ServerID, true)
	takes("marked", c, own.ID, true)
	mark(own.ID.String(), false)
	takes("taken back", c, own.ID, false)
	launched := l.idle(t, c, fits, map[string]string{"pool": "a"})
	mark(launched.String(), false)
	takes("launched, and taken back", c, launched, false)
	mark(launched.String(), true)
	takes("launched, and marked again", c, launched, true)
	if done, err := instances.Disconnect(t.Context(), domain.Filter{ProjectID: "p1", ConnectionID: c.ID},
		launched); !done || err != nil {
		t.Fatal(err)
	}
	again := get(t, l.Orders, domain.Order{ID: testkit.Scalar[uuid.UUID](t, l.conn,
		"select order_id from instances where id = $1", launched), ProjectID: "p1"}).Instances[0]
	again.ConnectionID = other.ID
	must2(instances.Connect(t.Context(), again))(t)
	takes("adopted by another connection", other, launched, false)
	for name, id := range map[string]string{"unknown": uuid.NewString(), "another project's": own.ServerID} {
		project := "p1"
		if name != "unknown" {
			project = "p2"
		}
		if _, found, err := instances.MarkReusable(t.Context(), project, id, true); found || err != nil {
			t.Errorf("%s: %t %v", name, found, err)
		}
	}
}

// TestReplaceReused gives the place of an idle one to another idle one, else to a new one, and to neither beyond the
// quota.
func TestReplaceReused(t *testing.T) {
	t.Parallel()
	l := newTestDB(t)
	two := 2
	c := l.storeConnection(t, domain.ConnectionQuota{Instances: &two}, nil)
	first := l.idle(t, c, fits, map[string]string{"pool": "a"})
	o := reusing(c, 1)
	must(l.Place(t.Context(), o, 0))(t)
	stored := get(t, l.Orders, o)
	if stored.Instances[0].ID != first || !stored.IsReused(stored.Instances[0]) {
		t.Fatalf("it has %+v", stored.Instances[0])
	}
	claim, err := l.Claim(t.Context(), stored, long)
	if err != nil || !claim.Acquired {
		t.Fatal(err)
	}
	replace := func(what, has string, problem *domain.Problem) domain.Instance {
		t.Helper()
		l.exec(t, `update instances set server_id = gen_random_uuid()::text, state = 'deleted' where order_id = $1
  and server_id is null`, o.ID)
		before := get(t, l.Orders, o)
		wanted := o.Instances[0]
		wanted.ID, wanted.Spec.ImageID, wanted.Problem = uuid.New(), debian, problem
		noError(t, l.ReplaceReused(t.Context(), before, claim, 0, has, wanted))
		if err := l.ReplaceReused(t.Context(), before, claim, 0, has, wanted); err != nil { // as after a lost answer
			t.Fatal(err)
		}
		after := get(t, l.Orders, o)
		if len(after.Instances) != 1 || after.Instances[0].ID == before.Instances[0].ID {
			t.Fatalf("%s: it has %+v", what, after.Instances)
		}
		return after.Instances[0]
	}
	second := replace("another image", "0f8fad5b-d9cb-469f-a165-70867728950e", nil)
	if second.State != domain.InstanceRequested || second.Name != o.Instances[0].Name ||
		get(t, l.Orders, o).IsReused(second) {
		t.Errorf("in its place is %+v", second)
	}
	wantValue(t, l.conn, "0f8fad5b-d9cb-469f-a165-70867728950e", "of the one that is given back is known %q",
		`select concat(order_id, spec->>'image_id', spec->>'image') from instances where id = $1`, first)
	if used := l.used(t, c); used.Instances != 2 {
		t.Errorf("%d count for the quota", used.Instances)
	}
	if third := replace("it is deleted", "", nil); third.State != domain.InstanceRequested {
		t.Errorf("what was new takes no more: %+v", third)
	}
	l.exec(t, `update connections set quota = '{"instances": 1}' where id = $1`, c.ID)
	if fourth := replace("no room", "",
		nil); fourth.State != domain.InstanceError || fourth.Problem == nil || fourth.Problem.Code != "quota_exceeded" {
		t.Errorf("beyond the quota: %+v", fourth)
	}
	if fifth := replace("refused", "", &domain.Problem{
		Code:   "invalid",
		Detail: "no image",
	}); fifth.Problem == nil || fifth.Problem.Detail != "no image" {
		t.Errorf("what cannot be had: %+v", fifth)
	}
	l.exec(t, "update orders set claim_id = gen_random_uuid()")
	if err := l.ReplaceReused(t.Context(), get(t, l.Orders, o), claim, 0, "", o.Instances[0]); !errors.Is(err,
		domain.ErrFenced) {
		t.Errorf("without the claim: %v", err)
	}
}
