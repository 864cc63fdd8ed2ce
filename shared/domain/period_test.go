package domain_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/cloudfn/cloudfn/shared/domain"
)

func TestPeriod(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ text, start, end string }{
		{"PT1H", "2026-01-31T10:00:00Z", "2026-01-31T11:00:00Z"},
		{"P1M", "2026-01-31T10:00:00Z", "2026-02-28T10:00:00Z"},
		{"P1M", "2028-01-31T10:00:00Z", "2028-02-29T10:00:00Z"},
		{"P1M", "2026-12-31T10:00:00Z", "2027-01-31T10:00:00Z"},
		{"P1Y", "2028-02-29T10:00:00Z", "2029-02-28T10:00:00Z"},
		{"P1M1D", "2026-01-31T10:00:00Z", "2026-03-01T10:00:00Z"},
		{"P1M", "2026-02-01T00:30:00+01:00", "2026-02-28T23:30:00Z"}, // the month is UTC's: it begins in January
		{"P1Y2M3W4DT5H6M7.5S", "2026-01-01T00:00:00Z", "2027-03-26T05:06:07.5Z"},
		{"PT0,25S", "2026-01-01T00:00:00Z", "2026-01-01T00:00:00.25Z"},
	} {
		p, err := domain.ParsePeriod(c.text)
		start, _ := time.Parse(time.RFC3339, c.start)
		if got := p.AddTo(start).Format(time.RFC3339Nano); err != nil || got != c.end {
			t.Errorf("%s from %s: got %s %v, want %s", c.text, c.start, got, err, c.end)
		}
	}
	march, _ := time.Parse(time.RFC3339, "2026-03-31T10:00:00Z")
	if p, _ := domain.ParsePeriod("P1M"); p.Before(march).Format(time.DateOnly) != "2026-02-28" {
		t.Errorf("a month before %s is %s", march, p.Before(march))
	}
}

func TestPeriodErrors(t *testing.T) {
	t.Parallel()
	for text, at := range map[string]int{
		"": 1, "1H": 1, "p1d": 1, "-P1D": 1, "P": 2, "PT": 3, "P1DT": 5, "P1": 3, "P1H": 3, "PT1D": 4, "P-1D": 2,
		"P+1D": 2, "P1.5D": 3, "P0D": 1, "PT0S": 1, "PT0.0S": 1, "P1D1D": 5, "P1D1M": 5, "P100000D": 2, "PT1.S": 4,
		"PT1.1234567891S": 4,
		"P1D ":            4, "PT1H1H": 6, "P99999999999999999999D": 2, "P1DTT1H": 5, "P١D": 2, "PT1S1S": 6,
	} {
		var wrong *domain.PeriodError
		if p, err := domain.ParsePeriod(text); !errors.As(err, &wrong) || wrong.At != at || !p.IsZero() {
			t.Errorf("%q: got %v %v, want an error at character %d", text, p, err, at)
		}
	}
}

// anyPeriod draws a period as a text.
func anyPeriod(t *rapid.T) domain.Period {
	count := rapid.IntRange(0, 400)
	text := fmt.Sprintf("P%dY%dM%dW%dDT%dH%dM%d.%09dS", count.Draw(t, "years"), count.Draw(t, "months"),
		count.Draw(t, "weeks"), count.Draw(t, "days"), count.Draw(t, "hours"), count.Draw(t, "minutes"),
		rapid.IntRange(1, 400).Draw(t, "seconds"), rapid.IntRange(0, 999999999).Draw(t, "nanoseconds"))
	p, err := domain.ParsePeriod(text)
	if err != nil {
		t.Fatalf("%s: %v", text, err)
	}
	return p
}

// TestPeriodProperties: a period survives its own text and JSON, always ends after it begins, never skips a month, and
// does not depend on the zone of the start.
func TestPeriodProperties(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		p := anyPeriod(t)
		again, err := domain.ParsePeriod(p.String())
		if err != nil || again != p {
			t.Fatalf("%s: read as %s, %v", p, again, err)
		}
		var decoded domain.Period
		data, _ := json.Marshal(p)
		if err := json.Unmarshal(data, &decoded); err != nil || decoded != p {
			t.Fatalf("%s: decoded %s, %v", data, decoded, err)
		}
		start := time.Unix(rapid.Int64Range(0, 1<<33).Draw(t, "start"), 0)
		end := p.AddTo(start.UTC())
		zone := time.FixedZone("", rapid.IntRange(-14, 14).Draw(t, "zone")*3600)
		if !end.After(start) || !p.AddTo(start.In(zone)).Equal(end) || end.Location() != time.UTC {
			t.Fatalf("%s from %s: %s", p, start, end)
		}
		months := rapid.IntRange(1, 1200).Draw(t, "only months")
		p, _ = domain.ParsePeriod(fmt.Sprintf("P%dM", months))
		from, to := start.UTC(), p.AddTo(start)
		passed := (to.Year()-from.Year())*12 + int(to.Month()-from.Month())
		if passed != months || to.Day() > from.Day() {
			t.Fatalf("%s from %s: %s", p, from, to)
		}
	})
}

func TestPeriodOf(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		d := time.Duration(rapid.Int64Range(0, 1<<53).Draw(t, "duration"))
		if got := domain.PeriodOf(d).AddTo(time.Unix(0, 0)).Sub(time.Unix(0, 0)); got != d {
			t.Fatalf("%s: %s is %s", d, domain.PeriodOf(d), got)
		}
	})
}

// TestRoughPeriod: what people read has no fractions, and is not below a limit that it exceeds.
func TestRoughPeriod(t *testing.T) {
	t.Parallel()
	const day = 24 * time.Hour
	for d, want := range map[time.Duration][2]string{
		401*day + 4*time.Minute + 3038285*time.Microsecond: {"P401D", "P401DT1H"},
		400 * day:                           {"P400D", "P400D"},
		2*time.Hour - time.Microsecond:      {"PT1H59M", "PT2H"},
		90*time.Second + 5*time.Microsecond: {"PT1M30S", "PT1M31S"},
		24*time.Hour - 500*time.Millisecond: {"PT23H59M", "P1D"},
	} {
		if got := [2]string{
			domain.RoughPeriod(d, false).String(), domain.RoughPeriod(d, true).String(),
		}; got != want {
			t.Errorf("%s: got %q, want %q", d, got, want)
		}
	}
}

func FuzzParsePeriod(f *testing.F) {
	for _, text := range []string{"P1Y2M3W4DT5H6M7.8S", "PT1H", "P1M", "P", "PT", "P1.5D", "P0D", "-P1D"} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		p, err := domain.ParsePeriod(text)
		if err != nil {
			var wrong *domain.PeriodError
			if !errors.As(err, &wrong) || wrong.At < 1 || wrong.At > len(text)+1 {
				t.Fatalf("%q: %v", text, err)
			}
			return
		}
		if again, err := domain.ParsePeriod(p.String()); err != nil || again != p {
			t.Fatalf("%q: %s is read as %s, %v", text, p, again, err)
		}
		if now := time.Unix(1<<31, 0); !p.AddTo(now).After(now) {
			t.Fatalf("%q: no time passes", text)
		}
	})
}
