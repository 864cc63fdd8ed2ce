package postgres_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/postgres"
	"github.com/cloudfn/cloudfn/shared/testkit"
)

// TestUnfollowedInstances: instances in another cloud and disconnected ones are not polled. A disconnected instance
// that counts against a connection's quota is.
func TestUnfollowedInstances(t *testing.T) {
	t.Parallel()
	l := newTestDB(t)
	polls := postgres.Polls{DB: l.DB}
	c := l.storeConnection(t, domain.ConnectionQuota{}, nil)
	delegated, own := connectedOrder(c, 3), newOrder(2)
	if _, err := l.Place(t.Context(), delegated, 0); err != nil {
		t.Fatal(err)
	}
	place(t, l.Orders, own, ended)
	is := slices.Concat(delegated.Instances, own.Instances)
	followed, remote, disconnected, plain, forgotten := is[0], is[1], is[2], is[3], is[4]
	var servers []domain.Server
	for n := range is {
		is[n] = with(is[n], fmt.Sprint("s", n), domain.InstanceBuilding)
		servers = append(servers, domain.Server{ID: is[n].ServerID, ProjectID: "p1"})
	}
	if err := change(t, l.Orders, is); err != nil {
		t.Fatal(err)
	}
	l.exec(t, "update instances set remote = true where id = $1", remote.ID)
	l.exec(t, "update instances set disconnected_at = now() where id = any($1)",
		[]uuid.UUID{disconnected.ID, forgotten.ID})
	later := time.Now().Add(time.Minute)
	found, err := polls.ListByServers(t.Context(), servers)
	sameInstances(t, "of servers", found, err, followed, disconnected, plain)
	found, err = polls.ListMissing(t.Context(), []string{"p1"}, later)
	sameInstances(t, "missing", found, err, followed, disconnected, plain)
	found, err = polls.ListStale(t.Context(), "p1", later)
	sameInstances(t, "stale", found, err, followed, disconnected, plain)
	l.exec(t, "update instances set missed_at = now()")
	found, err = polls.ListUncertain(t.Context(), []string{"p1"}, 10)
	sameInstances(t, "uncertain", found, err, followed, disconnected, plain)

	// A disconnected instance is polled without events.
	events := func() int { return testkit.Scalar[int](t, l.conn, "select count(*)::int from events") }
	before := events()
	published, err := postgres.Instances{DB: l.DB}.Change(t.Context(),
		[]domain.Instance{with(disconnected, "s2", domain.InstanceDeleted)})
	if state := testkit.Scalar[string](t, l.conn, "select state from instances where id = $1", disconnected.ID); err != nil ||
		published != 0 || events() != before || state != "deleted" {
		t.Errorf("%d events were published (%d in the database), the instance is %s: %v",
			published, events()-before, state, err)
	}

	l.exec(t, "update instances set remote = true where id = any($1)", []uuid.UUID{followed.ID, plain.ID})
	if projects, err := polls.ListFollowed(t.Context()); err != nil || len(projects) != 0 {
		t.Errorf("the project is followed: %v %v", projects, err)
	}
	if projects, err := polls.ListMoving(t.Context(), time.Minute); err != nil || len(projects) != 0 {
		t.Errorf("the project moves: %v %v", projects, err)
	}
}

