package orders_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/cloudfn/cloudfn/shared/actions"
	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/orders"
	"github.com/cloudfn/cloudfn/shared/postgres"
	"github.com/cloudfn/cloudfn/shared/testkit"
)

// fakeNova makes servers immediately. It is a fake: the sandbox cannot be made to answer at a given moment.
type fakeNova struct {
	orders.Cloud // what is not used

	mu      sync.Mutex
	servers []domain.Server
	creates int
	made    func(domain.Server) // called before a create call is answered
	listed  func()              // called before a list is answered, which shows what was there before
}

func (f *fakeNova) add(name string, tags ...string) domain.Server {
	f.mu.Lock()
	defer f.mu.Unlock()
	server := domain.Server{
		ID: uuid.NewString(), ProjectID: "p1", Name: name, Status: "ACTIVE", CreatedAt: time.Now(),
		UpdatedAt: time.Now(), Tags: tags,
	}
	f.servers = append(f.servers, server)
	return server
}

func (f *fakeNova) CreateServer(
	_ context.Context, _ domain.LaunchSpec, name string, _ domain.Secret, tags []string,
) (string, error) {
	server := f.add(name, tags...)
	f.creates++
	if f.made != nil {
		f.made(server)
	}
	return server.ID, nil
}

func (f *fakeNova) EnsureFloatingIP(
	context.Context, string, domain.FloatingIPAttach,
) (ip domain.FloatingIP, isChanged bool, err error) {
	return ip, false, nil
}

func (f *fakeNova) ReleaseFloatingIPs(context.Context, string, string) error { return nil }

func (f *fakeNova) SetNetworkGroups(context.Context, string, []domain.Attachment) (bool, error) {
	return true, nil
}

func (f *fakeNova) SetVolumes(context.Context, string, []domain.ServerVolume) error { return nil }

func (f *fakeNova) Servers(context.Context, domain.ServerQuery) ([]domain.Server, bool, error) {
	f.mu.Lock()
	found := append([]domain.Server{}, f.servers...)
	f.mu.Unlock()
	if f.listed != nil {
		f.listed()
	}
	return found, false, nil
}

