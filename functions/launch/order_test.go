package launch

import (
	"crypto/sha256"
	"encoding/json"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/testkit"
)

type object = map[string]any

// TestOverrides launches servers that differ, under ids of the caller's.
func TestOverrides(t *testing.T) {
	t.Parallel()
	testkit.Heavy(t)
	p, app, database := start(t)
	p.Grant(t, p.UserID, "admin") // only admins can read a server's user_data
	app = app.As(p.Token(t))
	mine := uuid.NewString()
	request := body(t, object{
		"id": uuid.NewString(), "name": "all", "user_data": "canary-for-all", "metadata": object{"role": "all"},
		"instances": []object{
			{"id": strings.ToUpper(mine), "user_data": "canary-for-one", "metadata": object{"role": "one"}},
			{"name": "other", "flavor": nil, "min": object{"ram_mb": 1024}, "user_data": ""},
		},
	})
	a := app.Post(t, "/v1/launch", request)
	var order Order
	a.JSON(t, &order)
	if a.Status != 202 || len(order.Instances) != 2 || order.Instances[0].ID.String() != mine {
		t.Fatalf("got %d %s", a.Status, a.Body)
	}
	if a := app.Post(t, "/v1/launch", strings.Replace(request, strings.ToUpper(mine), mine, 1)); a.Status != 200 {
		t.Errorf("the same request, with the id in lower case: got %d %s", a.Status, a.Body)
	}
	other := strings.Replace(request, "canary-for-one", "canary-for-uno", 1)
	if a := app.Post(t, "/v1/launch", other); a.Status != 409 {
		t.Errorf("with other user_data: got %d %s", a.Status, a.Body)
	}
	for _, dry := range []string{"", "?dry_run=true"} {
		a := app.Post(t, "/v1/launch"+dry, body(t, object{"instances": []object{{}, {"id": mine}}}))
		if !strings.Contains(string(a.Body), `"instances[1].id"`) || !strings.Contains(string(a.Body), `"conflict"`) {
			t.Errorf("an id that is taken%s: got %d %s", dry, a.Status, a.Body)
		}
	}
	made := p.Servers(t)
	if len(made) != 2 {
		t.Fatalf("Nova has %+v", made)
	}
	for _, s := range made {
		n := slices.IndexFunc(order.Instances, func(i Instance) bool { return i.ServerID == s.ID })
		want := [][4]string{
			{"all-1", "all", "Y2FuYXJ5LWZvci1vbmU=", "one"}, // base64
			{"other", "all", "", "all"},
		}[n]
		if s.Name != want[0] || value(s.Userdata) != want[2] || s.Metadata["role"] != want[3] ||
			!slices.Contains(*s.Tags, order.Instances[n].ID.String()) {
			t.Errorf("instance %d: %+v, want %v", n, s, want)
		}
		if ram := s.Flavor["ram"].(float64); n == 0 && ram >= 1024 || n == 1 && ram < 1024 {
			t.Errorf("instance %d has %v MB", n, ram)
		}
	}
	if strings.Contains(testkit.Dump(t, database), "canary") {
		t.Error("user_data is in the database")
	}
}

