package managed

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/testkit"
)

// TestRefusals: each fault of a declaration is named by its field.
func TestRefusals(t *testing.T) {
	t.Parallel()
	f := start(t, nil)
	with := func(more string) string { return `{"spec": ` + strings.TrimSuffix(machine, "}") + ", " + more + "}}" }
	const (
		images = "/v1/managed/Image/"
		both   = `{"spec": {"disk_format": "raw", "content": "YQ==", "source_url": "http://a"}}`
	)
	large := `{"spec": {"data": {"a": "` + strings.Repeat("x", 50000) + `"}}}`
	for name, row := range map[string]struct {
		path, body string
		field      string
	}{
		"no spec":       {machines + "a", `{}`, "spec"},
		"no flavor":     {machines + "a", `{"spec": {"image": "a", "networks": ["b"]}}`, "spec.flavor"},
		"null":          {machines + "a", `{"spec": {"flavor": null, "image": "a", "networks": ["b"]}}`, "spec.flavor"},
		"no network":    {machines + "a", `{"spec": {"flavor": "a", "image": "a", "networks": []}}`, "spec.networks"},
		"unknown field": {machines + "a", with(`"shade": 1`), "spec.shade"},
		"wrong case":    {machines + "a", with(`"Key_name": "x"`), "spec.Key_name"},
		"wrong type":    {machines + "a", with(`"key_name": 1`), "spec.key_name"},
		"metadata":      {machines + "a", with(`"metadata": {"a/b": "x"}`), "spec.metadata.a/b"},
		"long tag":      {machines + "a", with(`"tags": ["` + strings.Repeat("x", 61) + `"]`), "spec.tags[0]"},
		"tag's comma":   {machines + "a", with(`"tags": ["a", "b,c"]`), "spec.tags[1]"},
		"our tag":       {machines + "a", with(`"tags": ["cloudfn:managed"]`), "spec.tags[0]"},
		"our other tag": {machines + "a", with(`"tags": ["cloudfn-call:x"]`), "spec.tags[0]"},
		"a UUID as tag": {machines + "a", with(`"tags": ["01a218fb-98f2-74de-92b6-bf947dcfe88a"]`), "spec.tags[0]"},
		"a tag's case":  {machines + "a", with(`"tags": ["a", "A"]`), "spec.tags[1]"},
		"emoji":         {machines + "a", with(`"metadata": {"a": "🚀"}`), "spec.metadata.a"},
		"a tag twice":   {machines + "a", with(`"tags": ["a", "a"]`), "spec.tags"},
		"update":        {machines + "a", with(`"update": "rolling"`), "spec.update"},
		"volume name":   {machines + "a", with(`"volumes": ["A"]`), "spec.volumes[0]"},
		"user_data":     {machines + "a", with(`"user_data": "` + strings.Repeat("x", 50000) + `"`), "spec.user_data"},
		"its bytes":     {machines + "a", with(`"user_data": "` + strings.Repeat("ü", 25000) + `"`), "spec.user_data"},
		"both forms":    {machines + "a", with(`"user_data": "x", "user_data_base64": "eA=="`), "spec.user_data_base64"},
		"no base64":     {machines + "a", with(`"user_data_base64": "x"`), "spec.user_data_base64"},
		"in base64": {
			"/v1/managed/Configmap/a", `{"spec": {"data": {"a": "` + strings.Repeat("x", 40000) + `"}}}`, "spec.data",
		},
		"long name": {
			deployments + strings.Repeat("a", 61), with(`"count": 1`), "name",
		},
		"name":            {machines + "Web", `{"spec": ` + machine + `}`, "name"},
		"name's end":      {machines + "web-", `{"spec": ` + machine + `}`, "name"},
		"label":           {machines + "a", `{"spec": ` + machine + `, "labels": {"-": "x"}}`, "labels.-"},
		"label's value":   {machines + "a", `{"spec": ` + machine + `, "labels": {"a": "x y"}}`, "labels.a"},
		"flavor":          {machines + "a", `{"flavor": "nope"}`, "flavor"},
		"repair":          {machines + "a", `{"spec": ` + machine + `, "repair": "never"}`, "repair"},
		"max_revisions":   {machines + "a", `{"spec": ` + machine + `, "max_revisions": 0}`, "max_revisions"},
		"region":          {machines + "a", `{"spec": ` + machine + `, "schedule": {"region": "x"}}`, "schedule.region"},
		"affinity":        {machines + "a", `{"spec": ` + machine + `, "schedule": {"affinity": "x"}}`, "schedule.affinity"},
		"no count":        {deployments + "a", `{"spec": ` + machine + `}`, "spec.count"},
		"count":           {deployments + "a", with(`"count": 101`), "spec.count"},
		"count is text":   {deployments + "a", with(`"count": "5"`), "spec.count"},
		"max_unavailable": {deployments + "a", with(`"count": 2, "max_unavailable": 3`), "spec.max_unavailable"},
		"shared volume":   {deployments + "a", with(`"count": 2, "volumes": ["a"]`), "spec.volumes"},
		"payload":         {"/v1/managed/Secret/a", `{"spec": {}}`, "spec.payload"},
		"data":            {"/v1/managed/Configmap/a", `{"spec": {}}`, "spec.data"},
		"large data":      {"/v1/managed/Configmap/a", large, "spec.data"},
		"no source":       {images + "a", `{"spec": {"disk_format": "raw"}}`, "spec.source_url"},
		"two sources":     {images + "a", both, "spec.source_url"},
		"base64":          {images + "a", `{"spec": {"disk_format": "raw", "content": "a"}}`, "spec.content"},
		"format":          {images + "a", `{"spec": {"disk_format": "tar", "content": "YQ=="}}`, "spec.disk_format"},
	} {
		a := declare(t, f.Client, row.path, row.body)
		if a.Status != 400 || !testkit.Names(t, a, row.field) {
			t.Errorf("%s: got %d %s, want %s", name, a.Status, a.Body, row.field)
		}
	}
	for name, row := range map[string]struct{ kind, spec, field string }{
		"size":     {"Volume", `{"size_gb": 0}`, "spec.size_gb"},
		"emoji":    {"Volume", `{"size_gb": 1, "description": "🚀"}`, "spec.description"},
		"a value":  {"Volume", `{"size_gb": 1, "metadata": {"a": "🚀"}}`, "spec.metadata.a"},
		"a key":    {"Volume", `{"size_gb": 1, "metadata": {"🚀": "a"}}`, "spec.metadata.🚀"},
		"property": {"Image", `{"disk_format": "raw", "content": "YQ==", "properties": {"a": "🚀"}}`, "spec.properties.a"},
		"twice":    {"Image", `{"disk_format": "raw", "content": "YQ==", "properties": {"A": "1", "a": "2"}}`, "spec.properties.a"},
		"image's":  {"Image", `{"disk_format": "raw", "content": "YQ==", "tags": ["x", "🚀"]}`, "spec.tags[1]"},
		"type":     {"Secret", `{"content_type": "🚀", "payload": "x"}`, "spec.content_type"},
		"base64":   {"Secret", `{"content_type": "application/octet-stream", "payload": "hello!"}`, "spec.payload"},
		"padding":  {"Secret", `{"content_type": "application/pkcs8", "payload": "eA"}`, "spec.payload"},
		"bytes":    {"Secret", `{"content_type": "application/octet-stream", "payload": "AP8="}`, ""},
		"text":     {"Secret", `{"content_type": "text/plain;charset=utf-8", "payload": "hello!"}`, ""},
		"files":    {"Configmap", `{"data": {"a": "🚀"}}`, ""},
		"no ports": {"Loadbalancer", `{"network": "n", "listeners": []}`, "spec.listeners"},
		"a port twice": {"Loadbalancer", `{"network": "n", "listeners": [
			{"protocol": "TCP", "port": 80, "member_port": 1, "addresses": ["192.0.2.1"]},
			{"protocol": "HTTP", "port": 80, "member_port": 1, "addresses": ["192.0.2.1"]}]}`, "spec.listeners[1].port"},
		"no targets": {"Loadbalancer", `{"network": "n", "listeners": [
			{"protocol": "TCP", "port": 80, "member_port": 1}]}`, "spec.listeners[0].deployment"},
		"no address": {"Loadbalancer", `{"network": "n", "listeners": [
			{"protocol": "TCP", "port": 80, "member_port": 1, "addresses": ["a"]}]}`, "spec.listeners[0].addresses[0]"},
	} {
		_, err := checkSpec(domain.Kind(row.kind), fields([]byte(row.spec)))
		if (err == nil) != (row.field == "") || err != nil && !strings.Contains(err.Error(), row.field+":") {
			t.Errorf("%s: got %v, want %s", name, err, row.field)
		}
	}
	for _, kind := range []string{"CI", "CD"} {
		refused(t, declare(t, f.Client, "/v1/managed/"+kind+"/a", `{"spec": {}}`), 422, "unsupported_kind", "")
		refused(t, f.Get(t, "/v1/managed/"+kind), 422, "unsupported_kind", "")
	}
	refused(t, declare(t, f.Client, "/v1/managed/Router/a", `{"spec": {}}`), 404, "not_found", "")
	refused(t, f.Get(t, "/v1/managed?kind=Router"), 400, "invalid", "kind")
	refused(t, f.Get(t, "/v1/managed/providers?region=nowhere"), 400, "invalid", "region")
	refused(t, f.Get(t, "/v1/managed?label=app"), 400, "invalid", "label")
	if n := testkit.Scalar[int](t, f.conn, "select count(*)::int from connections"); n != 0 {
		t.Errorf("%d connections were made for nothing", n)
	}
}

