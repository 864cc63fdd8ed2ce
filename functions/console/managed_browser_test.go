package console

import (
	"net/http"
	"testing"
	"time"

	"github.com/cloudfn/cloudfn/shared/testkit"
)

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