func TestOverridesRejected(t *testing.T) {
	t.Parallel()
	_, app, database := start(t)
	id := uuid.NewString()
	for name, tc := range map[string]struct {
		changes object
		status  int
		field   string
	}{
		"no entries":       {object{"instances": []object{}}, 400, "instances"},
		"another count":    {object{"instances": []object{{}, {}}, "count": 3}, 400, "count"},
		"too many":         {object{"instances": make([]object, 101)}, 400, "instances"},
		"an unknown field": {object{"instances": []object{{"flavr": "x"}}}, 400, "instances[0].flavr"},
		"an unknown flavor": {
			object{"instances": []object{{}, {}, {"flavor": "nope"}}}, 400, "instances[2].flavor",
		},
		"an unknown image": {object{"instances": []object{{}, {"image": "nope"}}}, 400, "instances[1].image"},
		"an unknown network": {
			object{"instances": []object{{"networks": []string{"nope"}}}}, 400, "instances[0].networks[0]",
		},
		"no flavor at all": {object{"flavor": nil, "instances": []object{{"flavor": "1"}, {}}}, 400, "flavor"},
		"no name at all": {
			object{"name": nil, "instances": []object{{"name": "a"}, {}}}, 400, "instances[1].name",
		},
		"an empty name":  {object{"instances": []object{{"name": ""}}}, 400, "instances[0].name"},
		"no uuid":        {object{"instances": []object{{"id": "7"}}}, 400, "instances[0].id"},
		"an id twice":    {object{"instances": []object{{"id": id}, {"id": id}}}, 400, "instances[1].id"},
		"the order's id": {object{"id": id, "instances": []object{{"id": id}}}, 400, "instances[0].id"},
		"bad metadata": {
			object{"instances": []object{{"metadata": object{"k": strings.Repeat("v", 256)}}}},
			400,
			"instances[0].metadata.k",
		},
		"too much user_data": {
			object{"instances": []object{{"user_data": strings.Repeat("x", 50_000)}}}, 400, "instances[0].user_data",
		},
		"flavor and min": {object{"min": object{"vcpus": 1}}, 400, "min"},
		"flavor and min in one": {
			object{"instances": []object{{"flavor": "1", "min": object{}}}}, 400, "instances[0].min",
		},
		"less than nothing":   {object{"flavor": nil, "min": object{"ram_mb": -1}}, 400, "min.ram_mb"},
		"nothing is as large": {object{"flavor": nil, "min": object{"ram_mb": 1 << 40}}, 422, "min"},
		"nothing is, for one": {
			object{"instances": []object{{}, {"min": object{"disk_gb": 1 << 30}}}}, 422, "instances[1].min",
		},
		"an unknown on_failure": {object{"on_failure": "shrug"}, 400, "on_failure"},
		"two keys":              {object{"generate_key": true, "key_name": "k"}, 400, "key_name"},
		"two keys for one": {
			object{"generate_key": true, "instances": []object{{"key_name": "k"}}}, 400, "instances[0].key_name",
		},
		"start as text":             {object{"start": "no"}, 400, "start"},
		"a list of something else":  {object{"instances": []string{"x"}}, 400, "instances[0]"},
		"a number of something big": {object{"instances": 3}, 400, "instances"},
	} {
		t.Run(name, func(t *testing.T) {
			if a := app.Post(t, "/v1/launch", body(t, tc.changes)); a.Status != tc.status ||
				!testkit.Names(t, a, tc.field) {
				t.Errorf("got %d %s, want %d that names %s", a.Status, a.Body, tc.status, tc.field)
			}
		})
	}
	if n := testkit.Scalar[int](t, testkit.Pool(t, database), "select count(*)::int from orders"); n != 0 {
		t.Errorf("%d orders were stored", n)
	}
}

// TestLongStartFalse ends with stopped servers.
func TestLongStartFalse(t *testing.T) {
	t.Parallel()
	p, app, _ := start(t)
	id := uuid.NewString()
	var order Order
	app.Post(t, "/v1/launch", body(t, object{"id": id, "count": 2, "start": false})).JSON(t, &order)
	for end := time.Now().Add(4 * time.Minute); order.Status == domain.OrderRunning && time.Now().Before(end); {
		app.Get(t, "/v1/launch/"+id).JSON(t, &order) // the request's time was too short
	}
	for _, i := range order.Instances {
		if order.Status != domain.OrderDone || i.State != domain.InstanceStopped || i.Error != nil {
			t.Errorf("%s: %+v", order.Status, i)
		}
	}
	for _, s := range p.Servers(t) {
		if s.Status != "SHUTOFF" {
			t.Errorf("%s is %s", s.Name, s.Status)
		}
	}
}

// TestLongReaderGetsUnfinishedOrder checks that a reader gets an order whose next step Nova does not permit to him.
func TestLongReaderGetsUnfinishedOrder(t *testing.T) {
	t.Parallel()
	p, app, database := start(t)
	var order Order
	app.Post(t, "/v1/launch", body(t, nil)).JSON(t, &order)
	testkit.Eventually(t, 4*time.Minute, "the server is ACTIVE",
		func() bool { return p.Servers(t)[0].Status == "ACTIVE" })
	exec(t, testkit.Pool(t, database), `update orders set status = 'running', spec = spec || '{"stopped": true}'`)
	a := app.As(p.ReaderToken(t)).Get(t, "/v1/launch/"+order.ID.String())
	if a.Status != 200 {
		t.Fatalf("got %d %s", a.Status, a.Body)
	}
	if a.JSON(t, &order); order.Status != domain.OrderRunning || order.Instances[0].State != domain.InstanceActive {
		t.Errorf("got %s %+v", order.Status, order.Instances)
	}
	if app.Get(t, "/v1/launch/"+order.ID.String()).JSON(t, &order); order.Status != domain.OrderDone ||
		order.Instances[0].State != domain.InstanceStopped {
		t.Errorf("a member's read leaves it %s %+v", order.Status, order.Instances)
	}
}

