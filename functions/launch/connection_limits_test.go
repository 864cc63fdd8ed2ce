package launch

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/postgres"
	"github.com/cloudfn/cloudfn/shared/testkit"
)

// TestLaunchByConnectionRejected checks the reasons of rejections, and that nothing is stored.
func TestLaunchByConnectionRejected(t *testing.T) {
	t.Parallel()
	d := delegated(t, func(c *domain.Connection) {
		c.Actions = []domain.Permission{domain.MayAllocate, domain.MayDeploy}
	})
	idle := object{"reuse": true, "start": false}
	with := func(more object) object {
		all := maps.Clone(idle)
		maps.Copy(all, more)
		return all
	}
	for name, tc := range map[string]struct {
		changes object
		status  int
		want    string // a field, or a part of the Order
	}{
		"no start": {object{}, 403, "does not permit to start, only to allocate, deploy"},
		"no volumes": {
			object{"start": false, "boot_volume": object{"size_gb": 1}}, 403, "does not permit to attach, only to",
		},
		"no floating IP":       {object{"start": false, "floating_ip": true}, 403, "does not permit to attach, only to"},
		"an address":           {object{"start": false, "floating_ip": "203.0.113.7"}, 400, `"floating_ip"`},
		"reuse and an address": {with(object{"floating_ip": true}), 400, `"floating_ip"`},
		"a volume that exists": {
			object{"start": false, "volumes": []object{{"volume_id": uuid.NewString(), "delete_on_termination": true}}},
			400, `"volumes[0]"`,
		},
		"a volume that stays":    {object{"start": false, "volumes": []object{{"size_gb": 1}}}, 400, `"volumes[0]"`},
		"reuse and a new volume": {with(object{"boot_volume": object{"size_gb": 1}}), 400, `"boot_volume"`},
		"no such connection":     {object{"connection_id": uuid.NewString()}, 404, "there is no connection"},
		"an unknown flavor": {
			object{"start": false, "flavor": "nope"}, 400, `"allowed":["diskless","large","small","tiny"]`,
		},
		"an unknown one of two": {
			object{"start": false, "instances": []object{{}, {"flavor": "nope"}}}, 400, `"instances[1].flavor"`,
		},
		"nothing is as large": {object{"start": false, "flavor": nil, "min": object{"vcpus": 5}}, 422, `"min"`},
		"too many": {
			object{"start": false, "count": 4},
			403,
			"the connection's quota of instances is 3: 0 are used, and this takes 4 more",
		},
		"a callback elsewhere": {
			object{"start": false, "callback": object{"url": "http://10.0.0.1"}}, 400, `"callback.url"`,
		},
		"reuse of its own":     {object{"connection_id": nil, "reuse": true}, 400, `"reuse"`},
		"reuse or nothing":     {with(object{"on_failure": "rollback"}), 400, `"on_failure"`},
		"reuse with a key":     {with(object{"generate_key": true}), 400, `"generate_key"`},
		"reuse with user_data": {with(object{"user_data": "x"}), 400, `"user_data"`},
		"reuse with one's data": {
			with(object{"instances": []object{{}, {"user_data": "x"}}}), 400, `"instances[1].user_data"`,
		},
		"reuse under another id": {
			with(object{"instances": []object{{"id": uuid.NewString()}}}), 400, `"instances[0].id"`,
		},
	} {
		if a := d.app.Post(t, "/v1/launch", d.body(t, tc.changes)); a.Status != tc.status ||
			!strings.Contains(string(a.Body), tc.want) {
			t.Errorf("%s: got %d %s, want %d and %s", name, a.Status, a.Body, tc.status, tc.want)
		}
	}
	stranger := d.app.As(testkit.Token(t, "demo"))
	if a := stranger.Post(t, "/v1/launch", d.body(t, object{"start": false})); a.Status != 404 {
		t.Errorf("a stranger: got %d %s", a.Status, a.Body)
	}
	exec(t, d.conn, "update connections set region = 'west', actions = actions || '{attach}'")
	elsewhere := d.app.Post(t, "/v1/launch", d.body(t, object{"start": false, "floating_ip": true}))
	if elsewhere.Status != 400 || !testkit.Names(t, elsewhere, "floating_ip") {
		t.Errorf("in another region: got %d %s", elsewhere.Status, elsewhere.Body)
	}
	exec(t, d.conn, "update connections set expires_at = now()")
	if a := d.app.Post(t, "/v1/launch", d.body(t, object{"start": false})); a.Status != 403 ||
		!strings.Contains(string(a.Body), "the connection ended at") {
		t.Errorf("after its end: got %d %s", a.Status, a.Body)
	}
	if n := d.orders(t); n != 0 || d.woken("run-connections") != 0 {
		t.Errorf("%d orders were stored", n)
	}
}

