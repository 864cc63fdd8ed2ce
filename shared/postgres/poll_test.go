package postgres_test

import (
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/postgres"
	"github.com/cloudfn/cloudfn/shared/testkit"
)

// idsOf are the ids of instances, sorted.
func idsOf(found []domain.Instance) []string {
	var ids []string
	for _, i := range found {
		ids = append(ids, i.ID.String())
	}
	slices.Sort(ids)
	return ids
}

func sameInstances(t *testing.T, what string, got []domain.Instance, err error, want ...domain.Instance) {
	t.Helper()
	if err != nil || !slices.Equal(idsOf(got), idsOf(want)) {
		t.Errorf("%s: got %v %v, want %v", what, idsOf(got), err, idsOf(want))
	}
}

// TestPolls: which projects are followed and how far, and which instances are to be read.
func TestPolls(t *testing.T) {
	t.Parallel()
	url := testkit.Database(t)
	db, conn := open(t, url), testkit.Connect(t, url)
	store, polls := postgres.Orders{DB: db}, postgres.Polls{DB: db}
	followed := func() ([]domain.Poll, error) {
		noError(t, polls.Prepare(t.Context()))
		return polls.ListFollowed(t.Context())
	}
	if got, err := followed(); err != nil || len(got) != 0 {
		t.Fatalf("got %v %v", got, err)
	}
	o := newOrder(6)
	claim := place(t, store, o, long)
	is := o.Instances
	known := []domain.Instance{
		with(is[0], "s0", domain.InstanceActive), with(is[1], "s1", domain.InstanceUnknown), with(is[2], "s2",
			domain.InstanceBuilding),
		with(is[3], "s3", domain.InstanceDeleted), refusedAs(is[4], "quota_exceeded"),
	}
	known[0].MissedAt = time.Now().Add(-time.Hour)
	noError(t, change(t, store, known))
	got, err := followed()
	if err != nil || len(got) != 1 || got[0].ProjectID != o.ProjectID || got[0].Uncertain != 2 ||
		got[0].Since.IsZero() || !got[0].Since.Equal(got[0].FullAt) {
		t.Fatalf("got %+v %v", got, err)
	}
	moving, err := polls.ListMoving(t.Context(), time.Minute)
	if err != nil || !slices.Equal(moving, []string{o.ProjectID}) {
		t.Errorf("moving: %v %v", moving, err)
	}
	if moving, err = polls.ListMoving(t.Context(), 0); err != nil || len(moving) != 0 {
		t.Errorf("moving for long: %v %v", moving, err)
	}
	projects, now := []string{o.ProjectID}, time.Now().Add(time.Minute)
	found, err := polls.ListUncertain(t.Context(), projects, 10)
	sameInstances(t, "uncertain", found, err, is[0], is[1])
	found, err = polls.ListUncertain(t.Context(), []string{"other"}, 10)
	sameInstances(t, "another project's", found, err)
	noError(t, polls.RecordUnchanged(t.Context(), is[:1], now))
	found, err = polls.ListMissing(t.Context(), projects, now)
	sameInstances(t, "missing", found, err, is[1], is[2])
	found, err = polls.ListMissing(t.Context(), projects, now.Add(-time.Hour))
	sameInstances(t, "missing for an hour", found, err)
	found, err = polls.ListStale(t.Context(), o.ProjectID, now)
	sameInstances(t, "stale", found, err, is[2])
	found, err = polls.ListStale(t.Context(), o.ProjectID, now.Add(time.Minute))
	sameInstances(t, "stale later", found, err, is[0], is[2])
	found, err = polls.ListStale(t.Context(), o.ProjectID, now.Add(-time.Hour))
	sameInstances(t, "stale for an hour", found, err)

	call := begin(t, store, o, claim, 5)
	servers := []domain.Server{
		{ID: "s0", ProjectID: o.ProjectID},
		{ID: "s3", ProjectID: o.ProjectID},
		{ID: "s1", ProjectID: "other"},
		{
			ID: "copied later", ProjectID: o.ProjectID, CreatedAt: now,
			Tags: []string{is[5].ID.String(), domain.CallTag(call.ID)},
		},
		{ID: "new", ProjectID: o.ProjectID, Tags: []string{
			is[5].ID.String(), "tag", is[2].ID.String(),
			domain.CallTag(call.ID),
		}},
		{ID: "copied", ProjectID: o.ProjectID, Tags: []string{is[5].ID.String(), domain.OrderTag(o.ID)}},
		{ID: "foreign", ProjectID: "other", Tags: []string{is[5].ID.String()}},
	}
	found, err = polls.ListByServers(t.Context(), servers)
	sameInstances(t, "of servers, while a copy is at the order", found, err, is[0])
	noError(t, store.Release(t.Context(), o, claim))
	found, err = polls.ListByServers(t.Context(), servers)
	sameInstances(t, "of servers", found, err, is[0], is[5])
	if last := found[len(found)-1]; last.ServerID != "new" || last.CallID != call.ID {
		t.Errorf("the instance without a server is about to get %q by the call %s", last.ServerID, last.CallID)
	}

	at := testkit.Scalar[time.Time](t, conn, "select now()")
	id, other := domain.NewClaim(), domain.NewClaim()
	due := func(claim domain.Claim) []domain.Poll {
		t.Helper()
		return must(polls.ClaimDue(t.Context(), claim, long, at, 10))(t)
	}
	if got := due(id); len(got) != 1 || got[0].Uncertain != 2 {
		t.Fatalf("claimed %+v", got)
	}
	if got := due(other); len(got) != 0 {
		t.Errorf("claimed twice: %+v", got)
	}
	early := domain.Poll{ProjectID: o.ProjectID, Since: at.Add(-time.Hour), FullAt: at.Add(-time.Hour)}
	for claim, read := range map[domain.Claim]domain.Poll{
		id:    {ProjectID: o.ProjectID, Since: at, FullAt: at},
		other: early,
	} {
		noError(t, polls.RecordRead(t.Context(), claim, []domain.Poll{read}))
	}
	if got, err = followed(); err != nil || !got[0].Since.Equal(at) || !got[0].FullAt.Equal(at) {
		t.Errorf("a replica that was overtaken took something back: %+v %v", got, err)
	}
	if got := due(other); len(got) != 0 {
		t.Errorf("it was read since, and is claimed: %+v", got)
	}
	must(conn.Exec(t.Context(), "update instances set state = 'deleted'"))(t)
	if got, err = followed(); err != nil || len(got) != 0 ||
		testkit.Scalar[int](t, conn, "select count(*)::int from polls") != 0 {
		t.Errorf("a project without instances keeps its row: %+v %v", got, err)
	}
}

