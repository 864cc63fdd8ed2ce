package orders

import (
	"context"
	"errors"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"

	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/domain"
)

// fenced is a fakeBackend whose claim passes to another replica after it was renewed some times.
type fenced struct {
	*fakeBackend
	renewals *atomic.Int64
}

func (f fenced) Renew(context.Context, domain.Order, domain.Claim, time.Duration) error {
	if f.renewals.Add(-1) < 0 {
		return domain.ErrFenced
	}
	return nil
}

// newBuilding is a fakeBackend whose order has one server, which is built.
func newBuilding() *fakeBackend {
	d := &fakeBackend{}
	d.order = domain.Order{
		ID: uuid.New(), Status: domain.OrderRunning, Spec: domain.OrderSpec{Stopped: true},
		Instances: []domain.Instance{{ID: uuid.New(), Name: "a", ServerID: "x", State: domain.InstanceBuilding}},
	}
	d.servers = []domain.Server{{ID: "x", Status: "BUILD"}}
	return d
}

// TestLostClaim: the work ends with the renewal that finds the claim lost.
func TestLostClaim(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		d := newBuilding()
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		renewals := &atomic.Int64{}
		w := Engine{Orders: fenced{d, renewals}, Instances: d, Wake: func() {}, Fence: time.Second}
		began := time.Now()
		renewals.Store(2)
		err := w.work(ctx, Session{Cloud: d, UserData: make([]domain.Secret, 1)}, d.order, domain.NewClaim())
		if took := time.Since(began); !errors.Is(err, domain.ErrFenced) || took != 3*w.claimFor()/4 {
			t.Errorf("got %v after %s", err, took)
		}
	})
}

// unstable is a fakeBackend whose first renewals fail, and do not say that the claim is lost.
type unstable struct {
	*fakeBackend
	failures *atomic.Int64
}

func (u unstable) Renew(context.Context, domain.Order, domain.Claim, time.Duration) error {
	if u.failures.Add(-1) >= 0 {
		return apperr.New(apperr.Unavailable, "the database is unavailable")
	}
	return nil
}

// TestFailedRenewal: a renewal that fails ends no work while the claim is valid. The next one renews it.
func TestFailedRenewal(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		d := newBuilding()
		time.AfterFunc(longestClaim, func() {
			d.mu.Lock()
			defer d.mu.Unlock()
			d.servers[0].Status = "SHUTOFF"
		})
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		failures := &atomic.Int64{}
		failures.Store(1)
		w := Engine{Orders: unstable{d, failures}, Instances: d, Wake: func() {}, Fence: time.Minute}
		err := w.work(ctx, Session{Cloud: d, UserData: make([]domain.Secret, 1)}, d.order, domain.NewClaim())
		if err != nil || failures.Load() >= 0 || d.order.Evaluate() != domain.OrderDone {
			t.Errorf("got %v, %d failures left, the order is %s", err, failures.Load(), d.order.Evaluate())
		}
	})
}

// TestOpenCallsAreAwaited checks that the server of a dead replica's create call is adopted, and no second one is
// made.
func TestOpenCallsAreAwaited(t *testing.T) {
	t.Parallel()
	i := domain.Instance{ID: uuid.New(), Name: "a", State: domain.InstanceRequested}
	for name, tc := range map[string]struct {
		comes bool
		want  int // create calls
	}{"nova makes it": {true, 0}, "nova never had it": {false, 1}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				call := domain.CreateCall{
					ID: uuid.New(), InstanceID: i.ID, Name: "a", BeganAt: time.Now(),
					Until: time.Now().Add(3 * time.Second),
				}
				order := domain.Order{ID: uuid.New(), Status: domain.OrderRunning}
				order.Instances, order.Calls = []domain.Instance{i}, []domain.CreateCall{call}
				d := &fakeBackend{order: order}
				if tc.comes {
					time.AfterFunc(time.Second, func() {
						d.mu.Lock()
						defer d.mu.Unlock()
						d.servers = append(d.servers, domain.Server{
							ID: "late", Name: "a", Status: "ACTIVE",
							CreatedAt: time.Now(), Tags: order.ServerTags(i, call),
						})
					})
				}
				ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
				defer cancel()
				w := Engine{Orders: d, Instances: d, Wake: func() {}, Fence: time.Minute}
				err := w.work(ctx, Session{Cloud: d, UserData: make([]domain.Secret, 1)}, order, domain.Claim{})
				got, _ := d.Get(ctx, "", order.ID)
				if err != nil || len(d.calls) != tc.want || got.Evaluate() == domain.OrderFailed ||
					got.Instances[0].ServerID == "" {
					t.Errorf("got %v after %v: %+v", err, d.calls, got.Instances)
				}
			})
		})
	}
}

// unread is a store that cannot read an order, and keeps which claims it has released.
type unread struct {
	*fakeBackend
	released *[]uuid.UUID
}

func (u unread) Get(context.Context, string, uuid.UUID) (domain.Order, error) {
	return domain.Order{}, apperr.New(apperr.Unavailable, "the database is unavailable")
}

func (u unread) Claim(context.Context, domain.Order, time.Duration) (domain.Claim, error) {
	claim := domain.NewClaim()
	claim.Acquired = true
	return claim, nil
}

func (u unread) Release(_ context.Context, order domain.Order, _ domain.Claim) error {
	*u.released = append(*u.released, order.ID)
	return nil
}

// TestUnreadOrderIsReleased: the claim of an order that could not be read is released, so that the next run need not
// wait until it ends.
func TestUnreadOrderIsReleased(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		d := newBuilding()
		var released []uuid.UUID
		w := Engine{Orders: unread{d, &released}, Instances: d, Wake: func() {}, Fence: time.Minute}
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		errs := []error{
			w.work(ctx, Session{Cloud: d}, d.order, domain.NewClaim()),
			w.Advance(ctx, d.order, func(func(Session) error) error { return nil }),
		}
		for _, err := range errs {
			if apperr.CodeOf(err) != apperr.Unavailable {
				t.Errorf("got %v", err)
			}
		}
		if want := []uuid.UUID{d.order.ID, d.order.ID}; !slices.Equal(released, want) {
			t.Errorf("released %s instead of %s", released, want)
		}
	})
}