// TestHash is equal for equivalent requests only.
func TestHash(t *testing.T) {
	t.Parallel()
	seen := map[[sha256.Size]byte]string{}
	for name, texts := range map[string][]string{
		"one": {
			`{"name":"a"}`, `{"name":"a","count":1,"start":true,"on_failure":"keep"}`,
			`{"id":"7","name":"a","instances":null}`,
		},
		"two":            {`{"name":"a","count":2}`},
		"listed":         {`{"name":"a","instances":[{}]}`, `{"name":"a","instances":[{"name":null}],"count":1}`},
		"stopped":        {`{"name":"a","start":false}`},
		"all or nothing": {`{"name":"a","on_failure":"rollback"}`},
		"a key":          {`{"name":"a","generate_key":true}`},
		"user_data": {
			`{"name":"a","user_data":"x"}`, `{"name":"a","user_data_base64":"eA=="}`,
			`{"name":"a","user_data_base64":"e\nA=\n="}`,
		},
		"bytes":              {`{"name":"a","user_data_base64":"/w=="}`},
		"other bytes":        {`{"name":"a","user_data_base64":"/g=="}`},
		"bytes of the first": {`{"name":"a","instances":[{"user_data_base64":"/w=="},{}]}`},
		"other user_data":    {`{"name":"a","user_data":"y"}`},
		"of the first": {
			`{"name":"a","instances":[{"user_data":"x"},{}]}`,
			`{"name":"a","instances":[{"user_data_base64":"eA=="},{}]}`,
		},
		"of the second":     {`{"name":"a","instances":[{},{"user_data":"x"}]}`},
		"user_data removed": {`{"name":"a","instances":[{},{"user_data":""}]}`},
		"an id":             {`{"instances":[{"id":"AB"}]}`, `{"instances":[{"id":"ab"}]}`},
		"min":               {`{"min":{"vcpus":1}}`, `{"min":{"vcpus":1,"ram_mb":0}}`},
	} {
		for n, text := range texts {
			var in launchRequest
			if err := json.Unmarshal([]byte(text), &in); err != nil {
				t.Fatal(err)
			}
			if other, ok := seen[in.hash()]; ok != (n > 0) || ok && other != name {
				t.Errorf("%s: the hash of %s is that of %q", text, name, other)
			}
			seen[in.hash()] = name
		}
	}
}

// TestOrderWithCallback checks that the callback is stored first, so that it gets every event of the order.
func TestOrderWithCallback(t *testing.T) {
	t.Parallel()
	_, app, database := start(t)
	for field, callback := range map[string]object{
		"callback.url":       {"url": "http://169.254.169.254/latest"},
		"callback.events[0]": {"url": "https://receiver.example.com/x", "events": []string{"nope"}},
		"callback.secret":    {"url": "https://receiver.example.com/x", "secret": "short"},
	} {
		if a := app.Post(t, "/v1/launch", body(t, object{"callback": callback})); a.Status != 400 ||
			!testkit.Names(t, a, field) {
			t.Errorf("%s: got %d %s", field, a.Status, a.Body)
		}
		a := app.Post(t, "/v1/launch?dry_run=true", body(t, object{"callback": callback}))
		if !strings.Contains(string(a.Body), `"`+field+`"`) {
			t.Errorf("%s, dry run: got %d %s", field, a.Status, a.Body)
		}
	}
	id := uuid.NewString()
	request := body(t, object{"id": id, "count": 2, "callback": object{"url": "https://receiver.example.com/x"}})
	var order, again Order
	app.Post(t, "/v1/launch", request).JSON(t, &order)
	if order.Callback == nil || order.Callback.Status != domain.CallbackPending ||
		!strings.HasPrefix(order.Callback.Secret, "whsec_") {
		t.Fatalf("the order is %+v", order)
	}
	app.Post(t, "/v1/launch", request).JSON(t, &again)
	if again.Callback == nil || again.Callback.ID != order.Callback.ID || again.Callback.Secret != "" {
		t.Errorf("the same request: %+v", again.Callback)
	}
	conn := testkit.Connect(t, database)
	first := testkit.Scalar[int](t, conn,
		"select count(*)::int from deliveries where callback_id = $1 and event_seq = 1", order.Callback.ID)
	missed := testkit.Scalar[int](t, conn, `select count(*)::int from events e
		where not exists (select from deliveries d where d.subject = e.subject and d.event_seq = e.seq)`)
	if first != 3 || missed != 0 {
		t.Errorf("%d subjects are delivered from their first event on, %d events are not delivered", first, missed)
	}
	if strings.Contains(testkit.Dump(t, database), order.Callback.Secret) {
		t.Error("the secret is in the database")
	}
}