// TestClaimCloud: one replica claims a cloud and then writes for all of its projects. What another one has claimed
// stays claimed.
func TestClaimCloud(t *testing.T) {
	t.Parallel()
	store := orders(t)
	polls := postgres.Polls(store)
	place(t, store, newOrder(1), ended)
	noError(t, polls.Prepare(t.Context()))
	mine, other := domain.NewClaim(), domain.NewClaim()
	_, first, err1 := polls.ClaimCloud(t.Context(), mine, long)
	_, second, err2 := polls.ClaimCloud(t.Context(), other, long)
	if !first || second || err1 != nil || err2 != nil {
		t.Fatalf("claimed %t %t: %v %v", first, second, err1, err2)
	}
	claimed, err := polls.ClaimSome(t.Context(), other, long, []string{"p1"})
	if err != nil || len(claimed) != 1 {
		t.Fatalf("claimed %+v %v", claimed, err)
	}
	since := time.Now().Add(time.Hour).UTC().Truncate(time.Microsecond)
	noError(t, polls.RecordRead(t.Context(), mine, []domain.Poll{{ProjectID: "p1", Since: since}}))
	got, err := polls.ListFollowed(t.Context())
	if err != nil || len(got) != 1 || !got[0].Since.Equal(since) {
		t.Errorf("got %+v %v", got, err)
	}
	if claimed, err = polls.ClaimSome(t.Context(), mine, long, []string{"p1"}); err != nil || len(claimed) != 0 {
		t.Errorf("what another one has claimed was freed: %+v %v", claimed, err)
	}
	noError(t, polls.Release(t.Context(), mine))
	if _, held, err := polls.ClaimCloud(t.Context(), other, long); !held || err != nil {
		t.Errorf("it is not free: %v", err)
	}
}

