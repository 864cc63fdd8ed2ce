package postgres_test

import (
	"crypto/sha256"
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/google/uuid"

	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/postgres"
	"github.com/cloudfn/cloudfn/shared/testkit"
)

const (
	long  = time.Minute
	ended = -time.Second // a claim that has expired as soon as it is made
)

// newOrder is an order of n instances, not yet stored.
func newOrder(n int) domain.Order {
	hash := sha256.Sum256([]byte("body"))
	o := domain.Order{
		ID: uuid.New(), ProjectID: "p1", DomainID: "d1", UserID: "u1", BodySHA256: hash[:], Status: domain.OrderRunning,
		Spec: domain.OrderSpec{OnFailure: domain.Keep, GeneratedKey: "k"},
	}
	for i := range n {
		o.Instances = append(o.Instances, domain.Instance{
			ID: uuid.New(), ProjectID: "p1", OrderID: o.ID, Name: domain.InstanceName("web ✓", i,
				n), State: domain.InstanceRequested, Origin: domain.OriginLaunched,
			Spec: domain.LaunchSpec{
				FlavorID: "f", NetworkIDs: []string{"n"}, Metadata: map[string]string{"k": "v"},
				KeyName: "k",
			},
			Addresses: []domain.Address{}, KeyName: "k", Seq: 1,
		})
	}
	return o
}

func orders(t *testing.T) postgres.Orders {
	t.Helper()
	return postgres.Orders{DB: open(t, testkit.Database(t))}
}

func place(t *testing.T, store postgres.Orders, o domain.Order, claimFor time.Duration) domain.Claim {
	t.Helper()
	return must(store.Place(t.Context(), o, claimFor))(t)
}

// finalStatus is the order with the status that follows from its instances.
func finalStatus(o domain.Order) domain.Order {
	o.Status = o.Evaluate()
	return o
}

func get(t *testing.T, store postgres.Orders, o domain.Order) domain.Order {
	t.Helper()
	return must(store.Get(t.Context(), o.ProjectID, o.ID))(t)
}

func TestPlaceTwice(t *testing.T) {
	t.Parallel()
	store, o := orders(t), newOrder(3)
	if c := place(t, store, o, long); !c.Acquired || !c.Fresh {
		t.Errorf("the first got %+v", c)
	}
	if diff := cmp.Diff(o, get(t, store, o), cmpopts.IgnoreFields(domain.Order{}, "CreatedAt", "ReadAt"),
		cmpopts.EquateEmpty(), cmpopts.IgnoreFields(domain.Instance{}, "UpdatedAt", "CreatedAt")); diff != "" {
		t.Error(diff)
	}
	again := o
	again.Instances = newOrder(3).Instances // a repeat comes with other new UUIDs, which do not count
	if c := place(t, store, again, long); c.Acquired || c.Fresh {
		t.Errorf("the second got %+v", c)
	}
	if diff := cmp.Diff(o.Instances, get(t, store, o).Instances,
		cmpopts.IgnoreFields(domain.Instance{}, "UpdatedAt", "CreatedAt")); diff != "" {
		t.Error(diff)
	}
	other := o
	other.BodySHA256 = []byte("another body")
	if c, err := store.Place(t.Context(), other, long); apperr.CodeOf(err) != apperr.Conflict || c.Acquired {
		t.Errorf("another body under the same id: got %+v %v", c, err)
	}
	taken := newOrder(2)
	taken.Instances[1].ID = o.Instances[0].ID
	if ids, err := store.ListTaken(t.Context(), "p1",
		[]uuid.UUID{taken.Instances[0].ID, taken.Instances[1].ID, o.ID}); err != nil || len(ids) != 2 {
		t.Errorf("taken: %v %v", ids, err)
	}
	if ids, err := store.ListTaken(t.Context(), "p2", []uuid.UUID{o.ID, taken.Instances[1].ID}); err != nil ||
		len(ids) != 0 {
		t.Errorf("taken in another project: %v %v", ids, err)
	}
}

// TestOtherProjects: other projects may use the same ids, and learn nothing from that.
func TestOtherProjects(t *testing.T) {
	t.Parallel()
	store, o := orders(t), newOrder(1)
	claim := place(t, store, o, long)
	_, absent := store.Get(t.Context(), "p1", uuid.Nil)
	_, others := store.Get(t.Context(), "p2", o.ID)
	if apperr.CodeOf(absent) != apperr.NotFound || apperr.CodeOf(others) != apperr.NotFound {
		t.Errorf("got %v and %v", absent, others)
	}
	foreign := o
	foreign.ProjectID, foreign.Instances = "p2", []domain.Instance{o.Instances[0]}
	foreign.Instances[0].ProjectID = "p2"
	wantError(t, "renew", store.Renew(t.Context(), foreign, claim, long), domain.ErrFenced)
	wantError(t, "decide", store.Decide(t.Context(), claim, foreign.Instances[0]), domain.ErrFenced)
	seen := foreign.Instances[0]
	seen.ServerID, seen.State = "theirs", domain.InstanceActive
	noError(t, errors.Join(change(t, store, []domain.Instance{seen}), store.Release(t.Context(), foreign, claim),
		store.Finalize(t.Context(), finalStatus(foreign))))
	wantCode(t, "busy", errOf(store.ClaimExpiresIn(t.Context(), "p2", o.ID)), apperr.NotFound)
	if held, err := store.ClaimExpiresIn(t.Context(), "p1", o.ID); err != nil || held <= 0 || held > long ||
		get(t, store, o).Instances[0].ServerID != "" {
		t.Errorf("another project changed it: %+v", get(t, store, o))
	}
	foreign.BodySHA256 = []byte("another body")
	if c := place(t, store, foreign, long); !c.Acquired || !c.Fresh {
		t.Errorf("the same ids in another project: %+v", c)
	}
}

