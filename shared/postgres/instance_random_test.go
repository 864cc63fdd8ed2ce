package postgres_test

import (
	"context"
	"encoding/json"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"pgregory.net/rapid"

	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/postgres"
	"github.com/cloudfn/cloudfn/shared/testkit"
)

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
