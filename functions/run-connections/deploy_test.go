package runconnections

import (
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/testkit"
)

// connected is a server that Nova made, under management through the connection.
func (w *world) connected(
	t *testing.T, p *testkit.Client, c domain.Connection, name string,
) (server testkit.Server, id uuid.UUID) {
	t.Helper()
	server, id = w.Boot(t, name, 1)[0], uuid.New()
	w.Quiet(t, server.ID)
	wants(t, w.done(t, p, w.ask(t, c, id, domain.ActionRequest{Action: domain.Connect},
		func(a *domain.DelegatedAction) { a.ServerID = server.ID })), "")
	return server, id
}

// deploy asks for a deployment, and gives its user_data.
func (w *world) deploy(
	t *testing.T, c domain.Connection, instance uuid.UUID,
) (domain.DelegatedAction, domain.DelegatedDeploy) {
	t.Helper()
	wanted := domain.DelegatedDeploy{
		ID:       uuid.New(),
		UserData: testkit.Canary("#cloud-config of a deployment " + uuid.NewString()),
	}
	action := w.ask(t, c, instance, domain.ActionRequest{Action: domain.Deploy}, func(a *domain.DelegatedAction) {
		a.Payload = sealedJSON(t, a.SealedFor(), wanted)
	})
	return action, wanted
}

// deployed holds Nova's server against a deployment.
func (w *world) deployed(t *testing.T, server string, wanted domain.DelegatedDeploy) {
	t.Helper()
	w.Await(t, server, "ACTIVE")
	if got := testkit.UserData(t, server); got != wanted.UserData {
		t.Errorf("its user_data is %q", got)
	}
	session, _ := w.member(t)
	found, err := session.Server(t.Context(), server)
	if err != nil || found.Metadata[domain.DeployMark] != wanted.ID.String() {
		t.Errorf("its metadata is %v %v", found.Metadata, err)
	}
}

// TestLongDeploy to a server that runs and to one that is stopped, and again with another version; what is damaged
// fails.
func TestLongDeploy(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	c := w.trust(t)
	p := w.function(t, nil)
	server, id := w.connected(t, p, c, "deployed")
	action, wanted := w.deploy(t, c, id)
	wants(t, w.done(t, p, action), "")
	w.deployed(t, server.ID, wanted)
	w.Stop(t, server.ID)
	action, wanted = w.deploy(t, c, id)
	wants(t, w.done(t, p, action), "")
	w.deployed(t, server.ID, wanted)
	w.ends(t, id, "updating active")
	late := w.ask(t, c, id, domain.ActionRequest{Action: domain.Deploy}, func(a *domain.DelegatedAction) {
		a.Payload = sealedJSON(t, a.SealedFor(), domain.DelegatedDeploy{
			ID: uuid.New(), UserData: wanted.UserData,
			NotAfter: time.Now().Add(-time.Second),
		})
	})
	wants(t, w.done(t, p, late), "conflict") // its disk would be wiped for an agent that cannot come
	w.deployed(t, server.ID, wanted)
	damaged := w.ask(t, c, id, domain.ActionRequest{Action: domain.Deploy},
		func(a *domain.DelegatedAction) { a.Payload = sealedJSON(t, "something else", wanted) })
	wants(t, w.done(t, p, damaged), "invalid")
	if left := w.text(t, "select count(payload)::text from actions"); left != "0" {
		t.Errorf("%s actions still hold what they were sent with", left)
	}
}

// TestLongReplicasAreKilled in the middle of an order and of a deployment, while others are at work: each is done once.
func TestLongReplicasAreKilled(t *testing.T) {
	t.Parallel()
	testkit.Heavy(t)
	w := newWorld(t)
	c := w.trust(t)
	server, id := w.connected(t, w.function(t, nil), c, "killed")
	env := testkit.Env(t, w.database, map[string]string{"FUNCTION_TARGET": "run-connections"})
	held := heldUp(t, server.ID)
	held["FUNCTION_TARGET"] = "run-connections"
	first := testkit.Spawn(t, testkit.Env(t, w.database, held))
	placed := w.place(t, c, 4, nil)
	deploy, wanted := w.deploy(t, c, id)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_, _ = first.TryTick(t, "run-connections")
	}()
	testkit.Eventually(t, time.Minute, "the order is begun and the server is being rebuilt", func() bool {
		begun := w.text(t, `select count(*) filter (where server_id is not null and order_id is not null)::text
  from instances`)
		return begun != "0" && w.text(t, "select state from instances where id = $1", id) == "updating"
	})
	first.Kill()
	<-ended
	if a := w.action(t, deploy); a.Status != domain.ActionRunning {
		t.Fatalf("the deployment is %s already: the kill came too late to prove anything", a.Status)
	}
	if o := w.order(t, placed.ID); o.Status != domain.OrderRunning {
		t.Fatalf("the order is %s already: the kill came too late to prove anything", o.Status)
	}
	copies := []*testkit.Process{testkit.Spawn(t, env), testkit.Spawn(t, env)}
	other := make(chan struct{})
	go func() {
		defer close(other)
		for range 4 {
			_, _ = copies[1].TryTick(t, "run-connections")
		}
	}()
	order := w.finish(t, copies[0].Client, placed.ID)
	wants(t, w.done(t, copies[0].Client, deploy), "")
	<-other
	if order.Status != domain.OrderDone {
		t.Errorf("the order is %s: %+v", order.Status, order.Instances)
	}
	if n := len(w.Servers(t)); n != 5 {
		t.Errorf("nova has %d servers, want 4 of the order and the one that was there", n)
	}
	w.deployed(t, server.ID, wanted)
	if n := rebuilds(t, server.ID); n != 1 {
		t.Errorf("the server was rebuilt %d times", n)
	}
	w.ends(t, placed.ID, "running done")
	w.ends(t, deploy.ID, "running done")
	for _, p := range copies {
		p.Kill()
		if log := p.Log(); strings.Contains(log, "panic") {
			t.Error(log)
		}
	}
}

// heldUp is the environment of a replica to which Nova never reports the servers it has created and the server it has
// sent an action. So the replica cannot finish anything that it has begun, however quick Nova is.
func heldUp(t *testing.T, server string) map[string]string {
	t.Helper()
	var made, acted atomic.Bool
	at, _ := testkit.Intercept(t, testkit.Compute(t, testkit.Login(t, "admin")).Endpoint, func(r *http.Request) {
		switch path := r.URL.Path; {
		case r.Method == http.MethodPost && strings.HasSuffix(path, "/servers"):
			made.Store(true)
		case r.Method == http.MethodPost && strings.HasSuffix(path, server+"/action"):
			acted.Store(true)
		case made.Load() && strings.HasSuffix(path, "/servers/detail"), acted.Load() && strings.HasSuffix(path, server):
			<-r.Context().Done()
		}
	})
	return testkit.RedirectTo(t, map[string]string{"compute": at}).Env(t, "collector")
}

// rebuilds counts how often Nova has rebuilt a server.
func rebuilds(t *testing.T, server string) int {
	t.Helper()
	return strings.Count(testkit.OpenStack(t, "admin", "server", "event", "list", server, "-f", "value",
		"-c", "Action"), "rebuild")
}
