package leases

import (
	"testing"

	"github.com/google/uuid"

	"github.com/cloudfn/cloudfn/shared/testkit"
)

// TestKeyedLease: with an Idempotency-Key a lease that is sent again is the same one, whenever its replica died, and
// its instance is leased once.
func TestKeyedLease(t *testing.T) {
	t.Parallel()
	woken := testkit.NewWakes(t)
	f := start(t, map[string]string{"WAKE_URL": woken.URL})
	body, key := ofInstance(f.instance(t, f.project.ID, "active"), ""), uuid.NewString()
	once := func(when string, want int, isReplayed bool) (made struct{ ID uuid.UUID }) {
		t.Helper()
		a := f.Do(t, "POST", "/v1/leases", body, "Content-Type", "application/json", "Idempotency-Key", key)
		if a.JSON(t, &made); a.Status != want || (a.Header.Get("Idempotency-Replayed") != "") != isReplayed {
			t.Errorf("%s: got %d %s", when, a.Status, a.Body)
		}
		if n := testkit.Scalar[int](t, f.conn, "select count(*)::int from leases"); n != 1 {
			t.Errorf("%s: there are %d leases", when, n)
		}
		return made
	}
	var first struct{ ID uuid.UUID }
	woken.After(t, "run-leases", "a lease", func() { first = once("first", 201, false) })
	if again := once("stored", 201, true); again != first {
		t.Errorf("it made %s, and then %s", first.ID, again.ID)
	}
	testkit.LeaveRequests(t, f.conn, testkit.Died)
	woken.After(t, "run-leases", "a lease that is there", func() {
		if again := once("died when it was done", 200, false); again != first {
			t.Errorf("it made %s, and then %s", first.ID, again.ID)
		}
	})
	if trusts := f.project.Trusts(t); len(trusts) != 1 {
		t.Errorf("Keystone has the trusts %v", trusts)
	}
}
