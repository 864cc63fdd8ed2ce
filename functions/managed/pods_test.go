package managed

import (
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/cloudfn/cloudfn/shared/domain"
)

const (
	pods           = "/v1/managed/Pod/"
	podDeployments = "/v1/managed/PodDeployment/"
)

// pod is the body of a declaration of a pod with containers, and more of its spec.
func pod(containers, more string) string {
	return fmt.Sprintf(`{"spec": %s, "containers": [%s]%s}}`, strings.TrimSuffix(machine, "}"), containers, more)
}

// TestPodRefusals: each fault of a container is named by its field.
func TestPodRefusals(t *testing.T) {
	t.Parallel()
	f := start(t, nil)
	const web = `{"name": "web", "image": "web:1", "ports": [{"port": 80}]}`
	with := func(more string) string { return strings.TrimSuffix(web, "}") + ", " + more + "}" }
	long := `"` + strings.Repeat("x", 30000) + `"`
	for _, row := range []struct{ containers, more, field string }{
		{"", "", "containers"},
		{`{"name": "Web", "image": "web:1"}`, "", "containers[0].name"},
		{`{"name": "web", "image": "web"}`, "", "containers[0].image"},
		{web + `, {"name": "web", "image": "web:1"}`, "", "containers[1].name"},
		{web + ", " + strings.Replace(web, `"web"`, `"b"`, 1), "", "containers[1].ports[0].port"},
		{with(`"env": {"1A": "x"}`), "", "containers[0].env.1A"},
		{with(`"args": ["a\u0000"]`), "", "containers[0].args[0]"},
		{with(`"resources": {"cpus": 0}`), "", "containers[0].resources.cpus"},
		{with(`"mounts": [{"source": "a", "target": "/a"}]`), "", "containers[0].mounts[0].source"},
		{with(`"mounts": [{"source": "/a", "target": "/a:Z"}]`), "", "containers[0].mounts[0].target"},
		{
			with(`"mounts": [{"source": "/a", "target": "/b"}, {"source": "/c", "target": "/b"}]`), "",
			"containers[0].mounts[1].target",
		},
		{with(`"shade": 1`), "", "containers[0].shade"},
		{with(`"env": {"A": ` + long + `, "B": ` + long + `}`), "", "containers"},
		{web, `, "user_data_base64": "H4sIAAAA"`, "user_data"},
		{web, `, "restart": "sometimes"`, "restart"},
		{web, `, "update": "in_place"`, "update"},
	} {
		a := declare(t, f.Client, pods+"a", pod(row.containers, row.more))
		refused(t, a, http.StatusBadRequest, "invalid", "spec."+row.field)
	}
	a := declare(t, f.Client, pods+"a", `{"spec": `+machine+`}`)
	refused(t, a, http.StatusBadRequest, "invalid", "spec.containers")
	const count = `, "count": 1`
	refused(t, declare(t, f.Client, podDeployments+"a", pod(web, count+`, "volumes": ["a"]`)), http.StatusBadRequest,
		"invalid", "spec.volumes")
	refused(t, declare(t, f.Client, podDeployments+"a", pod(web, count+`, "max_unavailable": 2`)), http.StatusBadRequest,
		"invalid", "spec.max_unavailable")
	refused(t, declare(t, f.Client, podDeployments+strings.Repeat("a", 61), pod(web, count)), http.StatusBadRequest,
		"invalid", "name")
}

// TestPodEndpoints: a pod is replaced by its changes, and shows where its containers are reached once its server runs.
func TestPodEndpoints(t *testing.T) {
	t.Parallel()
	f := start(t, nil)
	const web = `{"name": "web", "image": "web:1", "ports": [{"port": 80}, {"port": 53, "protocol": "UDP"}]}`
	made := declared(t, declare(t, f.Client, podDeployments+"a", pod(web+`, {"name": "b", "image": "b:1"}`, `, "count": 2`)),
		http.StatusCreated)
	if !strings.Contains(string(made.Spec), `"update":"replace"`) || made.Provider != "nova" {
		t.Errorf("got %+v %s", made, made.Spec)
	}
	get := func() (m Managed) {
		t.Helper()
		f.Get(t, podDeployments+"a").JSON(t, &m)
		return m
	}
	if m := get(); m.Endpoints != nil {
		t.Errorf("without servers: got %+v", m.Endpoints)
	}
	for _, sql := range []string{
		`insert into managed_members (project_id, id, managed_id, ordinal, revision, status)
			select project_id, gen_random_uuid(), id, n, 1, 'ready' from managed, generate_series(1, 2) n`,
		`insert into instances (project_id, id, name, server_id, state, origin, spec, seq, position, addresses)
			select project_id, id, 'a', 's' || ordinal, case ordinal when 1 then 'active' else 'building' end, 'launched',
				'{}', 1, 0, '[{"network": "private", "ip": "192.0.2.5", "version": 4, "type": "fixed"}]' from managed_members`,
	} {
		if _, err := f.conn.Exec(t.Context(), sql); err != nil {
			t.Fatal(err)
		}
	}
	want := []domain.Endpoint{
		{Container: "web", Server: "a-1", Address: "192.0.2.5", Port: 80, Protocol: "TCP"},
		{Container: "web", Server: "a-1", Address: "192.0.2.5", Port: 53, Protocol: "UDP"},
	}
	if m := get(); len(m.Endpoints) != 2 || m.Endpoints[0] != want[0] || m.Endpoints[1] != want[1] {
		t.Errorf("got %+v, want %+v", m.Endpoints, want)
	}
	var plan, same Managed
	other := pod(strings.Replace(web, `"port": 80`, `"port": 80, "protocol": "TCP"`, 1)+`, {"name": "b", "image": "b:1"}`,
		`, "count": 2, "restart": "always"`)
	declare(t, f.Client, podDeployments+"a?dry_run=true", other).JSON(t, &same)
	if len(same.Plan) != 1 || same.Plan[0].Action == planReplace {
		t.Errorf("the same in other words: got %+v", same.Plan)
	}
	changed := pod(strings.Replace(web, "web:1", "web:2", 1), `, "count": 2`)
	declare(t, f.Client, podDeployments+"a?dry_run=true", changed).JSON(t, &plan)
	if len(plan.Plan) != 1 || plan.Plan[0].Action != planReplace {
		t.Errorf("another image: got %+v", plan.Plan)
	}
}
