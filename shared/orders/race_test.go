package orders_test

import (
	"context"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/cloudfn/cloudfn/shared/actions"
	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/orders"
	"github.com/cloudfn/cloudfn/shared/postgres"
)

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

// stopping is a Nova in which a server is stopped at once.
type stopping struct {
	actions.Cloud
	server  domain.Server
	stopped func()
}

func (s *stopping) Server(context.Context, string) (domain.Server, error) { return s.server, nil }

func (s *stopping) StopServer(context.Context, string) error { s.stopped(); return nil }

// TestActionRecordedAfterItsEnd does not take the state back: another replica has seen the server stopped since.
func TestActionRecordedAfterItsEnd(t *testing.T) {
	t.Parallel()
	store, engine := replica(t, time.Minute)
	instances := engine.Instances.(postgres.Instances)
	server := domain.Server{ID: uuid.NewString(), Name: "web", ProjectID: "p1", Status: "ACTIVE"}
	wanted := domain.Instance{ProjectID: "p1"}
	wanted.Seen(server)
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