// TestPausedProjectIsNotClaimed, because it could not be entered, is claimed neither for a round nor because something
// moves in it.
func TestPausedProjectIsNotClaimed(t *testing.T) {
	t.Parallel()
	store := orders(t)
	polls := postgres.Polls(store)
	place(t, store, newOrder(1), ended)
	noError(t, polls.Prepare(t.Context()))
	claim := domain.NewClaim()
	claimed, err := polls.ClaimSome(t.Context(), claim, long, []string{"p1"})
	if err != nil || len(claimed) != 1 {
		t.Fatalf("claimed %+v %v", claimed, err)
	}
	claimed[0].NotBefore = time.Now().Add(time.Hour)
	noError(t, polls.RecordRead(t.Context(), claim, claimed))
	due, err1 := polls.ClaimDue(t.Context(), claim, long, time.Now().Add(time.Hour), 10)
	moving, err2 := polls.ClaimSome(t.Context(), claim, long, []string{"p1"})
	if len(due)+len(moving) != 0 || err1 != nil || err2 != nil {
		t.Errorf("claimed %+v %+v: %v %v", due, moving, err1, err2)
	}
}

// TestRecurringJob are renewed while someone is at them, and free as soon as they are released.
func TestRecurringJob(t *testing.T) {
	t.Parallel()
	jobs := postgres.Jobs{DB: open(t, testkit.Database(t))}
	id, _ := claim(t, jobs, "again", long)
	noError(t, jobs.Renew(t.Context(), "kind", "again", id, long))
	if err := jobs.Renew(t.Context(), "kind", "again", domain.NewClaim(), long); !errors.Is(err, domain.ErrFenced) {
		t.Errorf("a stranger renewed it: %v", err)
	}
	noError(t, jobs.Release(t.Context(), "kind", "again", domain.NewClaim()))
	if _, held := claim(t, jobs, "again", long); held {
		t.Error("a stranger released it")
	}
	noError(t, jobs.Release(t.Context(), "kind", "again", id))
	late, held := claim(t, jobs, "again", ended)
	if !held {
		t.Error("it is not free")
	}
	if err := jobs.Renew(t.Context(), "kind", "again", late, long); !errors.Is(err, domain.ErrFenced) {
		t.Errorf("a claim that has expired was renewed: %v", err)
	}
}

// TestUnfollowedInstances: instances in another cloud and disconnected ones are not polled. A disconnected instance
// that counts against a connection's quota is.
func TestUnfollowedInstances(t *testing.T) {
	t.Parallel()
	l := newTestDB(t)
	polls := postgres.Polls{DB: l.DB}
	c := l.storeConnection(t, domain.ConnectionQuota{}, nil)
	delegated, own := connectedOrder(c, 3), newOrder(2)
	must(l.Place(t.Context(), delegated, 0))(t)
	place(t, l.Orders, own, ended)
	is := slices.Concat(delegated.Instances, own.Instances)
	followed, remote, disconnected, plain, forgotten := is[0], is[1], is[2], is[3], is[4]
	var servers []domain.Server
	for n := range is {
		is[n] = with(is[n], fmt.Sprint("s", n), domain.InstanceBuilding)
		servers = append(servers, domain.Server{ID: is[n].ServerID, ProjectID: "p1"})
	}
	noError(t, change(t, l.Orders, is))
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
	noError(t, change(t, store, known))
	server := func(id, project string, o domain.Order, n int, more ...string) domain.Server {
		return domain.Server{
			ID: id, Name: "copied", ProjectID: project,
			Tags: append(more, o.Instances[n].ID.String(), domain.OrderTag(o.ID)),
		}
	}
	servers := []domain.Server{
		server("k0", "p1", kept, 0), server("k0 again", "p1", kept, 0, "a tag of its owner"),
		server("k1 again", "p1", kept, 1),
		server("k2", "p1", kept, 2), // that no one has written down yet
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
	noError(t, store.Release(t.Context(), kept, claim))
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
	must(store.Place(t.Context(), theirs, 0))(t)
	noError(t, change(t, store, []domain.Instance{with(theirs.Instances[0], "theirs",
		domain.InstanceActive)}))
	rolling.Spec.OnFailure = domain.Rollback
	for n, o := range []domain.Order{decided, open, finalized, rolling} {
		for i := range o.Instances {
			o.Instances[i].ID = uuid.New()
		}
		place(t, store, o, long)
		noError(t, change(t, store, []domain.Instance{with(o.Instances[0], string(rune('a'+n)),
			domain.InstanceActive)}))
	}
	noError(t, store.Finalize(t.Context(), finalStatus(get(t, store, finalized))))
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