// TestPlaceConcurrently: of many replicas that place the same order, one works on it.
func TestPlaceConcurrently(t *testing.T) {
	t.Parallel()
	store := orders(t)
	for range 5 {
		o := newOrder(2)
		claims := make([]domain.Claim, 8)
		concurrently(len(claims), func(i int) {
			var err error
			if claims[i], err = store.Place(t.Context(), o, long); err != nil {
				t.Error(err)
			}
		})
		held, fresh := 0, 0
		for _, c := range claims {
			if c.Acquired {
				held++
			}
			if c.Fresh {
				fresh++
			}
		}
		if held != 1 || fresh != 1 {
			t.Errorf("%d hold it, %d think it new", held, fresh)
		}
	}
}

// settle writes what is known of an order's only instance, and the status that follows.
func settle(t *testing.T, store postgres.Orders, o domain.Order, i domain.Instance) domain.Order {
	t.Helper()
	noError(t, change(t, store, []domain.Instance{i}))
	o = get(t, store, o)
	noError(t, store.Finalize(t.Context(), finalStatus(o)))
	return get(t, store, o)
}

// page lists orders and gives their ids.
func page(t *testing.T, store postgres.Orders, q domain.OrderQuery) []uuid.UUID {
	t.Helper()
	found := must(store.List(t.Context(), q))(t)
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
			must(l.Place(t.Context(), o, 0))(t)
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
	all := must(l.List(t.Context(), domain.OrderQuery{Filter: mine.Filter, Limit: 2, Marker: ids[0]}))(t)
	if diff := cmp.Diff(delegated.Instances, all[0].Instances,
		cmpopts.IgnoreFields(domain.Instance{}, "UpdatedAt", "CreatedAt")); diff != "" || all[0].Busy || !all[1].Busy {
		t.Errorf("busy %v and %v, %s", all[0].Busy, all[1].Busy, diff)
	}
	l.exec(t, "update orders set status = 'done' where id = any($1)", []uuid.UUID{ids[0], ids[1], ids[5]})
	l.exec(t, "update orders set status = 'failed' where id = $1", ids[6])
	through := func(project string, c domain.Connection) domain.Filter {
		return domain.Filter{ProjectID: project, ConnectionID: c.ID}
	}
	for what, tc := range map[string]struct {
		query domain.OrderQuery
		want  []uuid.UUID
	}{
		"a status": {domain.OrderQuery{Filter: mine.Filter, Statuses: []string{"done"}}, []uuid.UUID{ids[0], ids[1], ids[5]}},
		"several statuses": {
			domain.OrderQuery{Filter: mine.Filter, Statuses: []string{"failed", "done"}, Marker: ids[1]}, ids[5:],
		},
		"a connection":                {domain.OrderQuery{Filter: through("p1", c)}, []uuid.UUID{delegated.ID}},
		"a connection without orders": {domain.OrderQuery{Filter: through("p1", other)}, nil},
		"a connection, other project": {domain.OrderQuery{Filter: through("p2", c)}, nil},
		"another project": {
			domain.OrderQuery{Filter: domain.Filter{ProjectID: "p2"}}, []uuid.UUID{foreign.ID},
		},
	} {
		tc.query.Limit = 9
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
	must(l.Place(t.Context(), o, long))(t)
	instances := postgres.Instances{DB: l.DB}
	began := get(t, l.Orders, o)
	for range 2 {
		noError(t, instances.RecordDeleteAttempt(t.Context(), began.Instances[0], began.CreatedAt))
	}
	stored := get(t, l.Orders, o)
	if i := stored.Instances[0]; i.DeleteTries != 2 || i.DeleteTriedAt.Before(stored.CreatedAt) ||
		stored.Problem != nil {
		t.Errorf("got %d tries, the last at %s, %+v", i.DeleteTries, i.DeleteTriedAt, stored.Problem)
	}
	noError(t, instances.RecordDeleteAttempt(t.Context(), began.Instances[0], stored.ReadAt))
	if i := get(t, l.Orders, o).Instances[0]; i.DeleteTries != 1 {
		t.Errorf("since later there are %d tries", i.DeleteTries)
	}
	stored.Status, stored.Problem = domain.OrderFailed, &domain.Problem{
		Code:   "not_rolled_back",
		Detail: "a s1 (out of volumes)",
	}
	noError(t, l.Finalize(t.Context(), finalStatus(stored)))
	listed, err := l.List(t.Context(), domain.OrderQuery{Filter: domain.Filter{ProjectID: "p1"}, Limit: 1})
	if err != nil || len(listed) != 1 || *listed[0].Problem != *stored.Problem ||
		*get(t, l.Orders, o).Problem != *stored.Problem {
		t.Errorf("read back is %+v %v", listed, err)
	}
	wantValue(t, l.conn, "not_rolled_back", "the event has the fault %q",
		"select data->'fault'->>'code' from events where subject = $1 and seq = 2",
		o.ID.String())
}
