package postgres_test

import (
	"testing"
	"time"

	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/postgres"
	"github.com/cloudfn/cloudfn/shared/testkit"
)

// TestProvenSince: the isolation is proven since the first of the self-tests that have found so without a break.
func TestProvenSince(t *testing.T) {
	t.Parallel()
	db := open(t, testkit.Database(t))
	store := postgres.Isolations{DB: db}
	var first time.Time
	for n, step := range []struct{ result, since string }{
		{domain.IsolationUnproven, "never"},
		{domain.IsolationProven, "now"},
		{domain.IsolationProven, "first"},
		{domain.IsolationUnproven, "never"},
		{domain.IsolationProven, "now"},
	} {
		if err := store.Set(t.Context(), "here", step.result, ""); err != nil {
			t.Fatal(err)
		}
		got, err := store.Get(t.Context(), "here")
		if err != nil || got.Result != step.result {
			t.Fatalf("step %d: %+v %v", n, got, err)
		}
		switch since := got.ProvenSince; {
		case step.since == "never" && since != nil, step.since != "never" && since == nil,
			step.since == "first" && !since.Equal(first), step.since == "now" && !since.After(first):
			t.Errorf("step %d: it is proven since %v, first %v", n, since, first)
		case step.since == "now":
			first = *since
		}
	}
}
