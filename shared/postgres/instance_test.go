package postgres_test

import (
	"context"
	"encoding/json"
	"errors"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"pgregory.net/rapid"

	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/postgres"
	"github.com/cloudfn/cloudfn/shared/testkit"
)

// with is an instance as Nova shows it.
func with(i domain.Instance, server string, state domain.InstanceState) domain.Instance {
	i.ServerID, i.State, i.RawStatus = server, state, "RAW"
	return i
}

func refusedAs(i domain.Instance, code string) domain.Instance {
	i.State, i.Problem = domain.InstanceError, &domain.Problem{Code: code, Detail: "nova: no"}
	return i
}

// change writes what was observed of instances.
func change(t *testing.T, store postgres.Orders, seen []domain.Instance) error {
	t.Helper()
	_, err := postgres.Instances(store).Change(t.Context(), seen)
	return err
}

// TestDecide: the result of a create call is written once.
func TestDecide(t *testing.T) {
	t.Parallel()
	store, o := orders(t), newOrder(3)
	claim := place(t, store, o, long)
	want := []domain.Instance{
		with(o.Instances[0], "s0", domain.InstanceBuilding),
		refusedAs(o.Instances[1], "quota_exceeded"), o.Instances[2],
	}
	noError(t, errors.Join(store.Decide(t.Context(), claim, want[0]),
		store.Decide(t.Context(), claim, want[1])))
	got := get(t, store, o)
	if diff := cmp.Diff(want, got.Instances, cmpopts.IgnoreFields(domain.Instance{}, "UpdatedAt", "CreatedAt", "SeenAt",
		"MissedAt", "Seq"), cmpopts.EquateEmpty()); diff != "" {
		t.Error(diff)
	}
	if got.Undecided() != 1 {
		t.Errorf("%d are undecided", got.Undecided())
	}
	wantError(t, "a second server for one instance", store.Decide(t.Context(), claim,
		with(o.Instances[0], "another", domain.InstanceBuilding)), domain.ErrFenced)
	if id := get(t, store, o).Instances[0].ServerID; id != "s0" {
		t.Errorf("the server is %s", id)
	}
	// With all decided there is nothing left to claim.
	noError(t, errors.Join(store.Decide(t.Context(), claim, with(o.Instances[2], "s2", domain.InstanceBuilding)),
		store.Release(t.Context(), o, claim)))
	if c := place(t, store, o, long); c.Acquired {
		t.Errorf("a finished order was claimed: %+v", c)
	}
}

// TestDecideAfterObserve: a reader has found the server by its tag and recorded it before the replica that created it.
// That replica's own record is no conflict.
func TestDecideAfterObserve(t *testing.T) {
	t.Parallel()
	store, o := orders(t), newOrder(1)
	claim := place(t, store, o, long)
	made := with(o.Instances[0], "s0", domain.InstanceBuilding)
	noError(t, change(t, store, []domain.Instance{made}))
	if err := store.Decide(t.Context(), claim, made); err != nil {
		t.Errorf("got %v", err)
	}
	if got := get(t, store, o).Instances[0]; got.ServerID != "s0" {
		t.Errorf("got %+v", got)
	}
}

func TestObserve(t *testing.T) {
	t.Parallel()
	store, o := orders(t), newOrder(4)
	place(t, store, o, long)
	see := func(seen ...domain.Instance) {
		t.Helper()
		noError(t, change(t, store, seen))
	}
	want := func(n int, server string, state domain.InstanceState) {
		t.Helper()
		if got := get(t, store, o).Instances[n]; got.ServerID != server || got.State != state {
			t.Errorf("instance %d is %+v", n, got)
		}
	}
	see()
	see(with(o.Instances[0], "s0", domain.InstanceBuilding), with(o.Instances[1], "s1", domain.InstanceActive))
	want(0, "s0", domain.InstanceBuilding)
	want(1, "s1", domain.InstanceActive)
	want(2, "", domain.InstanceRequested)
	see(with(o.Instances[0], "s0", domain.InstanceActive), with(o.Instances[1], "another", domain.InstanceError))
	want(0, "s0", domain.InstanceActive)
	want(1, "s1", domain.InstanceActive) // another server's state is not its own
	failed := refusedAs(with(o.Instances[0], "s0", ""), "nova_fault")
	see(failed)
	if got := get(t, store, o).Instances[0]; got.Problem == nil || got.Problem.Code != "nova_fault" {
		t.Errorf("got %+v", got)
	}
	see(with(o.Instances[0], "s0", domain.InstanceActive)) // ERROR is not final
	if got := get(t, store, o).Instances[0]; got.Problem != nil || got.State != domain.InstanceActive {
		t.Errorf("got %+v", got)
	}
	// A server that carries the tags of two is the first one's, and does not keep the others from being written.
	see(with(o.Instances[2], "s0", domain.InstanceActive), with(o.Instances[3], "s3", domain.InstanceActive))
	want(2, "", domain.InstanceRequested)
	want(3, "s3", domain.InstanceActive)
}

