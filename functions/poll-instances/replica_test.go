package pollinstances

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/postgres"
	"github.com/cloudfn/cloudfn/shared/testkit"
)

// scripted is a session that runs what another replica does in the middle of a call.
type scripted struct {
	session
	stopping, starting func()
}

func (s scripted) StartServer(context.Context, string) error {
	s.starting()
	return nil
}

func (s scripted) In(context.Context, string) (session, error) { return s, nil }

func (s scripted) Servers(context.Context, domain.ServerQuery) ([]domain.Server, bool, error) {
	return nil, false, nil
}

func (s scripted) StopServer(context.Context, string) error {
	s.stopping()
	return nil
}

// interrupted is a database in which something happens after an order was read and before it is claimed.
type interrupted struct {
	postgres.Orders
	before func()
}

func (i interrupted) Claim(ctx context.Context, order domain.Order, claimFor time.Duration) (domain.Claim, error) {
	if i.before != nil {
		i.before()
	}
	return i.Orders.Claim(ctx, order, claimFor)
}

// newReconciler returns a service that reconciles orders in a real database, with a fake Nova.
func newReconciler(t *testing.T, nova session) (*service, postgres.Orders, *pgx.Conn) {
	t.Helper()
	url := testkit.Database(t)
	db, err := postgres.Open(postgres.Config{URL: domain.Secret(url), MaxConns: 4}, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(db.Close)
	login := func(context.Context) (session, error) { return nova, nil }
	return newService(db, login, func() {}), postgres.Orders{DB: db}, testkit.Connect(t, url)
}

// placed is an order of n instances, as it is stored.
func placed(t *testing.T, store postgres.Orders, spec domain.OrderSpec, n int) (domain.Order, domain.Claim) {
	t.Helper()
	return placedIn(t, store, "p", spec, n)
}

func placedIn(
	t *testing.T, store postgres.Orders, project string, spec domain.OrderSpec, n int,
) (domain.Order, domain.Claim) {
	t.Helper()
	order := domain.Order{
		ID: uuid.New(), ProjectID: project, DomainID: "d", UserID: "u", BodySHA256: []byte{1},
		Status: domain.OrderRunning, Spec: spec,
	}
	for range n {
		order.Instances = append(order.Instances, domain.Instance{
			ID: uuid.New(), ProjectID: project, Name: "web",
			State: domain.InstanceRequested,
		})
	}
	claim, err := store.Place(t.Context(), order, time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	return order, claim
}

// TestRollbackRereadsClaimedOrder: another replica sends a create call after this one has read the order, and dies. The
// rollback must not abandon that instance while Nova may still make its server, because nothing would delete it.
func TestRollbackRereadsClaimedOrder(t *testing.T) {
	t.Parallel()
	s, store, conn := newReconciler(t, scripted{})
	order, claim := placed(t, store, domain.OrderSpec{OnFailure: domain.Rollback}, 2)
	refused := order.Instances[0]
	refused.State, refused.Problem = domain.InstanceError, &domain.Problem{Code: "quota_exceeded"}
	if err := store.Decide(t.Context(), claim, refused); err != nil {
		t.Fatal(err)
	}
	s.orders = interrupted{store, func() {
		call := domain.CreateCall{ID: uuid.New(), InstanceID: order.Instances[1].ID, Name: "web"}
		// the claim ends with the replica
		if err := store.BeginCall(t.Context(), order, claim, call, 0, time.Minute); err != nil {
			t.Error(err)
		}
	}}
	if err := s.reconcileOrders(t.Context()); err != nil {
		t.Error(err)
	}
	got, err := store.Get(t.Context(), order.ProjectID, order.ID)
	if err != nil || got.Status != domain.OrderRunning || got.Undecided() != 1 {
		t.Errorf("the order is %s, its instances %+v, %v", got.Status, got.Instances, err)
	}
	if held := testkit.Scalar[bool](t, conn, "select claimed_until is not null from orders"); held {
		t.Error("the order stays claimed")
	}
}

// TestNewerStateBeatsStop: a server that another replica has observed stopped, before this one writes down that it
// is being stopped, stays stopped.
func TestNewerStateBeatsStop(t *testing.T) {
	t.Parallel()
	var s *service
	var running domain.Instance
	nova := scripted{stopping: func() {
		now, err := s.db.Now(t.Context())
		stopped := running
		stopped.Observe(domain.Server{ID: "s", Name: "web", Status: "SHUTOFF"})
		stopped.SeenAt = now
		if reported, changed := s.instances.ChangeAfter(t.Context(), []domain.Instance{stopped}, nil); err != nil ||
			changed != nil || reported != 1 {
			t.Errorf("%d changes were reported, %v, %v", reported, err, changed)
		}
	}}
	s, store, conn := newReconciler(t, nova)
	order, claim := placed(t, store, domain.OrderSpec{Stopped: true}, 1)
	running = order.Instances[0]
	running.Observe(domain.Server{ID: "s", Name: "web", Status: "ACTIVE"})
	if err := store.Decide(t.Context(), claim, running); err != nil {
		t.Fatal(err)
	}
	if err := store.Release(t.Context(), order, claim); err != nil {
		t.Fatal(err)
	}
	if err := s.reconcileOrders(t.Context()); err != nil {
		t.Error(err)
	}
	rows, _ := conn.Query(t.Context(), "select data->>'state' from events where subject = $1 order by seq",
		running.ID.String())
	states, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if diff := cmp.Diff([]string{"requested", "active", "stopped"}, states); diff != "" || err != nil {
		t.Errorf("%v %s", err, diff)
	}
}

// TestReusedServerIsStarted: an order that has taken an idle server has it started, also when only poll-instances is
// left to do it.
func TestReusedServerIsStarted(t *testing.T) {
	t.Parallel()
	started := 0
	s, store, conn := newReconciler(t, scripted{starting: func() { started++ }})
	order, claim := placed(t, store, domain.OrderSpec{Reuse: true}, 1)
	idle := order.Instances[0]
	idle.Observe(domain.Server{ID: "s", Name: "web", Status: "SHUTOFF"})
	err := errors.Join(store.Decide(t.Context(), claim, idle), store.Release(t.Context(), order, claim))
	if err != nil {
		t.Fatal(err)
	}
	if err := s.reconcileOrders(t.Context()); err != nil {
		t.Error(err)
	}
	if got := testkit.Scalar[string](t, conn, "select state from instances"); started != 1 || got != "updating" {
		t.Errorf("it was started %d times, and is %s", started, got)
	}
}

// TestOrdersOfOtherReplicas: an order ends also when one replica follows what Nova is changing, and another one has
// stored the last state of its instances.
func TestOrdersOfOtherReplicas(t *testing.T) {
	t.Parallel()
	for name, work := range map[string]func(*testing.T, *service) error{
		"the one that stored it": func(t *testing.T, s *service) error {
			claim, err := s.jobs.Claim(t.Context(), jobKind, jobKey, time.Minute)
			if err != nil || !claim.Acquired {
				t.Fatal("the other replica does not follow", err)
			}
			return (&event{service: s}).reconcile(t.Context())
		},
		"the one that follows": func(t *testing.T, s *service) error {
			s.followFor, s.pause = 3*time.Hour, time.Hour // it waits only while something is changing
			return (&event{service: s}).follow(t.Context())
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s, store, conn := newReconciler(t, scripted{})
			order, claim := placed(t, store, domain.OrderSpec{}, 1)
			active := order.Instances[0]
			active.Observe(domain.Server{ID: "s", Name: "web", Status: "ACTIVE"})
			err := errors.Join(store.Decide(t.Context(), claim, active), store.Release(t.Context(), order, claim))
			if err != nil {
				t.Fatal(err)
			}
			if err := work(t, s); err != nil {
				t.Error(err)
			}
			if got := testkit.Scalar[string](t, conn, "select status from orders"); got != "done" {
				t.Errorf("the order is %s", got)
			}
		})
	}
}

// TestLostClaim: an event notices that another replica has claimed a list that it reads. A list that it has released
// does not count.
func TestLostClaim(t *testing.T) {
	t.Parallel()
	s, _, conn := newReconciler(t, nil)
	e := &event{service: s, claim: domain.NewClaim()}
	_, err := conn.Exec(t.Context(),
		"insert into polls (project_id, since, full_at) values ('p', now(), now()), ('q', now(), now())")
	if err != nil {
		t.Fatal(err)
	}
	claimed, err := s.polls.ClaimDue(t.Context(), e.claim, claimFor, time.Now().Add(time.Hour), shardSize)
	if err != nil || len(claimed) != 2 {
		t.Fatalf("claimed %+v, %v", claimed, err)
	}
	e.held.add(claimed...)
	if err := e.renew(t.Context()); err != nil {
		t.Error(err)
	}
	if err := e.release(t.Context(), "q"); err != nil {
		t.Error(err)
	}
	if err := e.renew(t.Context()); err != nil {
		t.Errorf("with a released list: %v", err)
	}
	_, err = conn.Exec(t.Context(), "update polls set claim_id = gen_random_uuid() where project_id = 'p'")
	if lost := e.renew(t.Context()); err != nil || !errors.Is(lost, domain.ErrFenced) {
		t.Errorf("with a lost list: %v %v", err, lost)
	}
}
