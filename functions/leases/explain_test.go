package leases

import (
	"strings"
	"testing"
	"time"

	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/domain"
)

// TestExplain: a refusal has the first free time once, in whole seconds, and says that a start is in the past.
func TestExplain(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 1, 2, 3, 4, 5, 999_000, time.UTC)
	free := &domain.FreeError{
		Refusal: apperr.InvalidField("reservations[0].min", "is busy"),
		FreeAt:  now.Add(time.Hour), FreeEnd: now.Add(2 * time.Hour),
	}
	for _, c := range []struct {
		start    time.Time // of the request
		duration string
		want     string
	}{
		{time.Time{}, "PT1H", "start: is too early: what is reserved is free from 2026-01-02T04:04:06Z"},
		{now.Add(time.Minute), "PT1H", "start: is too early: what is reserved is free from 2026-01-02T04:04:06Z"},
		{now.AddDate(-6, 0, 0), "PT1H", "start: is in the past, and the lease would begin now: what is reserved is " +
			"free from 2026-01-02T04:04:06Z"},
		{time.Time{}, "", "start: is too early: what is reserved is free from 2026-01-02T04:04:06Z; " +
			"end: is 2026-01-02T05:04:06Z for as long from then"},
	} {
		terms := domain.LeaseTerms{Start: c.start, End: now.Add(time.Hour)}
		if c.duration != "" {
			terms.Duration = period(t, c.duration)
		}
		lease := domain.Lease{}
		if err := terms.Apply(&lease, domain.LeaseRules{}, now); err != nil {
			t.Fatal(err)
		}
		var texts []string
		for _, f := range apperr.As(explain(free, terms, lease.StartsAt)).Fields[1:] {
			texts = append(texts, f.Field+": "+f.Detail)
		}
		if got := strings.Join(texts, "; "); got != c.want {
			t.Errorf("from %s: got %s", c.start, got)
		}
	}
}

func period(t *testing.T, text string) domain.Period {
	t.Helper()
	p, err := domain.ParsePeriod(text)
	if err != nil {
		t.Fatal(err)
	}
	return p
}
