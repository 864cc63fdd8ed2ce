package runconnections

import (
	"context"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/postgres"
	"github.com/cloudfn/cloudfn/shared/testkit"
)

// failing is a Nova that accepts a deletion and then fails to delete the server. The sandbox's Nova never does that,
// because its hypervisor is a fake.
type failing struct {
	session
	account
	server  domain.Server
	deleted int
}

func (f *failing) WithTrust(context.Context, string) (session, error) { return f, nil }

func (f *failing) Server(context.Context, string) (domain.Server, error) { return f.server, nil }

func (f *failing) DeleteServer(context.Context, string) error {
	f.deleted++
	return nil
}

// withFailingNova returns a service whose sessions are of a failing Nova.
func (w *world) withFailingNova() (*failing, *service) {
	nova := &failing{}
	s := newService(w.db, func(...string) {})
	s.cloud.Login = func(context.Context) (account, error) { return nova, nil }
	s.cloud.Credential = func(context.Context, domain.Connection) (session, error) { return nova, nil }
	return nova, s
}

// TestLongFailedDeletion: the action fails with Nova's own message, and Nova is not called over and over, whether it
// gives a reason or not. A fault older than the action does not prevent the call.
func TestLongFailedDeletion(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	c := w.connect(t, func(c *domain.Connection) { c.Kind, c.DelegationID = domain.TrustConnection, "none" })
	id := uuid.New()
	w.exec(t, `insert into instances (project_id, id, position, name, server_id, state, origin, connection_id)
  values ($1, $2, 0, 'x', 's', 'active', 'launched', $3)`, w.ID, id, c.ID)
	nova, s := w.withFailingNova()
	for name, tc := range map[string]struct {
		fault, age time.Duration // since the action was requested, and of the action
		tries      int           // of the deletion
		words      string
		calls      int
	}{
		"an older fault":         {-time.Minute, 0, 0, "", 1},
		"the fault of something": {time.Minute, 0, 0, "", 1},
		"its own fault":          {time.Minute, 0, 1, "out of volumes", 0},
		"no end":                 {-time.Minute, retryFor + time.Minute, 0, "within 1h0m0s", 1},
	} {
		a := w.act(t, c, id, domain.ActionRequest{Action: domain.Delete}, nil)
		a.CreatedAt = a.CreatedAt.Add(-tc.age)
		nova.deleted = 0
		w.exec(t, "update instances set delete_tries = $2, delete_tried_at = now() + interval '1 second' where id = $1",
			id, tc.tries)
		nova.server = domain.Server{
			ID: "s", Status: "ERROR",
			Fault: &domain.Fault{Message: "out of volumes", Created: a.CreatedAt.Add(tc.fault)},
		}
		done, err := s.step(t.Context(), c, &a)
		said := ""
		if err != nil {
			said = apperr.As(err).Message
		}
		if done || nova.deleted != tc.calls || (tc.words == "") != (err == nil) || !strings.Contains(said, tc.words) {
			t.Errorf("%s: done is %t, %v; Nova was called %d times", name, done, err, nova.deleted)
		}
	}
}

// TestLongDeletionIsAbandoned: Nova accepts the call and sets the server to ERROR again, with a fault that is older
// than the action by Nova's clock. The action fails within minutes and a few calls, with Nova's message.
func TestLongDeletionIsAbandoned(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	c := w.connect(t, func(c *domain.Connection) { c.Kind, c.DelegationID = domain.TrustConnection, "none" })
	id := uuid.New()
	w.exec(t, `insert into instances (project_id, id, position, name, server_id, state, origin, connection_id,
  delete_tries, delete_tried_at)
values ($1, $2, 0, 'x', 's', 'error', 'launched', $3, 6, now() - interval '1 h')`, w.ID, id, c.ID) // six of an action of before
	nova, s := w.withFailingNova()
	s.actions = postgres.Actions{DB: w.db}
	a := w.act(t, c, id, domain.ActionRequest{Action: domain.Delete}, nil)
	nova.server = domain.Server{
		ID: "s", Name: "x", Status: "ERROR",
		Fault: &domain.Fault{Message: "out of volumes", Created: a.CreatedAt.Add(-time.Second)},
	}
	const step = 3 * time.Second
	var took time.Duration
	for ; a.Status == domain.ActionRunning && took < 10*time.Minute; took += step {
		claim, taken, err := s.actions.Claim(t.Context(), w.ID, c.ID, time.Second, 1)
		if err != nil {
			t.Fatal(err)
		}
		for _, one := range taken {
			s.workOnAction(t.Context(), c, claim, one)
		}
		// Move everything back by one step, as if that time had passed.
		nova.server.Fault.Created = nova.server.Fault.Created.Add(-step)
		w.exec(t, `update actions set created_at = created_at - $2::interval,
  claimed_until = claimed_until - $2::interval where id = $1`, a.ID, step)
		w.exec(t, "update instances set delete_tried_at = delete_tried_at - $2::interval where id = $1", id, step)
		a = w.action(t, a)
	}
	if a.Status != domain.ActionFailed || took > 5*time.Minute || nova.deleted != 6 {
		t.Fatalf("after %s and %d calls the action is %s", took, nova.deleted, a.Status)
	}
	if want := "Nova was called 6 times to delete the server s (x), which is still there, in the status ERROR: out " +
		"of volumes"; a.Problem.Detail != want {
		t.Errorf("it says %q", a.Problem.Detail)
	}
}