// TestLongReuse uses an idle instance, which keeps its id, and orders only the missing one.
func TestLongReuse(t *testing.T) {
	t.Parallel()
	d := delegated(t, nil)
	var first, second Order
	d.app.Post(t, "/v1/launch", d.body(t, object{
		"start": false, "flavor": "small",
		"metadata": object{"role": "web", "n": "1"},
	})).JSON(t, &first)
	exec(t, d.conn, `update instances
		set server_id = gen_random_uuid()::text, state = 'stopped', spec = spec || '{"image_id": "i1"}'`)
	exec(t, d.conn, "update orders set status = 'done'")
	request := d.body(t, object{"id": uuid.NewString(), "reuse": true, "count": 2, "metadata": object{"role": "web"}})
	for want := range slices.Values([]int{202, 200}) {
		a := d.app.Post(t, "/v1/launch", request)
		if a.JSON(t, &second); a.Status != want || len(second.Instances) != 2 ||
			second.Instances[0].ID != first.Instances[0].ID || second.Instances[0].State != domain.InstanceStopped ||
			second.Instances[1].ServerID != "" {
			t.Errorf("got %d %s", a.Status, a.Body)
		}
	}
	var left Order
	d.app.Get(t, fmt.Sprintf("/v1/launch/%s?connection_id=%s", first.ID, d.ID)).JSON(t, &left)
	if len(left.Instances) != 0 || left.Status != domain.OrderDone {
		t.Errorf("the order that it came from: %+v", left)
	}
	if n := len(d.payload(t, second.ID).Servers); n != 2 {
		t.Errorf("the payload has %d servers", n)
	}
}

// TestDryRunByConnection checks what is reported without the connection's cloud, and what is unchecked.
func TestDryRunByConnection(t *testing.T) {
	t.Parallel()
	d := delegated(t, func(c *domain.Connection) { c.Actions = []domain.Permission{domain.MayStart} })
	run := func(changes object) (got launchReport, problems, unchecked []string) {
		t.Helper()
		a := d.app.Post(t, "/v1/launch?dry_run=true", d.body(t, changes))
		if a.Status != 200 {
			t.Fatalf("got %d %s", a.Status, a.Body)
		}
		a.JSON(t, &got)
		for _, p := range got.Problems {
			problems = append(problems, fmt.Sprintf("%s %s", p.Field, p.Code))
		}
		for _, u := range got.Unchecked {
			unchecked = append(unchecked, u.Field)
		}
		return got, problems, unchecked
	}
	got, problems, unchecked := run(object{"count": 4, "key_name": "k", "networks": nil})
	want := "[connection_id forbidden count quota_exceeded] [image networks count key_name]"
	if got.OK || fmt.Sprint(problems, unchecked) != want || len(got.Resolved) != 4 || got.Resolved[3].FlavorID != "f1" {
		t.Errorf("got %+v", got)
	}
	got, problems, _ = run(object{"flavor": "nope"})
	if fmt.Sprint(problems) != "[connection_id forbidden flavor invalid]" || len(got.Resolved) != 0 {
		t.Errorf("an unknown flavor: %+v", got)
	}
	exec(t, d.conn, "update connections set actions = '{allocate,start}'")
	if got, problems, unchecked = run(object{"count": 4, "reuse": true}); !got.OK ||
		fmt.Sprint(problems, unchecked) != "[] [image networks[0] count]" {
		t.Errorf("reuse: %+v", got)
	}
	taken := uuid.NewString()
	exec(t, d.conn, `insert into callbacks (project_id, id, user_id, url, status, secret)
		values ($1, $2, 'u', 'https://a.example', 'verified', '')`, d.ProjectID, taken)
	_, problems, _ = run(object{"id": taken, "instances": []object{{"id": uuid.NewString()}}})
	if fmt.Sprint(problems) != "[id conflict]" {
		t.Errorf("a callback has the id: %s", problems)
	}
	if a := d.app.Post(t, "/v1/launch", d.body(t, object{"instances": []object{{}, {"id": taken}}})); a.Status != 409 ||
		!testkit.Names(t, a, "instances[1].id") {
		t.Errorf("a callback has the id: got %d %s", a.Status, a.Body)
	}
	exec(t, d.conn, "update connections set expires_at = now()")
	if a := d.app.Post(t, "/v1/launch?dry_run=true", d.body(t, nil)); a.Status != 403 {
		t.Errorf("after its end: got %d %s", a.Status, a.Body)
	}
	if a := d.app.As(testkit.Token(t, "demo")).Post(t, "/v1/launch?dry_run=true", d.body(t, nil)); a.Status != 404 {
		t.Errorf("a stranger: got %d %s", a.Status, a.Body)
	}
	if n := d.orders(t); n != 0 {
		t.Errorf("%d orders were stored", n)
	}
}

