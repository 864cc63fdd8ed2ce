package postgres_test

import (
	"errors"
	"testing"
	"time"

	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/postgres"
	"github.com/cloudfn/cloudfn/shared/testkit"
)

// TestClaimCloud: one replica claims a cloud and then writes for all of its projects. What another one has claimed
// stays claimed.
func TestClaimCloud(t *testing.T) {
	t.Parallel()
	store := orders(t)
	polls := postgres.Polls(store)
	place(t, store, newOrder(1), ended)
	if err := polls.Prepare(t.Context()); err != nil {
		t.Fatal(err)
	}
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
	if err := polls.RecordRead(t.Context(), mine, []domain.Poll{{ProjectID: "p1", Since: since}}); err != nil {
		t.Fatal(err)
	}
	got, err := polls.ListFollowed(t.Context())
	if err != nil || len(got) != 1 || !got[0].Since.Equal(since) {
		t.Errorf("got %+v %v", got, err)
	}
	if claimed, err = polls.ClaimSome(t.Context(), mine, long, []string{"p1"}); err != nil || len(claimed) != 0 {
		t.Errorf("what another one has claimed was freed: %+v %v", claimed, err)
	}
	if err := polls.Release(t.Context(), mine); err != nil {
		t.Fatal(err)
	}
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
	if err := polls.Prepare(t.Context()); err != nil {
		t.Fatal(err)
	}
	claim := domain.NewClaim()
	claimed, err := polls.ClaimSome(t.Context(), claim, long, []string{"p1"})
	if err != nil || len(claimed) != 1 {
		t.Fatalf("claimed %+v %v", claimed, err)
	}
	claimed[0].NotBefore = time.Now().Add(time.Hour)
	if err := polls.RecordRead(t.Context(), claim, claimed); err != nil {
		t.Fatal(err)
	}
	due, err1 := polls.ClaimDue(t.Context(), claim, long, time.Now().Add(time.Hour), 10)
	moving, err2 := polls.ClaimSome(t.Context(), claim, long, []string{"p1"})
	if len(due)+len(moving) != 0 || err1 != nil || err2 != nil {
		t.Errorf("claimed %+v %+v: %v %v", due, moving, err1, err2)
	}
}

// TestRecurringJob are renewed while somebody is at them, and free as soon as they are released.
func TestRecurringJob(t *testing.T) {
	t.Parallel()
	jobs := postgres.Jobs{DB: open(t, testkit.Database(t))}
	id, _ := claim(t, jobs, "again", long)
	if err := jobs.Renew(t.Context(), "kind", "again", id, long); err != nil {
		t.Error(err)
	}
	if err := jobs.Renew(t.Context(), "kind", "again", domain.NewClaim(), long); !errors.Is(err, domain.ErrFenced) {
		t.Errorf("a stranger renewed it: %v", err)
	}
	if err := jobs.Release(t.Context(), "kind", "again", domain.NewClaim()); err != nil {
		t.Error(err)
	}
	if _, held := claim(t, jobs, "again", long); held {
		t.Error("a stranger released it")
	}
	if err := jobs.Release(t.Context(), "kind", "again", id); err != nil {
		t.Error(err)
	}
	late, held := claim(t, jobs, "again", ended)
	if !held {
		t.Error("it is not free")
	}
	if err := jobs.Renew(t.Context(), "kind", "again", late, long); !errors.Is(err, domain.ErrFenced) {
		t.Errorf("a claim that is over was renewed: %v", err)
	}
}