// TestConnectRejectsServerBeingDeleted: as without a connection, a server that is being deleted cannot be connected.
func TestConnectRejectsServerBeingDeleted(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	c := w.connect(t, func(c *domain.Connection) { c.Kind, c.DelegationID = domain.TrustConnection, "none" })
	nova, s := w.withFailingNova()
	for status, task := range map[string]string{"ACTIVE": "deleting", "DELETED": "", "SOFT_DELETED": ""} {
		nova.server = domain.Server{ID: uuid.NewString(), Status: status, Task: task, ProjectID: w.ID}
		a := w.act(t, c, uuid.New(), domain.ActionRequest{Action: domain.Connect},
			func(a *domain.DelegatedAction) { a.ServerID = nova.server.ID })
		if done, err := s.step(t.Context(), c, &a); done || apperr.CodeOf(err) != apperr.Conflict {
			t.Errorf("%s %s: done is %t, %v", status, task, done, err)
		}
	}
}

// connected is a server that Nova made, under management through the connection.
func (w *world) connected(
	t *testing.T, p *testkit.Client, c domain.Connection, name string,
) (server testkit.Server, id uuid.UUID) {
	t.Helper()
	server, id = w.Boot(t, name, 1)[0], uuid.New()
	w.Quiet(t, server.ID)
	wants(t, w.done(t, p, w.act(t, c, id, domain.ActionRequest{Action: domain.Connect},
		func(a *domain.DelegatedAction) { a.ServerID = server.ID })), "")
	return server, id
}

// deploy requests a deployment, and gives its user_data.
func (w *world) deploy(
	t *testing.T, c domain.Connection, instance uuid.UUID,
) (domain.DelegatedAction, domain.DelegatedDeploy) {
	t.Helper()
	wanted := domain.DelegatedDeploy{
		ID:       uuid.New(),
		UserData: testkit.Canary("#cloud-config of a deployment " + uuid.NewString()),
	}
	action := w.act(t, c, instance, domain.ActionRequest{Action: domain.Deploy}, func(a *domain.DelegatedAction) {
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
	late := w.act(t, c, id, domain.ActionRequest{Action: domain.Deploy}, func(a *domain.DelegatedAction) {
		a.Payload = sealedJSON(t, a.SealedFor(), domain.DelegatedDeploy{
			ID: uuid.New(), UserData: wanted.UserData,
			NotAfter: time.Now().Add(-time.Second),
		})
	})
	wants(t, w.done(t, p, late), "conflict") // its disk would be wiped for an agent that cannot come
	w.deployed(t, server.ID, wanted)
	damaged := w.act(t, c, id, domain.ActionRequest{Action: domain.Deploy},
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

// TestLongShelveAndSnapshot through a connection: done when the image is active, and when the server is off its host. A
// connection without the permission does neither.
func TestLongShelveAndSnapshot(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	t.Cleanup(func() { w.DeleteImages(t) })
	c, p := w.trust(t), w.function(t, nil)
	server := w.Boot(t, "kept", 1)[0].ID
	id := uuid.New()
	w.exec(t, `insert into instances (project_id, id, position, name, server_id, state, origin, connection_id)
  values ($1, $2, 0, 'kept', $3, 'active', 'launched', $4)`, w.ID, id, server, c.ID)
	do := func(action domain.Action, name string) domain.DelegatedAction {
		t.Helper()
		return w.done(t, p, w.act(t, c, id, domain.ActionRequest{Action: action},
			func(a *domain.DelegatedAction) { a.Arguments.Name = name }))
	}
	for _, name := range []string{"mine", ""} {
		made := do(domain.Snapshot, name)
		wants(t, made, "")
		images, err := w.Session(t).ImagesOf(t.Context(), made.ID,
			domain.Server{ID: server, ProjectID: w.ID})
		if err != nil || len(images) != 1 || images[0].ID != made.ImageID || images[0].Status != "active" {
			t.Fatalf("the images of %+v are %+v, %v", made, images, err)
		}
		if name != "" && images[0].Name != name {
			t.Errorf("the image is named %s", images[0].Name)
		}
	}
	wants(t, do(domain.Shelve, ""), "")
	w.Await(t, server, "SHELVED_OFFLOADED")
	wants(t, do(domain.Snapshot, ""), "conflict")
	wants(t, do(domain.Unshelve, ""), "")
	w.Await(t, server, "ACTIVE")
	w.exec(t, "update connections set actions = '{start,stop}' where id = $1", c.ID)
	wants(t, do(domain.Shelve, ""), "forbidden")
	wants(t, do(domain.Snapshot, ""), "forbidden")
	const ends = "select count(*)::int from events where type = $1 and data->>'image_id' <> ''"
	if n := testkit.Scalar[int](t, testkit.Connect(t, w.database), ends, domain.ActionEvent); n != 2 {
		t.Errorf("%d events have an image", n)
	}
}