// TestUnwanted: a server with the tags of an order and its instance that is not that instance's own is listed until
// its event is published.
func TestUnwanted(t *testing.T) {
	t.Parallel()
	url := testkit.Database(t)
	store := postgres.Orders{DB: open(t, url)}
	polls := postgres.Polls(store)
	kept := newOrder(4)
	claim := place(t, store, kept, long)
	known := []domain.Instance{
		with(kept.Instances[0], "k0", domain.InstanceActive), with(kept.Instances[1], "k1",
			domain.InstanceDeleted), with(kept.Instances[3], "k3", domain.InstanceActive),
	}
	if err := change(t, store, known); err != nil {
		t.Fatal(err)
	}
	server := func(id, project string, o domain.Order, n int, more ...string) domain.Server {
		return domain.Server{
			ID: id, Name: "copied", ProjectID: project,
			Tags: append(more, o.Instances[n].ID.String(), domain.OrderTag(o.ID)),
		}
	}
	servers := []domain.Server{
		server("k0", "p1", kept, 0), server("k0 again", "p1", kept, 0, "a tag of its owner"),
		server("k1 again", "p1", kept, 1),
		server("k2", "p1", kept, 2), // that nobody has written down yet
		server("k3", "p1", kept, 1), // another instance's by now
		server("k0 elsewhere", "p2", kept, 0), server("of both", "p1", kept, 0, kept.Instances[1].ID.String()),
		server("of another order", "p1", domain.Order{ID: newOrder(1).ID, Instances: kept.Instances}, 0),
		{ID: "mine", ProjectID: "p1"},
	}
	expect := func(want ...string) {
		t.Helper()
		got, err := polls.ListUnwanted(t.Context(), servers)
		slices.Sort(got)
		if err != nil || !slices.Equal(got, want) {
			t.Errorf("got %q %v, want %q", got, err, want)
		}
	}
	expect()
	if err := store.Release(t.Context(), kept, claim); err != nil {
		t.Fatal(err)
	}
	expect("k0 again", "k1 again", "k2")
	for n, want := range []bool{true, false} {
		if published, err := store.PublishUnexpected(t.Context(), kept.Instances[0], servers[1]); err != nil ||
			published != want {
			t.Errorf("%d: published is %t, %v", n, published, err)
		}
	}
	expect("k1 again", "k2")
	conn := testkit.Pool(t, url)
	if got := testkit.Scalar[string](t, conn,
		`select data->>'unexpected_server_id' from events where seq = 3 and subject = $1`, kept.Instances[0].ID.String()); got != "k0 again" {
		t.Errorf("the event reports %q", got)
	}
	for _, own := range []domain.Server{servers[0], servers[4]} {
		if published, err := store.PublishUnexpected(t.Context(), kept.Instances[0], own); err != nil || published {
			t.Errorf("%s, which is tracked: published is %t, %v", own.ID, published, err)
		}
	}
}

// TestRunning: the orders that need no caller to continue are listed.
func TestRunning(t *testing.T) {
	t.Parallel()
	store := orders(t)
	polls := postgres.Polls(store)
	decided, open, finalized, rolling := newOrder(1), newOrder(2), newOrder(1), newOrder(2)
	// run-connections continues this one.
	theirs := connectedOrder((testDB{Orders: store}).storeConnection(t, domain.ConnectionQuota{}, nil), 1)
	if _, err := store.Place(t.Context(), theirs, 0); err != nil {
		t.Fatal(err)
	}
	if err := change(t, store, []domain.Instance{with(theirs.Instances[0], "theirs",
		domain.InstanceActive)}); err != nil {
		t.Fatal(err)
	}
	rolling.Spec.OnFailure = domain.Rollback
	for n, o := range []domain.Order{decided, open, finalized, rolling} {
		for i := range o.Instances {
			o.Instances[i].ID = uuid.New()
		}
		place(t, store, o, long)
		if err := change(t, store, []domain.Instance{with(o.Instances[0], string(rune('a'+n)),
			domain.InstanceActive)}); err != nil {
			t.Fatal(err)
		}
	}
	if err := store.Finalize(t.Context(), finalStatus(get(t, store, finalized))); err != nil {
		t.Fatal(err)
	}
	var got, want []string
	running, err := polls.ListRunningOrders(t.Context(), domain.RunningOrder{}, 10)
	for _, o := range running {
		got = append(got, o.ProjectID+o.ID.String())
	}
	for _, o := range []domain.Order{decided, rolling} {
		want = append(want, o.ProjectID+o.ID.String())
	}
	slices.Sort(got)
	slices.Sort(want)
	if err != nil || !slices.Equal(got, want) {
		t.Errorf("got %v %v, want %v", got, err, want)
	}
	first, err1 := polls.ListRunningOrders(t.Context(), domain.RunningOrder{}, 1)
	if err1 != nil || len(first) != 1 || first[0] != running[0] {
		t.Fatalf("a page of one: got %v %v, want %v", first, err1, running[:1])
	}
	second, err2 := polls.ListRunningOrders(t.Context(), first[0], 10)
	if err2 != nil || !slices.Equal(second, running[1:]) {
		t.Errorf("the page after it: got %v %v, want %v", second, err2, running[1:])
	}
}