// TestFinalize: the status that follows from the instances is written, and nothing after that.
func TestFinalize(t *testing.T) {
	t.Parallel()
	store, o := orders(t), newOrder(2)
	place(t, store, o, long)
	for _, step := range []struct {
		first, second domain.InstanceState
		want          domain.OrderStatus
	}{
		{domain.InstanceActive, domain.InstanceBuilding, domain.OrderRunning},
		{domain.InstanceActive, domain.InstanceError, domain.OrderPartial},
		{domain.InstanceError, domain.InstanceError, domain.OrderPartial},
	} {
		now := o
		now.Instances = []domain.Instance{
			with(o.Instances[0], "s0", step.first), with(o.Instances[1], "s1", step.second),
		}
		noError(t, errors.Join(change(t, store, now.Instances), store.Finalize(t.Context(), finalStatus(now))))
		if got := get(t, store, o).Status; got != step.want {
			t.Errorf("%s and %s: it is %s, want %s", step.first, step.second, got, step.want)
		}
	}
}

// TestPassed: states between two reads are written before the newest one, with rising sequence. They are written
// neither a second time by another replica that has read the same, nor after something newer.
func TestPassed(t *testing.T) {
	t.Parallel()
	url := testkit.Database(t)
	db, conn := open(t, url), testkit.Connect(t, url)
	store, instances := postgres.Orders{DB: db}, postgres.Instances{DB: db}
	o := newOrder(1)
	place(t, store, o, ended)
	noError(t, change(t, store, []domain.Instance{with(o.Instances[0], "s", domain.InstanceActive)}))
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
	got := must(pgx.CollectRows(rows, pgx.RowTo[string]))(t)
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

// written is an event of an instance, as it stands in the outbox.
type written struct {
	Seq      int64
	State    domain.InstanceState
	Previous domain.InstanceState
	Status   string
}

// TestInstancesOverRandomHistories: replicas write what they have read in any order. The newest read counts, a deleted
// instance stays deleted, and the events are a chain without a gap from requested to the stored state.
func TestInstancesOverRandomHistories(t *testing.T) {
	t.Parallel()
	url := testkit.Database(t)
	store := postgres.Orders{DB: open(t, url)}
	conn := testkit.Connect(t, url)
	states := rapid.SampledFrom([]domain.InstanceState{
		domain.InstanceBuilding, domain.InstanceActive, domain.InstanceStopped, domain.InstanceUpdating,
		domain.InstanceUnknown, domain.InstanceError, domain.InstanceDeleting, domain.InstanceDeleted,
	})
	rapid.Check(t, func(r *rapid.T) {
		o := newOrder(1)
		if _, err := store.Place(context.Background(), o, long); err != nil {
			r.Fatal(err)
		}
		server := uuid.NewString()
		known, seen := o.Instances[0], time.Time{}
		for range rapid.IntRange(1, 8).Draw(r, "looks") {
			look := with(o.Instances[0], server, states.Draw(r, "state"))
			look.RawStatus = rapid.SampledFrom([]string{"A", "B"}).Draw(r, "raw")
			look.SeenAt = time.Unix(1e9+int64(rapid.IntRange(0, 9).Draw(r, "at")), 0).UTC()
			published, err := postgres.Instances(store).Change(context.Background(), []domain.Instance{look})
			if err != nil {
				r.Fatal(err)
			}
			counts := known.State != domain.InstanceDeleted && !look.SeenAt.Before(seen)
			news := counts && (look.State != known.State || look.RawStatus != known.RawStatus)
			if (published == 1) != news {
				r.Fatalf("%s %s at %s after %s %s at %s: %d events", look.State, look.RawStatus, look.SeenAt,
					known.State, known.RawStatus, seen, published)
			}
			if counts {
				known, seen = look, look.SeenAt
			}
		}
		stored, err := store.Get(context.Background(), o.ProjectID, o.ID)
		if err != nil {
			r.Fatal(err)
		}
		i := stored.Instances[0]
		if i.State != known.State || i.RawStatus != known.RawStatus {
			r.Fatalf("stored is %s %s, want %s %s", i.State, i.RawStatus, known.State, known.RawStatus)
		}
		chain(r, conn, i)
	})
}

// chain follows an instance's events.
func chain(r *rapid.T, conn *pgx.Conn, i domain.Instance) {
	rows, _ := conn.Query(context.Background(),
		"select seq, data from events where project_id = $1 and subject = $2 order by seq", i.ProjectID, i.ID.String())
	events, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (w written, err error) {
		var data []byte
		if err := row.Scan(&w.Seq, &data); err != nil {
			return w, err
		}
		var d struct {
			State    domain.InstanceState `json:"state"`
			Previous domain.InstanceState `json:"previous_state"`
			Status   string               `json:"status"`
		}
		err = json.Unmarshal(data, &d)
		w.State, w.Previous, w.Status = d.State, d.Previous, d.Status
		return w, err
	})
	if err != nil || len(events) == 0 || int64(len(events)) != i.Seq {
		r.Fatalf("%d events, and the last has the number %d: %v", len(events), i.Seq, err)
	}
	state := domain.InstanceState("")
	for n, e := range events {
		if e.Seq != int64(n+1) || e.Previous != state || state == domain.InstanceDeleted || n > 0 &&
			e.State == domain.InstanceRequested {
			r.Fatalf("after %q comes %+v", state, e)
		}
		state = e.State
	}
	if state != i.State {
		r.Fatalf("the last event says %s, and the instance is %s", state, i.State)
	}
}
