package postgres_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/due"
	"github.com/cloudfn/cloudfn/shared/postgres"
	"github.com/cloudfn/cloudfn/shared/testkit"
)

// take claims rows of a queue.
func take[T any](
	ctx context.Context, q postgres.Queue[T], claimFor time.Duration, most int,
) ([]T, domain.Claim, error) {
	got, err := q.Claim(ctx, claimFor, most, nil)
	return values(got), got.Claim, err
}

func values[T any](got due.Claimed[T]) (all []T) {
	for _, row := range got.Rows {
		all = append(all, row.Value)
	}
	return all
}

// isDue reports whether a row of the queue may be claimed now or soon.
func isDue[T any](ctx context.Context, q postgres.Queue[T], soon time.Duration) (bool, error) {
	next, err := q.NextDue(ctx, soon, nil)
	return next != nil, err
}

// TestClaimedRowHidesNoOther: the next due time is that of the row that can be claimed first, whatever other replicas
// work on.
func TestClaimedRowHidesNoOther(t *testing.T) {
	t.Parallel()
	store, conn := reservable(t, 2)
	create(t, store, newLease(0, 1))
	got, err := store.Queue().Claim(t.Context(), 42*time.Second, 1, nil)
	if err != nil || len(got.Rows) != 1 {
		t.Fatalf("claimed %d: %v", len(got.Rows), err)
	}
	if age := testkit.Scalar[time.Time](t, conn, "select clock_timestamp()").Sub(got.At); age < 0 || age > time.Minute {
		t.Errorf("the claim's time is %s ago", age)
	}
	later := create(t, store, newLease(0, 1))
	write(t, conn, "update leases set due_at = now() + interval '3 seconds' where id = $1", later.ID)
	next, err := store.Queue().NextDue(t.Context(), time.Minute, nil)
	if err != nil || next == nil || *next > 4*time.Second {
		t.Errorf("the next lease is due in %v: %v", next, err)
	}
	write(t, conn, "update leases set due_at = now() + interval '1 day' where id = $1", later.ID)
	next, err = store.Queue().NextDue(t.Context(), time.Minute, nil)
	if err != nil || next == nil || *next < 30*time.Second || *next > 43*time.Second {
		t.Errorf("the claim ends in %v: %v", next, err)
	}
}

// TestClaimReleasesWhatItCannotComplete: rows whose parts cannot be read are due for the next claim.
func TestClaimReleasesWhatItCannotComplete(t *testing.T) {
	t.Parallel()
	store, conn := reservable(t, 1)
	create(t, store, newLease(0, 1))
	write(t, conn, "alter table reservations rename to hidden")
	// what the statement itself needs of the table
	write(t, conn, "create view reservations as select project_id, lease_id, type from hidden")
	if got, err := store.Queue().Claim(t.Context(), long, 1, nil); err == nil {
		t.Fatalf("claimed %+v without parts", got)
	}
	write(t, conn, "drop view reservations")
	write(t, conn, "alter table hidden rename to reservations")
	if found, _, err := take(t.Context(), store.Queue(), long, 1); err != nil || len(found) != 1 {
		t.Errorf("claimed %d leases after that: %v", len(found), err)
	}
}

// TestOrderOfLeases: ends come before starts, and starts before upkeep, which is left out when its share is full. So
// are the leases of a project whose share is.
func TestOrderOfLeases(t *testing.T) {
	t.Parallel()
	store, conn := reservable(t, 30)
	ids := map[string]domain.Lease{}
	for _, name := range []string{"upkeep 1", "upkeep 2", "start", "end", "of p2"} {
		made := newLease(0, 1)
		if name == "of p2" {
			made.Lease.ProjectID = "p2"
		}
		made.Lease.Name = name
		ids[name] = create(t, store, made)
	}
	write(t, conn, "update leases set due_at = now() - interval '1 minute', starts_at = now() - interval '1 day'")
	write(t, conn, "update leases set status = 'active', due_at = now() - interval '1 day' where name like 'upkeep%'")
	write(t, conn, "update leases set status = 'ending', due_at = now() where name = 'end'")
	names := func(most int, full ...string) string {
		t.Helper()
		claimed := must(store.Queue().Claim(t.Context(), long, most, full))(t)
		got := make([]string, len(claimed.Rows))
		for n, row := range claimed.Rows {
			got[n] = row.Value.Name
		}
		write(t, conn, "update leases set claim_id = null, claimed_until = null")
		return strings.Join(got, ", ")
	}
	if got := names(1); got != "end" {
		t.Errorf("first comes %q", got)
	}
	if got := names(3, "upkeep"); got != "end, start, of p2" && got != "end, of p2, start" {
		t.Errorf("without upkeep come %q", got)
	}
	if got := names(9, "project p1"); got != "of p2" {
		t.Errorf("without the first project come %q", got)
	}
	if got := names(9); len(got) != len("end, start, of p2, upkeep 1, upkeep 2") {
		t.Errorf("all are %q", got)
	}
}