// TestSpecsAsServicesKeepThem: what Cinder strips is stored as it is then, and a payload fits its content_type.
func TestSpecsAsServicesKeepThem(t *testing.T) {
	t.Parallel()
	checked, err := checkSpec(domain.KindVolume, fields([]byte(`{"size_gb": 1, "description": " two\nlines\n"}`)))
	if want := `{"size_gb":1,"description":"two\nlines"}`; err != nil || string(checked.spec) != want {
		t.Errorf("got %s %v, want %s", checked.spec, err, want)
	}
	f := start(t, nil)
	const path = "/v1/managed/Secret/key"
	declared(t, declare(t, f.Client, path, `{"spec": {"payload": "hello!"}}`), http.StatusCreated)
	const binary = `{"spec": {"content_type": "application/octet-stream"`
	refused(t, declare(t, f.Client, path, binary+`}}`), 400, "invalid", "spec.payload")
	refused(t, declare(t, f.Client, path+"?dry_run=true", binary+`, "payload": "hello!"}}`), 400, "invalid", "spec.payload")
	declared(t, declare(t, f.Client, path, binary+`, "payload": "AP8="}}`), http.StatusOK)
	declared(t, declare(t, f.Client, path, binary+`}}`), http.StatusOK)
}

// TestDryRun: a plan says what a declaration would do, and nothing is stored.
func TestDryRun(t *testing.T) {
	t.Parallel()
	f := start(t, nil)
	const path = deployments + "web"
	spec := func(more string) string {
		return `{"spec": {"flavor": "m1.tiny", "image": "cirros", "networks": ["private"], "count": 2` + more + `}}`
	}
	planned := func(body string) (p ManagedPlan, names []string) {
		t.Helper()
		a := declare(t, f.Client, path+"?dry_run=true", body)
		m := declared(t, a, http.StatusOK)
		if tag := a.Header.Get("ETag"); tag != map[bool]string{true: "", false: `"1"`}[m.Plan[0].Action == "create"] {
			t.Errorf("the ETag is %q", tag)
		}
		if len(m.Plan) != 1 {
			t.Fatalf("the plan is %+v", m.Plan)
		}
		for _, field := range m.Plan[0].Fields {
			names = append(names, field.Field)
		}
		return m.Plan[0], names
	}
	if p, names := planned(spec("")); p.Action != "create" || !slices.Contains(names, "spec.count") {
		t.Errorf("a new one: %+v", p)
	}
	refused(t, f.Get(t, path), 404, "not_found", "")
	declared(t, declare(t, f.Client, path, spec("")), http.StatusCreated)
	for body, want := range map[string]string{
		spec(""): "none []",
		strings.Replace(spec(""), `"count": 2`, `"count": 3`, 1):                  "update [spec.count]",
		strings.Replace(spec(""), "m1.tiny", "m1.small", 1):                       "update [spec.flavor]",
		spec(`, "update": "replace", "user_data": "x"`):                           "replace [spec.update spec.user_data]",
		strings.Replace(spec(`, "max_unavailable": 0`), "m1.tiny", "m1.small", 1): "replace [spec.flavor spec.max_unavailable]",
		strings.Replace(spec(""), "cirros", "debian", 1):                          "update [spec.image]",
		spec(`, "key_name": "k"`):                                                 "update [spec.key_name]",
		strings.Replace(spec(""), "{", `{"labels": {"a": "b"}, `, 1):              "update [labels]",
	} {
		p, names := planned(body)
		if got := fmt.Sprintf("%s %v", p.Action, names); got != want {
			t.Errorf("%s: got %s, want %s", body, got, want)
		}
		for in, note := range map[string]string{
			"key_name": "cannot be changed in place", "debian": "rebuilt", `"max_unavailable": 0`: "other servers take",
			"replace": "other servers take",
		} {
			isOther := strings.Contains(p.Note, "other servers")
			if strings.Contains(body, in) != strings.Contains(p.Note, note) && !isOther {
				t.Errorf("%s: the note is %q", body, p.Note)
			}
		}
	}
	var m Managed
	if f.Get(t, path).JSON(t, &m); m.Revision != 1 || m.Plan != nil {
		t.Errorf("it is %+v", m)
	}
}

