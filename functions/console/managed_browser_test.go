package console

import (
	"context"
	"net/http"
	"testing"
	"time"

	"github.com/cloudfn/cloudfn/shared/testkit"
)

// drained stores a drain of compute-1 that has left one server, and follows it: others are shown while the host is
// cordoned.
func drained(t *testing.T, database string) {
	t.Helper()
	_, err := testkit.Connect(t, database).Exec(context.Background(), `
		with node as (insert into nodes (name) values ('compute-1') on conflict do nothing),
		drain as (
			insert into drains (id, node, status, ended_at, due_at)
			values (gen_random_uuid(), 'compute-1', 'done', now(), now() + interval '1 day')
			returning id)
		insert into drain_servers (drain_id, server_id, name, method, status, reason, target)
		select id, gen_random_uuid(), s.* from drain, (values ('moved-1', 'live', 'moved', '', 'compute-2'),
			('<b>kept</b>', '', 'skipped', 'the server is paused', '')) s`)
	if err != nil {
		t.Fatal(err)
	}
}

// declareFiles declares files in the project, twice.
func declareFiles(t *testing.T, api *testkit.Client) {
	t.Helper()
	for _, text := range []string{"welcome", "<b>hello</b>"} {
		declare(t, api, "Configmap/files", `{"labels": {"app": "web"}, "spec": {"data": {"motd": "`+text+`"}}}`)
	}
}

// declareServers declares two servers in the project, and waits until they are ready.
func declareServers(t *testing.T, api *testkit.Client) {
	t.Helper()
	declare(t, api, "VirtualMachineDeployment/web", `{"labels": {"app": "web"}, "spec": {"count": 2, "flavor": "m1.tiny",
		"image": "cirros", "networks": ["private"]}}`)
	testkit.Eventually(t, 2*time.Minute, "the deployment is ready", func() bool {
		var web struct{ Status string }
		api.Get(t, "/v1/managed/VirtualMachineDeployment/web").JSON(t, &web)
		return web.Status == "ready"
	})
}

func declare(t *testing.T, api *testkit.Client, path, body string) {
	t.Helper()
	a := api.Do(t, "PUT", "/v1/managed/"+path, body, "Content-Type", "application/json")
	if a.Status >= http.StatusBadRequest {
		t.Fatalf("%s: got %d %s", path, a.Status, a.Body)
	}
}
