//go:build bench

package bench

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/cloudfn/cloudfn/shared/testkit"
)

const (
	proxyCalls   = 300    // a minute: each tick comes once
	proxyVersion = "2.69" // what our GET asks Nova for
)

// TestProxy holds GET /v1/servers/{id} through us against the same GET to Nova itself, one after the other.
// Ours asks Nova the same, and checks the token, looks the instance up and writes the request's row besides.
func TestProxy(t *testing.T) {
	waitForSandbox(t)
	project := testkit.NewProject(t)
	id := boot(t, project, 1)[0]
	env := testkit.Env(t, testkit.Database(t), nil)
	daemon := testkit.Spawn(t, env)
	env["FUNCTION_TARGET"] = "servers"
	function := testkit.Spawn(t, env)
	nova := strings.TrimSuffix(testkit.Compute(t, project.Login(t)).Endpoint, "/")
	token := project.Token(t)

	direct := &getter{url: nova + "/servers/" + id, header: http.Header{
		"X-Auth-Token": {token}, "X-Openstack-Nova-Api-Version": {proxyVersion}, "Accept": {"application/json"},
	}}
	alone := &getter{url: function.URL + "/v1/servers/" + id, header: http.Header{"X-Auth-Token": {token}}}
	together := &getter{url: daemon.URL + "/v1/servers/" + id, header: direct.header}
	sides := []*getter{direct, alone, together}
	for _, g := range sides {
		g.client = newClient()
		g.warm(t)
	}
	alternate(proxyCalls, func() { direct.get(t) }, func() { alone.get(t) }, func() { together.get(t) })

	for _, p := range []int{50, 99} {
		goal := atMost(1.10)
		if p == 99 {
			goal = atMost(1.20)
		}
		line := func(name string, g *getter) {
			we, they := percentile(g.times, p), percentile(direct.times, p)
			report(result{
				number: "3", name: fmt.Sprintf("GET /v1/servers/{id}, %s, p%d of %d : the same GET to Nova", name, p,
					proxyCalls),
				ours: showMS(we), peer: showMS(they), ratio: we / they, target: goal,
			})
		}
		line("function", alone)
		line("daemon", together)
	}
}

// getter makes one GET again and again.
type getter struct {
	client *http.Client
	url    string
	header http.Header
	times  []float64
}

// warm makes the first calls, which connect, learn the token and read the catalog. A daemon's first tick has
// ended when they have.
func (g *getter) warm(t *testing.T) {
	t.Helper()
	for end := time.Now().Add(2 * time.Second); time.Now().Before(end); {
		g.get(t)
	}
	g.times = nil
}

func (g *getter) get(t *testing.T) {
	t.Helper()
	again(t, func() error {
		_, took, err := fetch(g.client, g.url, g.header)
		if err == nil {
			g.times = append(g.times, took)
		}
		return err
	})
}