// TestVolumeKeepsItsData: a volume grows, and what would lose its data is refused, by a rollback too.
func TestVolumeKeepsItsData(t *testing.T) {
	t.Parallel()
	before := domain.Managed{Kind: domain.KindVolume, Spec: []byte(`{"size_gb": 2, "image": "a", "zone": "z"}`)}
	scheduled := domain.Managed{
		Kind: domain.KindVolume, Spec: []byte(`{"size_gb": 2}`), Schedule: domain.Schedule{Zone: "z"},
	}
	for _, row := range []struct {
		before     domain.Managed
		spec, zone string
		want       string
	}{
		{before, `{"size_gb": 3, "image": "a", "zone": "z"}`, "", ""},
		{before, `{"size_gb": 1, "image": "a", "zone": "z"}`, "", "spec.size_gb"},
		{before, `{"size_gb": 2, "image": "b", "zone": "z"}`, "", "spec.image"},
		{before, `{"size_gb": 2, "image": "a"}`, "", "spec.zone"},
		{before, `{"size_gb": 2, "image": "a"}`, "z", ""},
		{before, `{"size_gb": 2, "image": "a", "zone": "z"}`, "y", ""},
		{scheduled, `{"size_gb": 2}`, "z", ""},
		{scheduled, `{"size_gb": 2}`, "y", "schedule.zone"},
		{scheduled, `{"size_gb": 2}`, "", "schedule.zone"},
		{scheduled, `{"size_gb": 2, "zone": "y"}`, "z", "spec.zone"},
	} {
		err := checkTransition(row.before, []byte(row.spec), domain.Schedule{Zone: row.zone})
		if (err == nil) != (row.want == "") || err != nil && !strings.Contains(err.Error(), row.want+":") {
			t.Errorf("%s in %q: %v, want %s", row.spec, row.zone, err, row.want)
		}
	}
}

