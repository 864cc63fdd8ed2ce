package launch

import (
	"slices"
	"strings"
	"testing"

	"github.com/google/uuid"

	"github.com/cloudfn/cloudfn/shared/testkit"
)

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
		"count as text":      {object{"count": "3"}, 400, "count"},
		"id is no uuid":      {object{"id": "42"}, 400, "id"},
		"unknown field":      {object{"flavr": "x"}, 400, "flavr"},
		"no connection's id": {object{"connection_id": "42"}, 400, "connection_id"},
		"a zero connection":  {object{"connection_id": uuid.Nil}, 400, "connection_id"},
		"a zero reservation": {object{"reservation_id": uuid.Nil}, 400, "reservation_id"},
		"unknown key pair":   {object{"key_name": "nope"}, 400, "key_name"},
		"unknown group":      {object{"security_groups": []string{"defaults"}}, 400, "security_groups[0]"},
		"unknown zone":       {object{"availability_zone": "nowa"}, 400, "availability_zone"},
		"networks as text":   {object{"networks": "private"}, 400, "networks"},
		"too much user_data": {object{"user_data": strings.Repeat("x", 50_000)}, 400, "user_data"},
		"both user_data":     {object{"user_data": "x", "user_data_base64": "eA=="}, 400, "user_data_base64"},
		"no base64":          {object{"user_data_base64": "eA"}, 400, "user_data_base64"},
		"too many bytes":     {object{"user_data_base64": strings.Repeat("//8A", 16384)}, 400, "user_data_base64"},
		"no base64 of one": {
			object{"instances": []object{{"user_data_base64": "-_8="}}}, 400, "instances[0].user_data_base64",
		},
		"NUL in the name":   {object{"name": "a\x00b"}, 400, "name"},
		"NUL in metadata":   {object{"metadata": object{"k": "a\x00b"}}, 400, "metadata.k"},
		"NUL in a key":      {object{"metadata": object{"k\x00": "a"}}, 400, "metadata.k\uFFFD"},
		"NUL in user_data":  {object{"user_data": "a\x00b"}, 400, "user_data"},
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
			t.Errorf("all at once: got %d %s, want a fault of %s and no value", a.Status, a.Body, field)
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

// TestReaderLaunchStoresNothing: a launch with a token that only reads leaves no trace.
func TestReaderLaunchStoresNothing(t *testing.T) {
	t.Parallel()
	p, app, database := start(t)
	reader := app.As(p.ReaderToken(t))
	request := body(t, object{"count": 3, "callback": object{"url": "https://receiver.example.com"}})
	if a := reader.Post(t, "/v1/launch", request); a.Status != 403 || !strings.Contains(string(a.Body), "only reads") {
		t.Errorf("got %d %s, want 403", a.Status, a.Body)
	}
	a := reader.Post(t, "/v1/launch?dry_run=true", request)
	if a.Status != 200 || !strings.Contains(string(a.Body), `"field":"X-Auth-Token"`) {
		t.Errorf("dry run: got %d %s, want a report about the token", a.Status, a.Body)
	}
	for _, table := range []string{"orders", "instances", "callbacks", "events"} {
		if n := testkit.Scalar[int](t, testkit.Pool(t, database), "select count(*)::int from "+table); n != 0 {
			t.Errorf("%d rows of %s were stored", n, table)
		}
	}
}
