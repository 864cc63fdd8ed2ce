package postgres_test

import (
	"errors"
	"testing"

	"github.com/google/uuid"

	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/postgres"
)

// begin writes down a create call for the nth instance.
func begin(t *testing.T, store postgres.Orders, o domain.Order, claim domain.Claim, n int) domain.CreateCall {
	t.Helper()
	call := domain.CreateCall{ID: uuid.New(), InstanceID: o.Instances[n].ID, Name: o.Instances[n].Name, UserID: "u1"}
	if err := store.BeginCall(t.Context(), o, claim, call, long, long); err != nil {
		t.Fatal(err)
	}
	return call
}

// TestCreateCalls begin under the claim, one at a time for each instance, and only while that is undecided.
func TestCreateCalls(t *testing.T) {
	t.Parallel()
	store, o := orders(t), newOrder(3)
	claim := place(t, store, o, long)
	again := func(claim domain.Claim, n int, want error) {
		t.Helper()
		call := domain.CreateCall{ID: uuid.New(), InstanceID: o.Instances[n].ID}
		if err := store.BeginCall(t.Context(), o, claim, call, long, long); !errors.Is(err, want) {
			t.Errorf("got %v, want %v", err, want)
		}
	}
	again(domain.Claim{ID: uuid.New()}, 0, domain.ErrFenced)
	first := begin(t, store, o, claim, 0)
	again(claim, 0, domain.ErrCallOpen)
	// Nova has refused the first: another one may be sent. It is accepted.
	if err := store.EndCall(t.Context(), o, first); err != nil {
		t.Fatal(err)
	}
	second := begin(t, store, o, claim, 0)
	made := with(get(t, store, o).Instances[0], "s0", domain.InstanceBuilding)
	made.CallID = second.ID
	if err := store.Decide(t.Context(), claim, made); err != nil {
		t.Fatal(err)
	}
	again(claim, 0, domain.ErrCallOpen)
	got := get(t, store, o)
	if len(got.Calls) != 2 || got.Calls[0].ServerID != "" || got.Calls[0].EndedAt.IsZero() ||
		got.Calls[1].ServerID != "s0" || got.Calls[1].UserID != "u1" {
		t.Errorf("the calls are %+v", got.Calls)
	}
	// What Nova answered is written down also when the claim is over.
	third := begin(t, store, o, claim, 1)
	if err := store.Release(t.Context(), o, claim); err != nil {
		t.Fatal(err)
	}
	made = with(o.Instances[1], "s1", domain.InstanceBuilding)
	made.CallID = third.ID
	if err := store.Decide(t.Context(), claim, made); !errors.Is(err, domain.ErrFenced) {
		t.Errorf("got %v", err)
	}
	if got = get(t, store, o); got.Calls[2].ServerID != "s1" || got.Instances[1].ServerID != "" {
		t.Errorf("the call is %+v, the instance %+v", got.Calls[2], got.Instances[1])
	}
}

// TestMarkDuplicate gives each call one server, and only while its order runs.
func TestMarkDuplicate(t *testing.T) {
	t.Parallel()
	store, o := orders(t), newOrder(2)
	claim := place(t, store, o, long)
	call, late := begin(t, store, o, claim, 0), begin(t, store, o, claim, 1)
	if err := change(t, store, []domain.Instance{
		with(o.Instances[0], "s0", domain.InstanceActive),
		with(o.Instances[1], "s1", domain.InstanceActive),
	}); err != nil {
		t.Fatal(err)
	}
	mark := func(call domain.CreateCall, server string, want bool) {
		t.Helper()
		if got, err := store.MarkDuplicate(t.Context(), o, call, server); err != nil || got != want {
			t.Errorf("%s: got %t %v, want %t", server, got, err, want)
		}
	}
	mark(call, "s1", false) // that is tracked
	mark(call, "twice", true)
	mark(call, "twice", true) // to delete it failed
	mark(call, "copied", false)
	if err := store.Finalize(t.Context(), finalStatus(get(t, store, o))); err != nil {
		t.Fatal(err)
	}
	mark(late, "late", false)
}