// TestResourceStays: a resource keeps its region, kind, name and connection. A field that would change one of them is
// refused by its name, and nothing is stored.
func TestResourceStays(t *testing.T) {
	t.Parallel()
	f := start(t, nil)
	body := func(more string) string { return fmt.Sprintf(`{"spec": %s%s}`, machine, more) }
	in := func(region string) string { return body(fmt.Sprintf(`, "schedule": {"region": %q}`, region)) }
	declared(t, declare(t, f.Client, machines+"a", body("")), http.StatusCreated)
	declared(t, declare(t, f.Client, machines+"a", in("RegionOne")), http.StatusOK) // it was there before
	m := declared(t, declare(t, f.Client, machines+"a", body("")), http.StatusOK)
	for _, sql := range []string{
		`update managed set schedule = '{"region": "elsewhere"}' where name = 'a'`,
		fmt.Sprintf(`update managed_revisions set schedule = '{"region": "elsewhere"}' where number = %d`, m.Revision),
	} {
		if _, err := f.conn.Exec(t.Context(), sql); err != nil {
			t.Fatal(err)
		}
	}
	for name, a := range map[string]testkit.Answer{
		"to the own region":         declare(t, f.Client, machines+"a", body("")),
		"to the own region by name": declare(t, f.Client, machines+"a", in("RegionOne")),
		"in a dry run":              declare(t, f.Client, machines+"a?dry_run=true", body("")),
		"by a rollback":             f.Post(t, machines+"a/rollback", `{"revision": 1}`),
	} {
		refused(t, a, 400, "invalid", "schedule.region")
		if text := string(a.Body); !strings.Contains(text, `must stay \"elsewhere\"`) ||
			!strings.Contains(text, "declare another one there, and delete this one") {
			t.Errorf("%s: %s", name, text)
		}
	}
	for _, field := range []string{"kind", "name", "connection_id", "provider", "project_id", "user_id", "revision"} {
		refused(t, declare(t, f.Client, machines+"b", body(fmt.Sprintf(`, %q: "x"`, field))), 400, "invalid", field)
	}
	var shown Managed
	if f.Get(t, machines+"a").JSON(t, &shown); shown.Revision != m.Revision || shown.Schedule.Region != "elsewhere" {
		t.Errorf("it is %+v", shown)
	}
	refused(t, f.Get(t, machines+"b"), 404, "not_found", "")
}