// TestLaunchInAnotherCloud makes remote instances, which poll-instances ignores.
func TestLaunchInAnotherCloud(t *testing.T) {
	t.Parallel()
	d := delegated(t, func(c *domain.Connection) {
		c.Kind, c.AuthURL = domain.CredentialConnection, "https://other.example.com/v3"
		c.UsableBy, c.IdleTimeout = []string{"nobody"}, time.Hour
	})
	exec(t, d.conn, "update connections set usable_by = array[$1]", d.caller.ID)
	if a := d.app.Post(t, "/v1/launch", d.body(t, nil)); a.Status != 202 {
		t.Errorf("got %d %s", a.Status, a.Body)
	}
	if !testkit.Scalar[bool](t, d.conn, "select remote from instances") ||
		!testkit.Scalar[bool](t, d.conn, "select last_used_at is not null from connections") {
		t.Error("its instance is not remote, or its use is not recorded")
	}
}

const (
	cirros    = "6073d69d-80b1-4ac2-bd3c-3fc7777e5422"
	debian    = "7b1c1b1e-7a55-4a6e-8f0c-2d3f7f5e1a10"
	private   = "b4796845-f1bc-47f3-8824-72e723fb3491"
	storage   = "58f9ea1f-a216-47ce-84fe-9184e7cff838"
	community = "0f8fad5b-d9cb-469f-a165-70867728950e"
)

// limited is a connection with limits on images, networks and flavors.
func limited(t *testing.T) delegatedCase {
	t.Helper()
	return delegated(t, func(c *domain.Connection) {
		c.Limits = domain.ConnectionLimits{
			Images: []string{cirros}, Networks: []string{private},
			Flavors: []string{"tiny", "f2"},
		}
		c.ActsAs.Roles = []string{"member"}
	})
}

