package postgres_test

import (
	"slices"
	"testing"
	"time"

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

// TestPolls: which projects are followed and how far, and which instances are to be asked for.
func TestPolls(t *testing.T) {
	t.Parallel()
	url := testkit.Database(t)
	db, conn := open(t, url), testkit.Connect(t, url)
	store, polls := postgres.Orders{DB: db}, postgres.Polls{DB: db}
	followed := func() ([]domain.Poll, error) {
		if err := polls.Prepare(t.Context()); err != nil {
			t.Fatal(err)
		}
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
	if err := change(t, store, known); err != nil {
		t.Fatal(err)
	}
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
	if err := polls.RecordUnchanged(t.Context(), is[:1], now); err != nil {
		t.Fatal(err)
	}
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
	if err := store.Release(t.Context(), o, claim); err != nil {
		t.Fatal(err)
	}
	found, err = polls.ListByServers(t.Context(), servers)
	sameInstances(t, "of servers", found, err, is[0], is[5])
	if last := found[len(found)-1]; last.ServerID != "new" || last.CallID != call.ID {
		t.Errorf("the instance without a server is about to get %q by the call %s", last.ServerID, last.CallID)
	}

	at := testkit.Scalar[time.Time](t, conn, "select now()")
	id, other := domain.NewClaim(), domain.NewClaim()
	due := func(claim domain.Claim) []domain.Poll {
		t.Helper()
		due, err := polls.ClaimDue(t.Context(), claim, long, at, 10)
		if err != nil {
			t.Fatal(err)
		}
		return due
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
		if err := polls.RecordRead(t.Context(), claim, []domain.Poll{read}); err != nil {
			t.Fatal(err)
		}
	}
	if got, err = followed(); err != nil || !got[0].Since.Equal(at) || !got[0].FullAt.Equal(at) {
		t.Errorf("a replica that was overtaken took something back: %+v %v", got, err)
	}
	if got := due(other); len(got) != 0 {
		t.Errorf("it was read since, and is claimed: %+v", got)
	}
	if _, err := conn.Exec(t.Context(), "update instances set state = 'deleted'"); err != nil {
		t.Fatal(err)
	}
	if got, err = followed(); err != nil || len(got) != 0 ||
		testkit.Scalar[int](t, conn, "select count(*)::int from polls") != 0 {
		t.Errorf("a project without instances keeps its row: %+v %v", got, err)
	}
}
