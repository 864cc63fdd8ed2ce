package pollinstances

import (
	stdcmp "cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"

	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/orders"
	"github.com/cloudfn/cloudfn/shared/testkit"
)

// TestLongFinalizeOrders: orders end without their caller where the service account is authorized: stopped servers, and
// rollbacks. The replica that took the order is killed as soon as Nova has accepted the servers.
func TestLongFinalizeOrders(t *testing.T) {
	t.Parallel()
	testkit.Heavy(t)
	w := &world{Project: testkit.NewProject(t), database: testkit.Database(t)}
	account := testkit.Trustee(t)
	w.abandon(t, 1, `"start":false`)
	reader := w.poller(t, nil, 0)
	w.Await(t, w.servers[0], "ACTIVE")
	tick(t, reader, 204)
	if states := w.states(t, w.instances[0]); strings.Contains(states, "stopped") {
		t.Errorf("a reader stopped it: %s", states)
	}
	w.Grant(t, account, "member")
	member := w.poller(t, nil, 90*time.Second) // a sandbox with much to do takes longer than 45s
	tick(t, member, 204)
	w.ends(t, w.instances[0], "stopped/SHUTOFF")
	w.orderEnds(t, "done")

	rollback := &world{Project: w.Project, database: w.database}
	rollback.abandon(t, 2, `"on_failure":"rollback"`)
	for _, id := range rollback.servers {
		rollback.Await(t, id, "ACTIVE")
	}
	rollback.Act(t, rollback.servers[0], "break")
	tick(t, member, 204)
	for n, id := range rollback.servers {
		rollback.Await(t, id, "DELETED")
		rollback.ends(t, rollback.instances[n], "deleted/DELETED")
	}
	rollback.orderEnds(t, "rolled_back")
}

// abandon places an order with a replica that is killed, and ends its claim.
func (w *world) abandon(t *testing.T, n int, more string) {
	t.Helper()
	f, conn := testkit.Sandbox(t), testkit.Connect(t, w.database)
	p := testkit.Spawn(t, testkit.Env(t, w.database, map[string]string{"FUNCTION_TARGET": "launch"}))
	w.order = uuid.NewString()
	body := fmt.Sprintf(`{"id":%q,"name":"left","flavor":%q,"image":%q,"networks":[%q],"count":%d,%s}`, w.order,
		f.FlavorID, f.ImageID, stdcmp.Or(w.network, f.NetworkID), n, more)
	token := w.Token(t)
	var all sync.WaitGroup
	all.Go(func() {
		if a, err := p.As(token).Try(t, "POST", "/v1/launch", body, "Content-Type", "application/json"); err == nil {
			t.Logf("it lived to answer %d %s", a.Status, a.Body)
		}
	})
	testkit.Eventually(t, 3*time.Minute, "nova has accepted the servers", func() bool {
		return testkit.Scalar[int](t, conn, "select count(server_id)::int from instances where order_id = $1", w.order) == n
	})
	p.Kill()
	all.Wait()
	for i := range n {
		row := " from instances where order_id = $1 order by position limit 1 offset $2"
		w.instances = append(w.instances, testkit.Scalar[string](t, conn, "select id::text"+row, w.order, i))
		w.servers = append(w.servers, testkit.Scalar[string](t, conn, "select server_id"+row, w.order, i))
	}
	w.exec(t, "update orders set claimed_until = now()") // as time would end it
}

// orderEnds checks the status in the last event of the order.
func (w *world) orderEnds(t *testing.T, want string) {
	t.Helper()
	const status = "select data->>'status' from events where subject = $1 order by seq desc limit 1"
	if got := testkit.Scalar[string](t, testkit.Pool(t, w.database), status, w.order); got != want {
		t.Errorf("the order is %s, want %s", got, want)
	}
}

// deleter is a session that records the servers that it deletes.
type deleter struct {
	session
	project string
	deleted *[]string
}

func (d deleter) In(_ context.Context, projectID string) (session, error) {
	return deleter{project: projectID, deleted: d.deleted}, nil
}

func (d deleter) DeleteServer(_ context.Context, id string) error {
	*d.deleted = append(*d.deleted, d.project+"/"+id)
	if d.project == "read only" {
		return apperr.New(apperr.Forbidden, "no")
	}
	return nil
}

func (d deleter) Servers(context.Context, domain.ServerQuery) ([]domain.Server, bool, error) {
	return nil, false, nil
}

// oneOrder is a database with one order, whose instance has the server "own".
type oneOrder struct {
	orders.Store
	order     domain.Order
	published *[]string
}

func (o oneOrder) Get(context.Context, string, uuid.UUID) (domain.Order, error) { return o.order, nil }

func (o oneOrder) MarkDuplicate(context.Context, domain.Order, domain.CreateCall, string) (bool, error) {
	return true, nil
}

func (o oneOrder) PublishUnexpected(_ context.Context, _ domain.Instance, s domain.Server) (bool, error) {
	*o.published = append(*o.published, s.ID)
	return true, nil
}