// storeResources stores what run-connections would have read through the connection.
func (d delegatedCase) storeResources(t *testing.T, change func(*domain.AvailableResources)) {
	t.Helper()
	db, err := postgres.Open(postgres.Config{URL: domain.Secret(d.database), MaxConns: 1}, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(db.Close)
	subnets := []domain.Subnet{{ID: "s1", CIDR: "10.0.0.0/24", IPVersion: 4}}
	available := domain.AvailableResources{
		Flavors: d.Flavors,
		Images: []domain.Image{
			{ID: cirros, Name: "cirros", Status: "active", MinDiskGB: 1},
			{ID: debian, Name: "debian", Status: "active", MinDiskGB: 10},
		},
		Networks: []domain.Network{
			{ID: private, Name: "private", Subnets: subnets},
			{ID: storage, Name: "storage", Subnets: subnets},
		},
		Quota: &domain.Quota{
			Instances: domain.QuotaItem{Max: 10, Used: 8}, VCPUs: domain.QuotaItem{Max: -1},
			RAMMB: domain.QuotaItem{Max: -1},
		},
	}
	if change != nil {
		change(&available)
	}
	err = (postgres.Delegations{DB: db}).RecordResources(t.Context(), d.ProjectID, d.ID, time.Now(), available)
	if err != nil {
		t.Fatal(err)
	}
}

// TestLaunchByConnectionWithinLimits checks that ids and flavors outside the limits are rejected before anything is
// stored.
func TestLaunchByConnectionWithinLimits(t *testing.T) {
	t.Parallel()
	d := limited(t)
	for _, tc := range []struct {
		changes object
		field   string
		says    string
	}{
		{object{"flavor": "large"}, "flavor", `the flavor \"large\", only tiny, f2`},
		{object{"flavor": "f3"}, "flavor", `the flavor \"large\", only tiny, f2`},
		{object{"image": debian}, "image", fmt.Sprintf(`the image \"%s\", only %s`, debian, cirros)},
		{
			object{"networks": []string{private, storage}},
			"networks[1]",
			fmt.Sprintf(`the network \"%s\", only %s`, storage, private),
		},
		{object{"instances": []object{{}, {"flavor": "large"}}}, "instances[1].flavor", `the flavor \"large\"`},
	} {
		a := d.app.Post(t, "/v1/launch", d.body(t, tc.changes))
		if a.Status != 403 || !testkit.Names(t, a, tc.field) ||
			!strings.Contains(string(a.Body), "the connection does not allow "+tc.says) {
			t.Errorf("%v: got %d %s, want 403 that names %s", tc.changes, a.Status, a.Body, tc.field)
		}
	}
	if n := d.orders(t); n != 0 {
		t.Errorf("%d orders are stored", n)
	}
	for n, changes := range []object{
		{"flavor": "f1", "image": strings.ToUpper(cirros), "networks": []string{private}},
		{"flavor": "small"}, // run-connections resolves names of images and networks
		{"flavor": nil, "min": object{"ram_mb": 600}, "count": 1}, // the smallest that is allowed
	} {
		if a := d.app.Post(t, "/v1/launch", d.body(t, changes)); a.Status != 202 {
			t.Errorf("%d: got %d %s", n, a.Status, a.Body)
		}
	}
	if a := d.app.Post(t, "/v1/launch", d.body(t, object{"flavor": nil, "min": object{"vcpus": 4}})); a.Status != 422 {
		t.Errorf("the only flavor that fits is not allowed: got %d %s", a.Status, a.Body)
	}
}

// TestDryRunByConnectionWithResources compares requests with the stored resources of the connection.
func TestDryRunByConnectionWithResources(t *testing.T) {
	t.Parallel()
	d := limited(t)
	d.storeResources(t, nil)
	run := func(changes object) (got launchReport, text string) {
		t.Helper()
		in := object{"image": "cirros", "networks": []string{"private"}}
		maps.Copy(in, changes)
		a := d.app.Post(t, "/v1/launch?dry_run=true", d.body(t, in))
		if a.Status != 200 {
			t.Fatalf("got %d %s", a.Status, a.Body)
		}
		a.JSON(t, &got)
		var all strings.Builder
		for _, p := range got.Problems {
			fmt.Fprintf(&all, "%s %s;", p.Field, p.Code)
		}
		for _, u := range got.Unchecked {
			fmt.Fprintf(&all, "?%s;", u.Field)
		}
		return got, all.String()
	}
	got, text := run(nil)
	if !got.OK || text != "" || got.AsOf == nil || time.Since(*got.AsOf) > time.Minute ||
		got.Resolved[0].ImageID != cirros || !slices.Equal(got.Resolved[0].NetworkIDs, []string{private}) {
		t.Errorf("got %+v %s", got, text)
	}
	for _, tc := range []struct {
		changes object
		want    string
	}{
		{object{"networks": nil}, ""}, // there is one that is allowed
		{object{"count": 3}, "count quota_exceeded;"},
		{object{"image": "debian"}, "image forbidden;"},
		{object{"image": "nope"}, "image forbidden;"}, // the answer does not reveal which images exist
		{object{"image": debian}, "image forbidden;"},
		{object{"networks": []string{"private", "storage"}}, "networks[1] forbidden;"},
		{object{"networks": []string{storage}}, "networks[0] forbidden;"},
		{object{"flavor": "large"}, "flavor forbidden;"},
		{object{"key_name": "k"}, "?key_name;"},
	} {
		if got, text := run(tc.changes); text != tc.want || got.OK == strings.Contains(tc.want, " ") {
			t.Errorf("%v: got %s %+v, want %s", tc.changes, text, got, tc.want)
		}
	}
	exec(t, d.conn, "update connections set limits = '{}'")
	exec(t, d.conn, "update connection_resources set as_of = as_of - interval '1 hour'")
	for _, tc := range []struct {
		changes object
		want    string
	}{
		{object{"image": "nope"}, "image invalid;?connection_id;"},
		{object{"image": community}, "?connection_id;?image;"},
		{object{"image": "debian"}, "flavor invalid;?connection_id;"},
		{object{"networks": nil}, "networks invalid;?connection_id;"},
	} {
		if got, text := run(tc.changes); text != tc.want {
			t.Errorf("without limits, %v: got %s %+v, want %s", tc.changes, text, got, tc.want)
		}
	}
	d.storeResources(t, func(s *domain.AvailableResources) {
		s.Images, s.Quota, s.Networks, s.Truncated = nil, nil, s.Networks[:1], []string{domain.ResourceNetworks}
		s.Problems = map[string]domain.Problem{
			domain.ResourceImages: {Code: "unavailable", Detail: "glance cannot be reached"},
		}
	})
	got, text = run(object{"networks": []string{"storage"}})
	if !got.OK || text != "?image;?networks[0];?count;" ||
		!strings.Contains(got.Unchecked[0].Detail, "glance cannot be reached") {
		t.Errorf("of what could not be read: %s %+v", text, got)
	}
}
