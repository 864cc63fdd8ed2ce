package postgres_test

import (
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/google/uuid"

	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/postgres"
	"github.com/cloudfn/cloudfn/shared/testkit"
)

// page lists orders and gives their ids.
func page(t *testing.T, store postgres.Orders, q domain.OrderQuery) []uuid.UUID {
	t.Helper()
	found, err := store.List(t.Context(), q)
	if err != nil {
		t.Fatal(err)
	}
	ids := []uuid.UUID{}
	for _, f := range found {
		ids = append(ids, f.ID)
	}
	return ids
}

// TestListOrders: the newest first whatever their ids, in pages that orders which come meanwhile do not move.
func TestListOrders(t *testing.T) {
	t.Parallel()
	l := newTestDB(t)
	c, other := l.storeConnection(t, domain.ConnectionQuota{}, nil), l.storeConnection(t, domain.ConnectionQuota{}, nil)
	mine := domain.OrderQuery{Filter: domain.Filter{ProjectID: "p1"}, Limit: 3}
	if got := page(t, l.Orders, mine); len(got) != 0 {
		t.Errorf("without orders: got %v", got)
	}
	var ids []uuid.UUID // the newest first
	var delegated domain.Order
	for n := range 7 {
		o := newOrder(n%3 + 1)
		if n == 5 {
			o = connectedOrder(c, 2)
			delegated = o
			if _, err := l.Place(t.Context(), o, 0); err != nil {
				t.Fatal(err)
			}
		} else {
			place(t, l.Orders, o, long)
		}
		ids = slices.Insert(ids, 0, o.ID)
	}
	foreign := newOrder(1)
	foreign.ProjectID, foreign.Instances[0].ProjectID = "p2", "p2"
	place(t, l.Orders, foreign, long)
	// Three of them are of one moment.
	l.exec(t, "update orders set created_at = (select created_at from orders where id = $1) where id = any($2)", ids[3],
		ids[2:5])
	slices.SortFunc(ids[2:5], func(a, b uuid.UUID) int { return slices.Compare(b[:], a[:]) })

	var read []uuid.UUID
	for q := mine; ; {
		got := page(t, l.Orders, q)
		if read = append(read, got...); len(got) < q.Limit {
			break
		}
		q.Marker = got[len(got)-1]
		place(t, l.Orders, newOrder(1), long) // it comes before all of them
	}
	if !slices.Equal(read, ids) {
		t.Errorf("got %v, want %v", read, ids)
	}
	all, err := l.List(t.Context(), domain.OrderQuery{Filter: mine.Filter, Limit: 2, Marker: ids[0]})
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(delegated.Instances, all[0].Instances,
		cmpopts.IgnoreFields(domain.Instance{}, "UpdatedAt", "CreatedAt")); diff != "" || all[0].Busy || !all[1].Busy {
		t.Errorf("busy %v and %v, %s", all[0].Busy, all[1].Busy, diff)
	}
	l.exec(t, "update orders set status = 'done' where id = any($1)", []uuid.UUID{ids[0], ids[1], ids[5]})
	l.exec(t, "update orders set status = 'failed' where id = $1", ids[6])
	for what, tc := range map[string]struct {
		query domain.OrderQuery
		want  []uuid.UUID
	}{
		"a status": {
			domain.OrderQuery{Filter: mine.Filter, Statuses: []string{"done"}, Limit: 9},
			[]uuid.UUID{ids[0], ids[1], ids[5]},
		},
		"several statuses": {domain.OrderQuery{
			Filter: mine.Filter, Statuses: []string{"failed", "done"}, Limit: 9,
			Marker: ids[1],
		}, ids[5:]},
		"a connection": {domain.OrderQuery{
			Filter: domain.Filter{ProjectID: "p1", ConnectionID: c.ID},
			Limit:  9,
		}, []uuid.UUID{delegated.ID}},
		"a connection without orders": {domain.OrderQuery{
			Filter: domain.Filter{ProjectID: "p1", ConnectionID: other.ID},
			Limit:  9,
		}, nil},
		"a connection, other project": {domain.OrderQuery{
			Filter: domain.Filter{ProjectID: "p2", ConnectionID: c.ID},
			Limit:  9,
		}, nil},
		"another project": {
			domain.OrderQuery{Filter: domain.Filter{ProjectID: "p2"}, Limit: 9},
			[]uuid.UUID{foreign.ID},
		},
	} {
		if got := page(t, l.Orders, tc.query); !slices.Equal(got, tc.want) {
			t.Errorf("%s: got %v, want %v", what, got, tc.want)
		}
	}
	for what, q := range map[string]domain.OrderQuery{
		"another project's order": {Filter: mine.Filter, Marker: foreign.ID, Limit: 1},
		"none":                    {Filter: mine.Filter, Marker: uuid.New(), Limit: 1},
		"not the connection's": {
			Filter: domain.Filter{ProjectID: "p1", ConnectionID: c.ID}, Marker: ids[0], Limit: 1,
		},
	} {
		if _, err := l.List(t.Context(), q); apperr.CodeOf(err) != apperr.Invalid ||
			apperr.As(err).Fields[0].Field != "marker" {
			t.Errorf("%s as a marker: got %v", what, err)
		}
	}
}

// TestOrderProblem: an order's problem is stored with the order, and the event of its end reports it.
func TestOrderProblem(t *testing.T) {
	t.Parallel()
	l := newTestDB(t)
	o := newOrder(1)
	if _, err := l.Place(t.Context(), o, long); err != nil {
		t.Fatal(err)
	}
	instances := postgres.Instances{DB: l.DB}
	began := get(t, l.Orders, o)
	for range 2 {
		if err := instances.RecordDeleteAttempt(t.Context(), began.Instances[0], began.CreatedAt); err != nil {
			t.Fatal(err)
		}
	}
	stored := get(t, l.Orders, o)
	if i := stored.Instances[0]; i.DeleteTries != 2 || i.DeleteTriedAt.Before(stored.CreatedAt) ||
		stored.Problem != nil {
		t.Errorf("got %d tries, the last at %s, %+v", i.DeleteTries, i.DeleteTriedAt, stored.Problem)
	}
	if err := instances.RecordDeleteAttempt(t.Context(), began.Instances[0], stored.ReadAt); err != nil {
		t.Fatal(err)
	}
	if i := get(t, l.Orders, o).Instances[0]; i.DeleteTries != 1 {
		t.Errorf("since later there are %d tries", i.DeleteTries)
	}
	stored.Status, stored.Problem = domain.OrderFailed, &domain.Problem{
		Code:   "not_rolled_back",
		Detail: "a s1 (out of volumes)",
	}
	if err := l.Finalize(t.Context(), finalStatus(stored)); err != nil {
		t.Fatal(err)
	}
	listed, err := l.List(t.Context(), domain.OrderQuery{Filter: domain.Filter{ProjectID: "p1"}, Limit: 1})
	if err != nil || len(listed) != 1 || *listed[0].Problem != *stored.Problem ||
		*get(t, l.Orders, o).Problem != *stored.Problem {
		t.Errorf("read back is %+v %v", listed, err)
	}
	if got := testkit.Scalar[string](t, l.conn, "select data->'fault'->>'code' from events where subject = $1 and seq = 2",
		o.ID.String()); got != "not_rolled_back" {
		t.Errorf("the event has the fault %q", got)
	}
}