// TestRemoveExtras deletes servers that the order itself made twice, each in its own project, until the account turns
// out to be read-only there. Others are reported.
func TestRemoveExtras(t *testing.T) {
	t.Parallel()
	var deleted, published []string
	order := domain.Order{ID: uuid.New(), Status: domain.OrderRunning}
	i := domain.Instance{ID: uuid.New(), ServerID: "own"}
	call := domain.CreateCall{ID: uuid.New(), InstanceID: i.ID, Name: "web", BeganAt: time.Now(), Until: time.Now()}
	order.Instances, order.Calls = []domain.Instance{i}, []domain.CreateCall{call}
	server := func(id, project string, more ...string) domain.Server {
		return domain.Server{
			ID: id, ProjectID: project, Name: "web", Status: "ACTIVE", CreatedAt: time.Now(),
			Tags: append([]string{i.ID.String(), domain.OrderTag(order.ID)}, more...),
		}
	}
	s := &service{
		orders: oneOrder{order: order, published: &published},
		cloud: newSessions(func(context.Context) (session, error) {
			return deleter{deleted: &deleted}, nil
		}),
		wake: func() {},
	}
	s.removeExtras(t.Context(), []domain.Server{
		server("twice", "p", domain.CallTag(call.ID)), server("copied", "p"),
		server("a", "read only", domain.CallTag(call.ID)), server("b", "read only", domain.CallTag(call.ID)),
	})
	if diff := cmp.Diff([]string{"p/twice", "read only/a"}, deleted); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff([]string{"copied"}, published); diff != "" {
		t.Error(diff)
	}
}

const unexpectedServer = "cloudfn.instance.unexpected_server.v1"

// visit reads the order and has everything polled.
func (w *world) visit(t *testing.T) {
	t.Helper()
	p := testkit.Spawn(t, testkit.Env(t, w.database, map[string]string{"FUNCTION_TARGET": "launch"})).As(w.Token(t))
	if a := p.Get(t, "/v1/launch/"+w.order); a.Status != 200 {
		t.Errorf("got %d %s", a.Status, a.Body)
	}
	tick(t, w.poller(t, nil, once), 204)
}

func (w *world) unexpected(t *testing.T) (found []string) {
	t.Helper()
	for _, id := range w.instances {
		for _, e := range w.events(t, id) {
			if e.Type == unexpectedServer {
				found = append(found, e.Data.UnexpectedServerID)
			}
		}
	}
	slices.Sort(found)
	return found
}

// TestLongCopiedTags: a server that someone made with the tags of ours is never deleted, neither by a GET of the order
// nor by a poll, while the order runs, when it is done or months later. One event reports each such server.
func TestLongCopiedTags(t *testing.T) {
	t.Parallel()
	w := launched(t, 1)
	made := w.Servers(t)
	if len(made) != 1 {
		t.Fatalf("Nova has %+v", made)
	}
	own := made[0]
	all := *own.Tags
	copies := []string{
		w.Create(t, own.Name, all...),
		w.Create(t, own.Name, w.instances[0], "cloudfn-order:"+w.order),
	}
	slices.Sort(copies)
	for _, id := range copies {
		w.Await(t, id, "ACTIVE")
	}
	expect := func(when string) {
		t.Helper()
		w.exec(t, "update polls set full_at = full_at - interval '1 hour'")
		w.visit(t)
		for _, s := range w.Servers(t) {
			if s.Status != "ACTIVE" {
				t.Errorf("%s: %s is %s", when, s.ID, s.Status)
			}
		}
		if n := len(w.Servers(t)); n != 3 {
			t.Fatalf("%s: Nova has %d servers, want 3", when, n)
		}
		if got := w.unexpected(t); !slices.Equal(got, copies) {
			t.Errorf("%s: the events report %v, want %v", when, got, copies)
		}
		if got := testkit.Scalar[string](t, testkit.Connect(t, w.database),
			"select server_id from instances"); got != own.ID {
			t.Errorf("%s: the instance has become %s", when, got)
		}
	}
	w.exec(t, "update orders set status = 'running'")
	expect("while the order runs")
	expect("when it is done")
	testkit.SetClock(t, w.database, time.Now().Add(90*24*time.Hour))
	expect("months later")
}

// TestLongCopiedTagsOfNoServer: an instance without a server does not adopt someone's server that carries its tags.
// Its order was rolled back, or interrupted before Nova was called.
func TestLongCopiedTagsOfNoServer(t *testing.T) {
	t.Parallel()
	w := &world{Project: testkit.NewProject(t), database: testkit.Database(t)}
	f := testkit.Sandbox(t)
	w.SetQuota(t, 0)
	p := testkit.Spawn(t, testkit.Env(t, w.database, map[string]string{"FUNCTION_TARGET": "launch"})).As(w.Token(t))
	w.order = uuid.NewString()
	a := p.Post(t, "/v1/launch", fmt.Sprintf(`{"id":%q,"name":"none","flavor":%q,"image":%q,"networks":[%q],"count":2,"on_failure":"rollback"}`,
		w.order, f.FlavorID, f.ImageID, f.NetworkID))
	if a.Status != 403 {
		t.Fatalf("got %d %s", a.Status, a.Body)
	}
	w.SetQuota(t, -1)
	conn := testkit.Connect(t, w.database)
	for n := range 2 {
		w.instances = append(w.instances, testkit.Scalar[string](t, conn,
			"select id::text from instances order by position limit 1 offset $1", n))
	}
	id := w.Create(t, "none-2", w.instances[1], "cloudfn-order:"+w.order)
	w.Await(t, id, "ACTIVE")
	for _, status := range []string{"rolled_back", "running"} {
		if status == "running" { // as if its process had died before it sent anything
			w.exec(t, "update orders set status = 'running', claimed_until = null, spec = '{}'")
			w.exec(t, "update instances set state = 'requested', problem = null, seen_at = null where position = 1")
			w.exec(t, "delete from create_calls")
		}
		w.visit(t)
		if left := w.Servers(t); len(left) != 1 || left[0].ID != id || left[0].Status != "ACTIVE" {
			t.Fatalf("%s: Nova has %+v, want someone's server", status, left)
		}
		if n := testkit.Scalar[int](t, conn, "select count(server_id)::int from instances"); n != 0 {
			t.Errorf("%s: %d instances adopted someone's server", status, n)
		}
	}
	if got := w.unexpected(t); strings.Join(got, " ") != id {
		t.Errorf("the events report %v, want %s", got, id)
	}
}
