package postgres_test

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"

	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/postgres"
	"github.com/cloudfn/cloudfn/shared/testkit"
)

// TestPassed: states between two reads are written before the newest one, with rising sequence. They are written
// neither a second time by another replica that has read the same, nor after something newer.
func TestPassed(t *testing.T) {
	t.Parallel()
	url := testkit.Database(t)
	db, conn := open(t, url), testkit.Connect(t, url)
	store, instances := postgres.Orders{DB: db}, postgres.Instances{DB: db}
	o := newOrder(1)
	place(t, store, o, ended)
	if err := change(t, store, []domain.Instance{with(o.Instances[0], "s", domain.InstanceActive)}); err != nil {
		t.Fatal(err)
	}
	known := get(t, store, o).Instances[0]
	began := known.Seq
	at := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	passed := map[string][]domain.PassedState{"s": {
		{State: domain.InstanceStopped, Status: "SHUTOFF", At: at},
		{State: domain.InstanceActive, Status: "ACTIVE", At: at.Add(time.Second)},
	}}
	seen := known
	seen.State, seen.RawStatus, seen.NovaAt, seen.SeenAt = domain.InstanceRebooting, "REBOOT", at.Add(time.Minute),
		time.Now()
	for _, want := range []int{3, 0} { // the second replica has read the same
		published, err := instances.ChangeAfter(t.Context(), []domain.Instance{seen}, passed)
		if err != nil || published != want {
			t.Errorf("published %d, want %d: %v", published, want, err)
		}
	}
	late := known // a delayed replica, with an older read
	late.SeenAt = time.Now().Add(-time.Minute)
	published, err := instances.ChangeAfter(t.Context(), []domain.Instance{late}, passed)
	if err != nil || published != 0 {
		t.Errorf("a delayed replica published %d: %v", published, err)
	}
	rows, _ := conn.Query(t.Context(),
		`select (seq - $2)::text || ' ' || (data->>'previous_state') || ' ' || (data->>'state') || coalesce(' ' || (data->>'changed_at'), '')
		from events where subject = $1 and seq > $2 order by seq`, known.ID.String(), began)
	got, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		t.Fatal(err)
	}
	want := []string{
		"1 active stopped 2026-01-02T03:04:05Z", "2 stopped active 2026-01-02T03:04:06Z",
		"3 active rebooting",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	if again := get(t, store, o).Instances[0]; !again.NovaAt.Equal(seen.NovaAt) {
		t.Errorf("what Nova said when is %s", again.NovaAt)
	}
}
