package pollinstances

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"

	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/testkit"
)

// hanging fakes a Nova that hangs over the project "slow" until all servers of the other one were stopped.
type hanging struct {
	session
	project string
	left    *sync.WaitGroup
}

func (h hanging) In(_ context.Context, projectID string) (session, error) {
	h.project = projectID
	return h, nil
}

func (h hanging) StopServer(ctx context.Context, _ string) error {
	if h.project != "slow" {
		h.left.Done()
		return nil
	}
	stopped := make(chan struct{})
	go func() { h.left.Wait(); close(stopped) }()
	select {
	case <-stopped:
		return nil
	case <-ctx.Done():
		return errors.New("the other project's order waits for this one")
	}
}

// TestHangingNovaDelaysOnlyItsProject: the order of another project is worked on although all older ones hang.
func TestHangingNovaDelaysOnlyItsProject(t *testing.T) {
	t.Parallel()
	var left sync.WaitGroup
	left.Add(1)
	s, store, conn := attending(t, hanging{left: &left})
	for n := range 4 {
		project := map[bool]string{true: "slow", false: "other"}[n < 3]
		order, claim := placedIn(t, store, project, domain.OrderSpec{Stopped: true}, 1)
		active := order.Instances[0]
		active.Seen(domain.Server{ID: string(rune('a' + n)), Name: "web", Status: "ACTIVE"})
		err := errors.Join(store.Decide(t.Context(), claim, active), store.Release(t.Context(), order, claim))
		if err != nil {
			t.Fatal(err)
		}
	}
	if err := s.attend(t.Context()); err != nil {
		t.Error(err)
	}
	if n := testkit.Scalar[int](t, conn, "select count(*)::int from instances where state = 'updating'"); n != 4 {
		t.Errorf("%d of 4 servers are being stopped", n)
	}
}

// TestPassEnds: a pass begins no more orders after passFor, so that those that hang keep none waiting for long.
func TestPassEnds(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var list []domain.RunningOrder
		for range 50 {
			list = append(list, domain.RunningOrder{ProjectID: "slow", ID: uuid.New()})
		}
		list = append(list, domain.RunningOrder{ProjectID: "other", ID: uuid.New()})
		began, calls := time.Now(), map[string]int{}
		var other time.Duration
		var mu sync.Mutex
		read := func(context.Context, domain.RunningOrder, int) ([]domain.RunningOrder, error) { return list, nil }
		eachOrder(t.Context(), read, func(o domain.RunningOrder) error {
			mu.Lock()
			calls[o.ProjectID]++
			mu.Unlock()
			if o.ProjectID == "other" {
				other = time.Since(began)
				return nil
			}
			time.Sleep(stepsClaim * 2 / 3)
			return nil
		})
		if calls["slow"] != 1 || calls["other"] != 1 || other != 0 || time.Since(began) != stepsClaim*2/3 {
			t.Errorf("calls %v, the other order after %s, all after %s", calls, other, time.Since(began))
		}
	})
}

// TestPages: all running orders are read, a page at a time; the last one may be empty.
func TestPages(t *testing.T) {
	t.Parallel()
	for _, orders := range []int{0, 1, ordersAtOnce, 2*ordersAtOnce + 1} {
		var largest atomic.Int64
		list := func(_ context.Context, after domain.RunningOrder, limit int) (page []domain.RunningOrder, _ error) {
			next := int(after.UpdatedAt.Unix())
			if after.UpdatedAt.IsZero() {
				next = 0
			}
			for n := next + 1; n <= orders && len(page) < limit; n++ {
				page = append(page,
					domain.RunningOrder{ProjectID: "p", ID: uuid.New(), UpdatedAt: time.Unix(int64(n), 0)})
			}
			largest.Store(max(largest.Load(), int64(len(page))))
			return page, nil
		}
		var calls atomic.Int64
		errs := eachOrder(t.Context(), list, func(domain.RunningOrder) error { calls.Add(1); return nil })
		if int(calls.Load()) != orders || largest.Load() > ordersAtOnce || errors.Join(errs...) != nil {
			t.Errorf("%d orders: %d calls, %d in a page, %v", orders, calls.Load(), largest.Load(), errs)
		}
	}
}

// TestAttemptedOrders: orders that a pass attempted, and which come after all others for that, are not attempted again.
func TestAttemptedOrders(t *testing.T) {
	t.Parallel()
	var orders []domain.RunningOrder
	for range ordersAtOnce {
		orders = append(orders, domain.RunningOrder{ProjectID: "p", ID: uuid.New()})
	}
	pages := 0
	list := func(context.Context, domain.RunningOrder, int) ([]domain.RunningOrder, error) {
		if pages++; pages > 9 {
			return nil, nil
		}
		return orders, nil
	}
	calls := 0
	eachOrder(t.Context(), list, func(domain.RunningOrder) error { calls++; return nil })
	if calls != ordersAtOnce {
		t.Errorf("%d attempts of %d orders", calls, ordersAtOnce)
	}
}
