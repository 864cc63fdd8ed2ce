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
			{"name": "other", "min": object{"ram_mb": 1024}, "user_data": ""},
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
		if s.Name != want[0] || domain.Deref(s.Userdata) != want[2] || s.Metadata["role"] != want[3] ||
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

// TestMinBesideFlavor: sizes of min replace those of the flavor, and the smallest flavor that has all is chosen.
func TestMinBesideFlavor(t *testing.T) {
	t.Parallel()
	l := catalog{}
	l.flavors = []domain.Flavor{
		{ID: "1", Name: "small", VCPUs: 1, RAMMB: 1024, DiskGB: 10},
		{ID: "2", Name: "wide", VCPUs: 4, RAMMB: 1024, DiskGB: 10},
		{ID: "3", Name: "large", VCPUs: 4, RAMMB: 8192, DiskGB: 10},
		{ID: "4", Name: "huge", VCPUs: 8, RAMMB: 8192, DiskGB: 80},
	}
	for _, tc := range []struct {
		flavor string
		min    *MinSize
		want   string
	}{
		{"wide", nil, "wide"},
		{"wide", &MinSize{}, "wide"},
		{"wide", &MinSize{RAMMB: 2048}, "large"},
		{"wide", &MinSize{DiskGB: 20}, "huge"},
		{"large", &MinSize{RAMMB: 512}, "wide"},
		{"huge", &MinSize{VCPUs: 1, RAMMB: 512, DiskGB: 5}, "small"},
		{"", &MinSize{VCPUs: 2}, "wide"},
		{"", nil, ""},
		{"nope", &MinSize{}, ""},
		{"huge", &MinSize{VCPUs: 9}, ""},
	} {
		i := item{min: tc.min, fields: map[string]string{"min": "min"}}
		i.flavor.Value = tc.flavor
		got, err := l.flavor(i, domain.Image{})
		if got.Name != tc.want || (err == nil) != (tc.want != "") {
			t.Errorf("%s with %+v: got %s %v, want %q", tc.flavor, tc.min, got.Name, err, tc.want)
		}
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
		"no entries":    {object{"instances": []object{}}, 400, "instances"},
		"another count": {object{"instances": []object{{}, {}}, "count": 3}, 400, "count"},
		"too many":      {object{"instances": make([]object, 101)}, 400, "instances"},
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
		"nothing is as large as flavor and min": {object{"min": object{"ram_mb": 1 << 40}}, 422, "min"},
		"an unknown flavor with min":            {object{"flavor": "nope", "min": object{"vcpus": 1}}, 400, "flavor"},
		"less than nothing":                     {object{"flavor": nil, "min": object{"ram_mb": -1}}, 400, "min.ram_mb"},
		"nothing is as large":                   {object{"flavor": nil, "min": object{"ram_mb": 1 << 40}}, 422, "min"},
		"nothing is, for one": {
			object{"instances": []object{{}, {"min": object{"disk_gb": 1 << 30}}}}, 422, "instances[1].min",
		},
		"two keys": {object{"generate_key": true, "key_name": "k"}, 400, "key_name"},
		"two keys for one": {
			object{"generate_key": true, "instances": []object{{"key_name": "k"}}}, 400, "instances[0].key_name",
		},
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

func TestLaunchRejectsRequests(t *testing.T) {
	t.Parallel()
	p, app, database := start(t)
	for name, tc := range map[string]struct {
		changes object
		status  int
		field   string
	}{
		"no name":            {object{"name": nil}, 400, "name"},
		"no flavor":          {object{"flavor": nil}, 400, "flavor"},
		"unknown flavor":     {object{"flavor": "m9.huge"}, 400, "flavor"},
		"unknown image":      {object{"image": "nope"}, 400, "image"},
		"unknown image id":   {object{"image": uuid.NewString()}, 400, "image"},
		"unknown network":    {object{"networks": []string{"nope"}}, 400, "networks[0]"},
		"count 0":            {object{"count": 0}, 400, "count"},
		"count -1":           {object{"count": -1}, 400, "count"},
		"count 101":          {object{"count": 101}, 400, "count"},
		"unknown key pair":   {object{"key_name": "nope"}, 400, "key_name"},
		"unknown group":      {object{"security_groups": []string{"defaults"}}, 400, "security_groups[0]"},
		"unknown zone":       {object{"availability_zone": "nowa"}, 400, "availability_zone"},
		"too much user_data": {object{"user_data": strings.Repeat("x", 50_000)}, 400, "user_data"},
		"both user_data":     {object{"user_data": "x", "user_data_base64": "eA=="}, 400, "user_data_base64"},
		"no base64":          {object{"user_data_base64": "eA"}, 400, "user_data_base64"},
		"too many bytes":     {object{"user_data_base64": strings.Repeat("//8A", 16384)}, 400, "user_data_base64"},
		"no base64 of one": {
			object{"instances": []object{{"user_data_base64": "-_8="}}}, 400, "instances[0].user_data_base64",
		},
		"NUL in a key":      {object{"metadata": object{"k\x00": "a"}}, 400, "metadata.k\uFFFD"},
		"metadata of lists": {object{"metadata": object{"a": []int{1}}}, 400, "metadata.a"},
		"an address of two": {
			object{"networks": []object{{"network": "x", "fixed_ip": "10.0.0.9"}}, "count": 2},
			400,
			"networks[0].fixed_ip",
		},
		"no address": {
			object{"networks": []object{{"network": "x", "fixed_ip": "x"}}}, 400, "networks[0].fixed_ip",
		},
		"an address alone":   {object{"networks": []object{{"fixed_ip": "10.0.0.9"}}}, 400, "networks[0]"},
		"an empty network":   {object{"networks": []object{{}}}, 400, "networks[0]"},
		"a network's number": {object{"networks": []any{5}}, 400, "networks[0]"},
		"a port and a network": {
			object{"networks": []object{{"network": "x", "port_id": uuid.New()}}}, 400, "networks[0].port_id",
		},
		"groups of a port": {
			object{"networks": []object{{"port_id": uuid.New(), "security_groups": []string{"default"}}}},
			400,
			"networks[0].security_groups",
		},
		"groups of a network through a connection": {
			object{"networks": []object{{"network": "x", "security_groups": []string{"default"}}}, "connection_id": uuid.New()},
			400,
			"networks[0].security_groups",
		},
		"no groups of a network": {
			object{"networks": []object{{"network": "x", "security_groups": []string{}}}},
			400,
			"networks[0].security_groups",
		},
		"no port":         {object{"networks": []object{{"port_id": "x"}}}, 400, "networks[0].port_id"},
		"an unknown port": {object{"networks": []object{{"port_id": uuid.New()}}}, 400, "networks[0].port_id"},
		"a port through a connection": {
			object{"networks": []object{{"port_id": uuid.New()}}, "connection_id": uuid.New()},
			400,
			"networks[0].port_id",
		},
		"a tag with a comma":   {object{"tags": []string{"a", "b,c"}}, 400, "tags[1]"},
		"a tag with a slash":   {object{"tags": []string{"a/b"}}, 400, "tags[0]"},
		"an empty tag":         {object{"tags": []string{""}}, 400, "tags[0]"},
		"a long tag":           {object{"tags": []string{strings.Repeat("x", 61)}}, 400, "tags[0]"},
		"a tag of ours":        {object{"tags": []string{"cloudfn-call:x"}}, 400, "tags[0]"},
		"an instance's tag":    {object{"tags": []string{uuid.NewString()}}, 400, "tags[0]"},
		"a tag twice":          {object{"tags": []string{"a", "a"}}, 400, "tags[1]"},
		"tags that are one":    {object{"tags": []string{"web", "Web"}}, 400, "tags[1]"},
		"tags but for spaces":  {object{"tags": []string{"x", "x "}}, 400, "tags[1]"},
		"tags but for accents": {object{"instances": []object{{"tags": []string{"é", "e"}}}}, 400, "instances[0].tags[1]"},
		"an emoji as a tag":    {object{"tags": []string{"🚀"}}, 400, "tags[0]"},
		"an emoji in metadata": {object{"metadata": object{"team": "🚀"}}, 400, "metadata.team"},
		"one of an instance": {
			object{"instances": []object{{"metadata": object{"team": "🚀"}}}}, 400, "instances[0].metadata.team",
		},
		"an emoji in a hint": {
			object{"scheduler_hints": object{"same_host": []string{"x", "🚀"}}}, 400, "scheduler_hints.same_host[1]",
		},
		"an emoji in a group":   {object{"server_group": "🚀"}, 400, "server_group"},
		"an emoji in an image":  {object{"image": "🚀"}, 400, "image"},
		"an emoji in a network": {object{"networks": []string{"🚀"}}, 400, "networks[0]"},
		"too many tags":         {object{"tags": slices.Repeat([]string{"a"}, 47)}, 400, "tags"},
		"a long description":    {object{"description": strings.Repeat("x", 256)}, 400, "description"},
		"lines of it":           {object{"description": "a\nb"}, 400, "description"},
		"a tag of one":          {object{"instances": []object{{"tags": []string{"a/b"}}}}, 400, "instances[0].tags[0]"},
		"unknown server group":  {object{"server_group": "nope"}, 400, "server_group"},
		"unknown of one": {
			object{"instances": []object{{"server_group": "nope"}}}, 400, "instances[0].server_group",
		},
		"a hint's number": {object{"scheduler_hints": object{"a": 1}}, 400, "scheduler_hints.a"},
		"a group as hint": {object{"scheduler_hints": object{"group": "x"}}, 400, "scheduler_hints.group"},
		"hints through a connection": {
			object{"scheduler_hints": object{"a": "b"}, "connection_id": uuid.NewString()}, 400, "scheduler_hints",
		},
		"tags of idle servers": {
			object{"tags": []string{"a"}, "reuse": true, "connection_id": uuid.NewString()}, 400, "tags",
		},
	} {
		t.Run(name, func(t *testing.T) {
			for _, path := range []string{"/v1/launch", "/v1/launch?dry_run=true"} {
				a := app.Post(t, path, body(t, tc.changes))
				isReport := a.Status == 200 && strings.Contains(string(a.Body), `"field":"`+tc.field+`"`)
				if !isReport && (a.Status != tc.status || !testkit.Names(t, a, tc.field)) {
					t.Errorf("%s: got %d %s, want %d that names %s", path, a.Status, a.Body, tc.status, tc.field)
				}
			}
		})
	}
	all := object{
		"name": "🚀", "count": 0, "flavor": 5, "user_data": strings.Repeat("é", 30_000), "on_failure": "canary",
		"metadata": object{"a.b": 1, "ü.c": "x"}, "callback": object{"url": "x", "secret": "canary"},
	}
	a := app.Post(t, "/v1/launch?dry_run=maybe", body(t, all))
	for _, field := range []string{
		"name", "count", "flavor", "user_data", "on_failure", "metadata.a.b", "metadata.ü.c", "callback.secret",
		"dry_run",
	} {
		if !testkit.Names(t, a, field) || strings.Contains(string(a.Body), "canary") {
			t.Errorf("all together: got %d %s, want a fault of %s and no value", a.Status, a.Body, field)
		}
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
		"half a pair":    {"application/json", strings.Replace(body(t, nil), `"server"`, `"\ud83d"`, 1), 400},
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
