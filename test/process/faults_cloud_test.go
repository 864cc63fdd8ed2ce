package process_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/cloudfn/cloudfn/shared/testkit"
)

// TestFaultNeutronStopped names the service that is away: Nova answers 500 then, because a list of servers shows
// security groups.
func TestFaultNeutronStopped(t *testing.T) {
	project := testkit.NewProject(t)
	project.Quiet(t, project.Boot(t, "lists its groups", 1)[0].ID)
	p := testkit.Spawn(t, testkit.Env(t, testkit.Database(t),
		map[string]string{"FUNCTION_TARGET": "servers"})).As(project.Token(t))
	stopServices(t, "neutron-server")
	if a := p.Get(t, "/v1/servers"); a.Status != 503 || !strings.Contains(string(a.Body), "neutron is not available") ||
		a.Header.Get("Retry-After") == "" {
		t.Errorf("got %d %s, want 503 that names neutron", a.Status, a.Body)
	}
	startServices(t, "neutron-server")
	testkit.Eventually(t, 30*time.Second, "it answers again", func() bool {
		return p.Get(t, "/v1/servers").Status == 200
	})
}

// TestFaultKeystoneStoppedForALaunch: the token is remembered, and no service's 401 is passed on for it.
func TestFaultKeystoneStoppedForALaunch(t *testing.T) {
	f, project := testkit.Sandbox(t), testkit.NewProject(t)
	p := testkit.Spawn(t, testkit.Env(t, testkit.Database(t), map[string]string{"FUNCTION_TARGET": "launch"}))
	fresh := p.As(project.Token(t)) // Glance and Nova do not know it yet
	order := fmt.Sprintf(
		`{"id":"0b8c1b7e-0a43-4a83-bf43-4a1b1d6f0002","name":"later","flavor":%q,"image":%q,"networks":[%q]}`,
		f.FlavorID, f.ImageID, f.NetworkID,
	)
	// which reads the catalog
	if a := p.As(project.Token(t)).Post(t, "/v1/launch?dry_run=true", order); a.Status != 200 {
		t.Fatalf("got %d %s", a.Status, a.Body)
	}
	if a := fresh.Get(t, "/v1/launch"); a.Status != 200 {
		t.Fatalf("got %d %s", a.Status, a.Body)
	}
	stopServices(t, "keystone")
	if a := fresh.Post(t, "/v1/launch", order); a.Status != 503 || !strings.Contains(string(a.Body), "keystone") {
		t.Errorf("got %d %s, want 503 that names keystone", a.Status, a.Body)
	}
	startServices(t, "keystone")
	testkit.Eventually(t, 30*time.Second, "it launches", func() bool {
		return fresh.Post(t, "/v1/launch", order).Status < 300
	})
}