// TestScheduleOfAKind: a rule that has no meaning for a kind is refused, and not ignored.
func TestScheduleOfAKind(t *testing.T) {
	t.Parallel()
	rules := map[string]domain.Schedule{
		"zone": {Zone: "z"}, "labels": {Labels: map[string]string{"a": "b"}}, "affinity": {Affinity: "spread"},
		"region": {Region: "r"},
	}
	takes := map[domain.Kind]string{
		domain.KindMachine: "region zone labels", domain.KindDeployment: "region zone labels affinity",
		domain.KindVolume: "region zone", domain.KindImage: "region", domain.KindBalancer: "region",
		domain.KindSecret: "region", domain.KindConfigmap: "region",
	}
	for kind, known := range takes {
		for name, rule := range rules {
			err := checkSchedule(kind, rule)
			isTaken := strings.Contains(known, name)
			if (err == nil) != isTaken || err != nil && !strings.Contains(err.Error(), "schedule."+name+":") {
				t.Errorf("%s of %s: %v", name, kind, err)
			}
		}
	}
}

// TestSelector: resources are selected by labels that they have, and by labels that they have not. One without the key
// has not the label.
func TestSelector(t *testing.T) {
	t.Parallel()
	f := start(t, nil)
	for name, labels := range map[string]string{
		"a": `{"app": "web", "tier": "db"}`, "b": `{"app": "web", "tier": "front"}`, "c": `{"app": "web"}`, "d": `{}`,
	} {
		declared(t, declare(t, f.Client, "/v1/managed/Configmap/"+name,
			fmt.Sprintf(`{"spec": {"data": {"a": "b"}}, "labels": %s}`, labels)), http.StatusCreated)
	}
	for query, want := range map[string]string{
		"app=web":                    "a b c",
		"app=web,tier!=db":           "b c",
		"tier!=db":                   "b c d",
		"tier!=db,tier!=front":       "c d",
		"app=web,tier=db,tier!=db":   "",
		"app=web,tier!=":             "a b c",
		"app=web,tier!=db&limit=100": "b c",
	} {
		var page ManagedPage
		f.Get(t, "/v1/managed?label="+query).JSON(t, &page)
		var names []string
		for _, m := range page.Items {
			names = append(names, m.Name)
		}
		if slices.Sort(names); strings.Join(names, " ") != want {
			t.Errorf("%s: got %q, want %q", query, names, want)
		}
	}
	for _, wrong := range []string{"app!", "!=x", "app!=x%20y"} {
		refused(t, f.Get(t, "/v1/managed?label="+wrong), http.StatusBadRequest, "invalid", "")
	}
}