// replica is a worker with a real database.
func replica(t *testing.T, fence time.Duration) (postgres.Orders, orders.Engine) {
	t.Helper()
	db, err := postgres.Open(postgres.Config{URL: domain.Secret(testkit.Database(t)), MaxConns: 4}, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(db.Close)
	store := postgres.Orders{DB: db}
	return store, orders.Engine{Orders: store, Instances: postgres.Instances{DB: db}, Wake: func() {}, Fence: fence}
}

// place stores an order of one instance with a claim of 15 s, and returns it as it is read afterwards.
func place(t *testing.T, store postgres.Orders) (domain.Order, domain.Claim) {
	t.Helper()
	order := domain.Order{
		ID: uuid.New(), ProjectID: "p1", DomainID: "d", UserID: "u", BodySHA256: []byte{1},
		Status: domain.OrderRunning,
	}
	order.Instances = []domain.Instance{{ID: uuid.New(), ProjectID: "p1", Name: "web", State: domain.InstanceRequested}}
	claim, err := store.Place(t.Context(), order, 15*time.Second)
	if err != nil {
		t.Fatal(err)
	}
	return get(t, store, order), claim
}

func get(t *testing.T, store postgres.Orders, order domain.Order) domain.Order {
	t.Helper()
	order, err := store.Get(t.Context(), order.ProjectID, order.ID)
	if err != nil {
		t.Fatal(err)
	}
	return order
}

func work(t *testing.T, w orders.Engine, nova *fakeNova, order domain.Order, claim domain.Claim) error {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	_, unfinished, err := w.Run(ctx, orders.Session{Cloud: nova, UserData: make([]domain.Secret, 1)}, order, claim)
	return errors.Join(unfinished, err)
}

// TestLateAnswerDoesNotOverwriteState checks that a replica that stores Nova's answer late does not overwrite a newer
// state.
func TestLateAnswerDoesNotOverwriteState(t *testing.T) {
	t.Parallel()
	store, w := replica(t, time.Minute)
	order, claim := place(t, store)
	nova := &fakeNova{}
	nova.made = func(domain.Server) {
		if seen, err := w.Observe(t.Context(), nova, get(t, store, order)); err != nil ||
			seen.Instances[0].State != domain.InstanceActive {
			t.Errorf("the other replica has %+v, %v", seen.Instances, err)
		}
	}
	if err := work(t, w, nova, order, claim); err != nil {
		t.Error(err)
	}
	got := get(t, store, order)
	if i := got.Instances[0]; i.State != domain.InstanceActive || i.Seq != 2 || got.Calls[0].ServerID != i.ServerID {
		t.Errorf("the instance is %s after %d events: %+v", i.State, i.Seq, got.Calls)
	}
}

// slowly is a database over a connection that is delayed after a create call was stored.
type slowly struct {
	postgres.Orders
	by time.Duration
}

func (s slowly) BeginCall(
	ctx context.Context, order domain.Order, claim domain.Claim, call domain.CreateCall, claimFor, fence time.Duration,
) error {
	err := s.Orders.BeginCall(ctx, order, claim, call, claimFor, fence)
	time.Sleep(s.by)
	return err
}

// counting is a database that counts how often an order is read.
type counting struct {
	postgres.Orders
	reads *int
}

func (c counting) Get(ctx context.Context, projectID string, id uuid.UUID) (domain.Order, error) {
	*c.reads++
	return c.Orders.Get(ctx, projectID, id)
}

// TestFreshOrderIsReadOnce checks that a new order is not read before its end.
func TestFreshOrderIsReadOnce(t *testing.T) {
	t.Parallel()
	store, e := replica(t, time.Minute)
	reads := 0
	e.Orders = counting{store, &reads}
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	order := domain.Order{ID: uuid.New(), ProjectID: "p1", DomainID: "d", UserID: "u", BodySHA256: []byte{1}}
	order.Instances = []domain.Instance{{ID: uuid.New(), ProjectID: "p1", Name: "web", State: domain.InstanceRequested}}
	session := orders.Session{Cloud: &fakeNova{}, UserData: make([]domain.Secret, 1)}
	done, err := e.Submit(ctx, session, order)
	if err != nil || done.Unfinished != nil || !done.IsFresh || done.Order.Instances[0].ServerID == "" {
		t.Errorf("got %+v %v", done, err)
	}
	if reads != 1 {
		t.Errorf("the order was read %d times", reads)
	}
}

// TestLateCreateCallIsNotSent checks that a replica that was delayed past its fence sends no create call.
func TestLateCreateCallIsNotSent(t *testing.T) {
	t.Parallel()
	store, w := replica(t, 3*time.Second)
	order, claim := place(t, store)
	w.Orders = slowly{store, 2200 * time.Millisecond}
	nova := &fakeNova{}
	if err := work(t, w, nova, order, claim); err == nil {
		t.Error("there is no error")
	}
	if got := get(t, store, order); nova.creates != 0 || got.HasOpenCall() || got.Undecided() != 1 {
		t.Errorf("nova got %d create calls, recorded are %+v", nova.creates, got.Calls)
	}
}

// TestServerMadeAtEndOfFence checks that a server which Nova makes at the very end of the fence, during the list, is
// found.
func TestServerMadeAtEndOfFence(t *testing.T) {
	t.Parallel()
	const fence = 4 * time.Second
	store, w := replica(t, fence)
	order, claim := place(t, store)
	call := domain.CreateCall{ID: uuid.New(), InstanceID: order.Instances[0].ID, Name: "web"}
	if err := store.BeginCall(t.Context(), order, claim, call, 0, fence); err != nil { // the replica's claim ends
		t.Fatal(err)
	}
	ends := time.Now().Add(fence)
	nova := &fakeNova{}
	nova.listed = sync.OnceFunc(func() { // the first list lasts until the fence has ended
		nova.add("web", call.InstanceID.String(), domain.OrderTag(order.ID), domain.CallTag(call.ID))
		time.Sleep(time.Until(ends))
	})
	claim, err := store.Claim(t.Context(), order, 15*time.Second)
	if err != nil || !claim.Acquired {
		t.Fatalf("got %+v %v", claim, err)
	}
	if err := work(t, w, nova, order, claim); err != nil {
		t.Error(err)
	}
	if got := get(t, store, order); nova.creates != 0 || got.Undecided() != 0 {
		t.Errorf("nova got %d more create calls: %+v", nova.creates, got.Instances)
	}
}

type keyPairs struct{ deleted []string }

func (k *keyPairs) DeleteKeyPair(_ context.Context, name string) error {
	k.deleted = append(k.deleted, name)
	return nil
}

// TestKeyOfAnOrderFinalizedByAnother is deleted at its owner's next request: poll-instances, which has finalized the
// order, cannot delete it.
func TestKeyOfAnOrderFinalizedByAnother(t *testing.T) {
	t.Parallel()
	store, engine := replica(t, time.Minute)
	order := domain.Order{
		ID: uuid.New(), ProjectID: "p1", DomainID: "d", UserID: "u", BodySHA256: []byte{1}, Status: domain.OrderRunning,
		Spec: domain.OrderSpec{OnFailure: domain.Rollback, GeneratedKey: "cloudfn-x"},
	}
	order.Instances = []domain.Instance{
		{ID: uuid.New(), ProjectID: "p1", Name: "web", State: domain.InstanceRequested, KeyName: "cloudfn-x"},
	}
	claim, err := store.Place(t.Context(), order, 15*time.Second)
	if err != nil {
		t.Fatal(err)
	}
	if err := store.RecordFingerprint(t.Context(), order, claim, "aa:bb"); err != nil {
		t.Fatal(err)
	}
	i := get(t, store, order).Instances[0]
	i.State, i.Problem = domain.InstanceError, &domain.Problem{Code: "quota_exceeded", Detail: "x"}
	if err := store.Decide(t.Context(), claim, i); err != nil {
		t.Fatal(err)
	}
	if got, err := engine.Finalize(t.Context(), nil, get(t, store, order)); err != nil ||
		got.Status != domain.OrderRolledBack {
		t.Fatalf("%v %v", got.Status, err)
	}
	keys := &keyPairs{}
	owner := orders.Session{Cloud: &fakeNova{}, Keys: keys}
	if _, err := engine.Refresh(t.Context(), owner, get(t, store, order)); err != nil || len(keys.deleted) != 1 {
		t.Errorf("deleted %v: %v", keys.deleted, err)
	}
}

// TestConnectWhileLaunching is a Conflict, so that the order adopts its server and does not create a second one.
func TestConnectWhileLaunching(t *testing.T) {
	t.Parallel()
	store, engine := replica(t, time.Minute)
	instances := engine.Instances.(postgres.Instances)
	order, claim := place(t, store)
	nova := &fakeNova{}
	var refusal error
	nova.made = func(s domain.Server) {
		_, _, refusal = actions.Engine{Instances: instances}.Connect(t.Context(), oneServer{server: s}, s.ID,
			s.ProjectID, domain.Instance{ProjectID: "p1"}, nil)
	}
	if err := work(t, engine, nova, order, claim); err != nil {
		t.Error(err)
	}
	if apperr.CodeOf(refusal) != apperr.Conflict {
		t.Errorf("connected while it was launched: %v", refusal)
	}
	server := nova.servers[0]
	connected, made, err := actions.Engine{Instances: instances}.Connect(t.Context(), oneServer{server: server},
		server.ID, server.ProjectID, domain.Instance{ProjectID: "p1"}, nil)
	if err != nil || made || connected.ID != order.Instances[0].ID || len(nova.servers) != 1 {
		t.Errorf("afterwards: %s, made %t, %v; %d servers", connected.ID, made, err, len(nova.servers))
	}
}

// oneServer is a Nova that shows one server.
type oneServer struct {
	actions.Cloud
	server domain.Server
}

func (o oneServer) Server(context.Context, string) (domain.Server, error) { return o.server, nil }

// stopping is a Nova in which a server is stopped immediately.
type stopping struct {
	actions.Cloud
	server  domain.Server
	stopped func()
}

func (s *stopping) Server(context.Context, string) (domain.Server, error) { return s.server, nil }

func (s *stopping) StopServer(context.Context, string) error { s.stopped(); return nil }

// TestActionRecordedAfterItsEnd does not take the state back: another replica has observed the server stopped since.
func TestActionRecordedAfterItsEnd(t *testing.T) {
	t.Parallel()
	store, engine := replica(t, time.Minute)
	instances := engine.Instances.(postgres.Instances)
	server := domain.Server{ID: uuid.NewString(), Name: "web", ProjectID: "p1", Status: "ACTIVE"}
	wanted := domain.Instance{ProjectID: "p1"}
	wanted.Observe(server)
	i, _, err := instances.Connect(t.Context(), wanted)
	if err != nil {
		t.Fatal(err)
	}
	nova := &stopping{server: server, stopped: func() {
		seen := i
		seen.Found(domain.Server{ID: server.ID, Name: "web", Status: "SHUTOFF"})
		if seen.SeenAt, err = store.Now(t.Context()); err == nil {
			_, err = instances.Change(t.Context(), []domain.Instance{seen})
		}
		if err != nil {
			t.Error(err)
		}
	}}
	a := actions.Action{
		ActionRequest: domain.ActionRequest{Action: domain.Stop}, ServerID: server.ID, Instance: i, ProjectID: "p1",
	}
	if _, err := (actions.Engine{Instances: instances}).Run(t.Context(), nova, a); err != nil {
		t.Fatal(err)
	}
	found, err := instances.Find(t.Context(), domain.Filter{ProjectID: "p1"}, []string{server.ID})
	if err != nil || found[0].State != domain.InstanceStopped {
		t.Errorf("the instance is %s: %v", found[0].State, err)
	}
}
