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

// scripted is a session of which a call meets what another replica does.
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

// attending is a service that attends to orders of a real database, with a Nova of which only what it is asked counts.
func attending(t *testing.T, nova session) (*service, postgres.Orders, *pgx.Conn) {
	t.Helper()
	url := testkit.Database(t)
	db, err := postgres.Open(postgres.Config{URL: domain.Secret(url), MaxConns: 4}, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(db.Close)
	store := postgres.Orders{DB: db}
	return &service{
		cloud: &sessions{login: func(context.Context) (session, error) { return nova, nil }, kept: map[string]session{}},
		clock: db, polls: postgres.Polls{DB: db}, instances: postgres.Instances{DB: db}, orders: store, wake: func() {},
	}, store, testkit.Connect(t, url)
}

// placed is an order of n instances, as it is stored.
func placed(t *testing.T, store postgres.Orders, spec domain.OrderSpec, n int) (domain.Order, domain.Claim) {
	t.Helper()
	order := domain.Order{ID: uuid.New(), ProjectID: "p", DomainID: "d", UserID: "u", BodySHA256: []byte{1}, Status: domain.OrderRunning, Spec: spec}
	for range n {
		order.Instances = append(order.Instances, domain.Instance{ID: uuid.New(), ProjectID: "p", Name: "web", State: domain.InstanceRequested})
	}
	claim, err := store.Place(t.Context(), order, time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	return order, claim
}

// TestAnOrderIsReadUnderItsClaim: of an order that is rolled back, an instance for which another replica sent a create call since the
// order was read, before it died, is not given up while Nova may still make its server. Nobody would delete that server.
func TestAnOrderIsReadUnderItsClaim(t *testing.T) {
	t.Parallel()
	s, store, conn := attending(t, scripted{})
	order, claim := placed(t, store, domain.OrderSpec{OnFailure: domain.Rollback}, 2)
	refused := order.Instances[0]
	refused.State, refused.Problem = domain.InstanceError, &domain.Problem{Code: "quota_exceeded"}
	if err := store.Decide(t.Context(), claim, refused); err != nil {
		t.Fatal(err)
	}
	s.orders = interrupted{store, func() {
		call := domain.CreateCall{ID: uuid.New(), InstanceID: order.Instances[1].ID, Name: "web"}
		if err := store.BeginCall(t.Context(), order, claim, call, 0, time.Minute); err != nil { // the claim ends with the replica
			t.Error(err)
		}
	}}
	if err := s.attend(t.Context()); err != nil {
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

// TestAStopIsOlderThanWhatWasSeen: a server that another replica has seen stopped, before this one writes down that it is being
// stopped, stays stopped.
func TestAStopIsOlderThanWhatWasSeen(t *testing.T) {
	t.Parallel()
	var s *service
	var running domain.Instance
	nova := scripted{stopping: func() {
		now, err := s.clock.Now(t.Context())
		stopped := running
		stopped.Seen(domain.Server{ID: "s", Name: "web", Status: "SHUTOFF"})
		stopped.SeenAt = now
		if told, changed := s.instances.ChangeAfter(t.Context(), []domain.Instance{stopped}, nil); err != nil || changed != nil || told != 1 {
			t.Errorf("%d told, %v, %v", told, err, changed)
		}
	}}
	s, store, conn := attending(t, nova)
	order, claim := placed(t, store, domain.OrderSpec{Stopped: true}, 1)
	running = order.Instances[0]
	running.Seen(domain.Server{ID: "s", Name: "web", Status: "ACTIVE"})
	if err := store.Decide(t.Context(), claim, running); err != nil {
		t.Fatal(err)
	}
	if err := store.Release(t.Context(), order, claim); err != nil {
		t.Fatal(err)
	}
	if err := s.attend(t.Context()); err != nil {
		t.Error(err)
	}
	rows, _ := conn.Query(t.Context(), "select data->>'state' from events where subject = $1 order by seq", running.ID.String())
	states, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if diff := cmp.Diff([]string{"requested", "active", "stopped"}, states); diff != "" || err != nil {
		t.Errorf("%v %s", err, diff)
	}
}

// TestAnIdleServerIsStarted: an order that has taken an idle server has it started, also when only poll-instances is left to do it.
func TestAnIdleServerIsStarted(t *testing.T) {
	t.Parallel()
	started := 0
	s, store, conn := attending(t, scripted{starting: func() { started++ }})
	order, claim := placed(t, store, domain.OrderSpec{Reuse: true}, 1)
	idle := order.Instances[0]
	idle.Seen(domain.Server{ID: "s", Name: "web", Status: "SHUTOFF"})
	if err := errors.Join(store.Decide(t.Context(), claim, idle), store.Release(t.Context(), order, claim)); err != nil {
		t.Fatal(err)
	}
	if err := s.attend(t.Context()); err != nil {
		t.Error(err)
	}
	if got := testkit.Scalar[string](t, conn, "select state from instances"); started != 1 || got != "updating" {
		t.Errorf("it was started %d times, and is %s", started, got)
	}
}
