package docs

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/google/uuid"

	"github.com/cloudfn/cloudfn/shared/testkit"
)

// TestLongReceiversFollowAServer: each receiver consents, prints the states of a server in order, also during and after
// a rotation of its secret, and then ends its callback.
func TestLongReceiversFollowAServer(t *testing.T) {
	t.Parallel()
	type taker struct {
		*program
		run                      []string
		name, port, path, secret string
		old                      *program
	}
	project := testkit.NewProject(t)
	env := testkit.Env(t, testkit.Database(t), map[string]string{
		"STATS_BACKFILL": "1h", "ALLOWED_PROJECTS": project.ID,
	})
	app := testkit.Spawn(t, env).As(project.Token(t))
	var takers []*taker
	for name := range receivers {
		run := command(t, name)
		port := testkit.FreePort(t)
		var made struct{ ID, Secret string }
		app.Post(t, "/v1/callbacks", `{"url": "http://127.0.0.1:`+port+`/"}`).JSON(t, &made)
		path := "/v1/callbacks/" + made.ID
		p := start(t, run, port, testkit.Canary(made.Secret), "deleted")
		takers = append(takers, &taker{program: p, run: run, name: name, port: port, path: path})
		// Repeat the handshake now.
		app.Do(t, http.MethodPatch, path, `{"status": "verified"}`, "Content-Type", "application/json")
	}
	for _, r := range takers {
		testkit.Eventually(t, stepLimit, r.name+" has consented", func() bool {
			return status(t, app, r.path) == "verified"
		})
	}
	f := testkit.Sandbox(t)
	order := uuid.NewString()
	body := `{"id": %q, "name": "followed", "flavor": %q, "image": %q, "networks": [%q]}`
	app.Post(t, "/v1/launch", fmt.Sprintf(body, order, f.Flavor, f.Image, f.Network))
	all := func(holds string) {
		t.Helper()
		for _, r := range takers {
			testkit.Eventually(t, stepLimit, r.name+" prints "+holds, func() bool { return len(r.printed(holds)) > 0 })
		}
	}
	all(" active")
	all(order)
	id := strings.Fields(takers[0].printed(" active")[0])[1]
	act := func(action string) { app.Post(t, "/v1/servers/"+id+"/actions", `{"action": "`+action+`"}`) }
	for _, r := range takers {
		var rotated struct{ Secret string }
		app.Post(t, r.path+"/secret", "").JSON(t, &rotated)
		r.secret = testkit.Canary(rotated.Secret)
	}
	act("stop") // signed with both secrets; the receivers know the old one
	all(" stopped")
	for _, r := range takers {
		r.end()
		r.old, r.program = r.program, start(t, r.run, r.port, r.secret, "deleted")
	}
	act("start") // the receivers know the new one only
	all(" active")
	app.Do(t, http.MethodDelete, "/v1/servers/"+id+"?mode=deallocate", "")
	all(" deleted")
	for _, r := range takers {
		lines := slices.Concat(r.old.printed(id), r.printed(id))
		inOrder(t, r.name, lines)
		app.Post(t, r.path+"/test", "")
		ended := func() bool { return status(t, app, r.path) == "gone" }
		testkit.Eventually(t, stepLimit, r.name+" has ended its callback", ended)
	}
}

// inOrder checks the order of the lines that a receiver printed about an instance.
func inOrder(t *testing.T, name string, lines []string) {
	t.Helper()
	last := 0
	for _, line := range lines {
		var kind, subject, state string
		var sequence int
		n, err := fmt.Sscan(line, &kind, &subject, &sequence, &state)
		if n != 4 || sequence <= last || strings.Contains(line, "late") {
			t.Errorf("%s printed %q after %d: %v", name, line, last, err)
		}
		last = sequence
	}
	if len(lines) < 5 {
		t.Errorf("%s printed %q", name, lines)
	}
}

// status returns the status of a callback.
func status(t *testing.T, app *testkit.Client, path string) string {
	t.Helper()
	var now struct{ Status string }
	app.Get(t, path).JSON(t, &now)
	return now.Status
}
