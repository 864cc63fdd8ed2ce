package postgres_test

import (
	"errors"
	"testing"

	"github.com/google/uuid"

	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/postgres"
)

// TestClaimExpires: the order of a replica that died is adopted by one of the next ones, not as new.
func TestClaimExpires(t *testing.T) {
	t.Parallel()
	store, o := orders(t), newOrder(2)
	dead := place(t, store, o, ended)
	if held, err := store.ClaimExpiresIn(t.Context(), "p1", o.ID); err != nil || held != 0 {
		t.Errorf("held for %s: %v", held, err)
	}
	claims := make([]domain.Claim, 8)
	concurrently(len(claims), func(i int) {
		var err error
		if claims[i], err = store.Place(t.Context(), o, long); err != nil {
			t.Error(err)
		}
	})
	var heir []domain.Claim
	for _, c := range claims {
		if c.Fresh {
			t.Error("an old order was taken for new")
		}
		if c.Acquired {
			heir = append(heir, c)
		}
	}
	if len(heir) != 1 || heir[0].ID == dead.ID {
		t.Fatalf("the heirs are %+v", heir)
	}
	// The dead one wakes up: it is fenced off, whatever it tries.
	i := o.Instances[0]
	i.ServerID, i.State = "zombie", domain.InstanceBuilding
	wantError(t, "renew", store.Renew(t.Context(), o, dead, long), domain.ErrFenced)
	wantError(t, "decide", store.Decide(t.Context(), dead, i), domain.ErrFenced)
	noError(t, store.Release(t.Context(), o, dead))
	if held, err := store.ClaimExpiresIn(t.Context(), "p1", o.ID); err != nil || held <= 0 || held > long ||
		get(t, store, o).Instances[0].ServerID != "" {
		t.Errorf("the zombie changed something: held for %s, %v, %+v", held, err, get(t, store, o).Instances)
	}
	i.ServerID = "heir's"
	if err := errors.Join(store.Renew(t.Context(), o, heir[0], long), store.Decide(t.Context(), heir[0], i),
		store.Release(t.Context(), o, heir[0])); err != nil {
		t.Errorf("the heir: %v", err)
	}
	if held, err := store.ClaimExpiresIn(t.Context(), "p1", o.ID); err != nil || held != 0 {
		t.Errorf("after its release: held for %s, %v", held, err)
	}
}

// TestRenewRejectsExpiredClaim: an expired claim cannot be renewed even before another replica adopts the order,
// because one may be about to.
func TestRenewRejectsExpiredClaim(t *testing.T) {
	t.Parallel()
	store, o := orders(t), newOrder(1)
	claim := place(t, store, o, long)
	noError(t, store.Renew(t.Context(), o, claim, ended))
	wantError(t, "got", store.Renew(t.Context(), o, claim, long), domain.ErrFenced)
}

// TestClaimOrderWithWorkLeft: an order that wants more than servers can be claimed until it is settled, another one not
// once all is decided.
func TestClaimOrderWithWorkLeft(t *testing.T) {
	t.Parallel()
	store := orders(t)
	for name, tc := range map[string]struct {
		spec domain.OrderSpec
		held bool
	}{
		"plain":        {domain.OrderSpec{}, false},
		"rollback":     {domain.OrderSpec{OnFailure: domain.Rollback}, true},
		"stopped":      {domain.OrderSpec{Stopped: true}, true},
		"reuse":        {domain.OrderSpec{Reuse: true}, true},
		"volumes":      {domain.OrderSpec{SetsVolumes: true}, true},
		"floating IPs": {domain.OrderSpec{FloatingIPs: true}, true},
	} {
		o := newOrder(1)
		o.Spec = tc.spec
		first := place(t, store, o, long)
		if c, err := store.Claim(t.Context(), o, long); err != nil || c.Acquired {
			t.Errorf("%s, claimed twice: %+v %v", name, c, err)
		}
		i := o.Instances[0]
		i.ServerID, i.State = "s-"+name, domain.InstanceBuilding
		noError(t, errors.Join(store.RecordFingerprint(t.Context(), o, first, "print"),
			store.Decide(t.Context(), first, i), store.Release(t.Context(), o, first)))
		if got := get(t, store, o).Instances[0].KeyFingerprint; got != "print" {
			t.Errorf("%s: the fingerprint is %q", name, got)
		}
		if err := store.RecordFingerprint(t.Context(), o, first, "late"); !errors.Is(err, domain.ErrFenced) {
			t.Errorf("%s, keyed without a claim: %v", name, err)
		}
		second, err := store.Claim(t.Context(), o, long)
		if err != nil || second.Acquired != tc.held {
			t.Errorf("%s, all decided: got %+v %v", name, second, err)
		}
		foreign := o
		foreign.ProjectID = "p2"
		if c, err := store.Claim(t.Context(), foreign, long); err != nil || c.Acquired {
			t.Errorf("%s, from another project: %+v %v", name, c, err)
		}
		i.State = domain.InstanceActive
		if tc.spec.Stopped {
			i.State = domain.InstanceStopped
		}
		o = settle(t, store, o, i)
		noError(t, store.Release(t.Context(), o, second))
		if c, err := store.Claim(t.Context(), o, long); err != nil || c.Acquired {
			t.Errorf("%s, settled: %+v %v", name, c, err)
		}
	}
}

// begin writes down a create call for the nth instance.
func begin(t *testing.T, store postgres.Orders, o domain.Order, claim domain.Claim, n int) domain.CreateCall {
	t.Helper()
	call := domain.CreateCall{ID: uuid.New(), InstanceID: o.Instances[n].ID, Name: o.Instances[n].Name, UserID: "u1"}
	noError(t, store.BeginCall(t.Context(), o, claim, call, long, long))
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
	noError(t, store.EndCall(t.Context(), o, first))
	second := begin(t, store, o, claim, 0)
	made := with(get(t, store, o).Instances[0], "s0", domain.InstanceBuilding)
	made.CallID = second.ID
	noError(t, store.Decide(t.Context(), claim, made))
	again(claim, 0, domain.ErrCallOpen)
	got := get(t, store, o)
	if len(got.Calls) != 2 || got.Calls[0].ServerID != "" || got.Calls[0].EndedAt.IsZero() ||
		got.Calls[1].ServerID != "s0" || got.Calls[1].UserID != "u1" {
		t.Errorf("the calls are %+v", got.Calls)
	}
	// What Nova answered is written down also when the claim has expired.
	third := begin(t, store, o, claim, 1)
	noError(t, store.Release(t.Context(), o, claim))
	made = with(o.Instances[1], "s1", domain.InstanceBuilding)
	made.CallID = third.ID
	wantError(t, "got", store.Decide(t.Context(), claim, made), domain.ErrFenced)
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
	noError(t, store.Finalize(t.Context(), finalStatus(get(t, store, o))))
	mark(late, "late", false)
}
