package postgres_test

import (
	"errors"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/postgres"
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

// change writes what was seen of instances.
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
	if err := errors.Join(store.Decide(t.Context(), claim, want[0]),
		store.Decide(t.Context(), claim, want[1])); err != nil {
		t.Fatal(err)
	}
	got := get(t, store, o)
	if diff := cmp.Diff(want, got.Instances, cmpopts.IgnoreFields(domain.Instance{}, "UpdatedAt", "CreatedAt", "SeenAt",
		"MissedAt", "Seq"), cmpopts.EquateEmpty()); diff != "" {
		t.Error(diff)
	}
	if got.Undecided() != 1 {
		t.Errorf("%d are undecided", got.Undecided())
	}
	if err := store.Decide(t.Context(), claim,
		with(o.Instances[0], "another", domain.InstanceBuilding)); !errors.Is(err, domain.ErrFenced) {
		t.Errorf("a second server for one instance: %v", err)
	}
	if id := get(t, store, o).Instances[0].ServerID; id != "s0" {
		t.Errorf("the server is %s", id)
	}
	// With all decided there is nothing left to claim.
	if err := errors.Join(store.Decide(t.Context(), claim, with(o.Instances[2], "s2", domain.InstanceBuilding)),
		store.Release(t.Context(), o, claim)); err != nil {
		t.Fatal(err)
	}
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
	if err := change(t, store, []domain.Instance{made}); err != nil {
		t.Fatal(err)
	}
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
		if err := change(t, store, seen); err != nil {
			t.Fatal(err)
		}
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
	store := orders(t)
	for name, tc := range map[string]struct {
		states []domain.InstanceState
		want   domain.OrderStatus
	}{
		"building": {[]domain.InstanceState{domain.InstanceActive, domain.InstanceBuilding}, domain.OrderRunning},
		"done":     {[]domain.InstanceState{domain.InstanceActive, domain.InstanceStopped}, domain.OrderDone},
		"partial":  {[]domain.InstanceState{domain.InstanceActive, domain.InstanceError}, domain.OrderPartial},
		"failed":   {[]domain.InstanceState{domain.InstanceError, domain.InstanceError}, domain.OrderFailed},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			o := newOrder(2)
			place(t, store, o, long)
			finalize := func(states ...domain.InstanceState) domain.OrderStatus {
				t.Helper()
				now := o
				now.Instances = []domain.Instance{
					with(o.Instances[0], name+"0", states[0]),
					with(o.Instances[1], name+"1", states[1]),
				}
				if err := errors.Join(change(t, store, now.Instances),
					store.Finalize(t.Context(), finalStatus(now))); err != nil {
					t.Fatal(err)
				}
				return get(t, store, o).Status
			}
			if got := finalize(tc.states...); got != tc.want {
				t.Errorf("got %s", got)
			}
			final := tc.want
			if final == domain.OrderRunning {
				final = domain.OrderFailed
			}
			if got := finalize(domain.InstanceError, domain.InstanceError); got != final {
				t.Errorf("afterwards it is %s, want %s", got, final)
			}
		})
	}
}
