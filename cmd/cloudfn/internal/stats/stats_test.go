package stats

import (
	"strings"
	"testing"
	"time"

	"github.com/cloudfn/cloudfn/cmd/cloudfn/internal/api"
)

// TestSummary counts unknown hours as unknown.
func TestSummary(t *testing.T) {
	t.Parallel()
	two, zero := 2, 0
	at := func(hour int) time.Time { return time.Date(2026, 1, 2, hour, 0, 0, 0, time.UTC) }
	hours := []api.HourStat{
		{Hour: at(1), Running: &two, Total: &two, Launched: &two, Source: api.Rebuilt},
		{Hour: at(2), Source: api.Missing},
		{Hour: at(3), Running: &zero, Total: &two, Launched: &zero, Uncertain: 1, Source: api.Sampled},
		{Hour: at(4), Running: &zero, Total: &two, Launched: &two, Uncertain: 1, Source: api.Sampled},
	}
	want := "last: 0 running, 1 uncertain (Jan 02 04:00)\npeak: 2 running (Jan 02 01:00)\n" +
		"launched: 4 in 3 hours\n1 of 4 hours are rebuilt from Nova's history\n" +
		"2 of 4 hours have uncertain servers: Nova's log does not say which state they were in\n" +
		"1 of 4 hours are missing: how many ran then is not known\n"
	if got := summary(hours); got != want {
		t.Errorf("the summary is\n%s\nwant\n%s", got, want)
	}
	bars := bars(hours)
	if bars[0].Annotation != "rebuilt" || !bars[1].Missing || bars[2].Missing || bars[2].Part != 0 || bars[2].All != 2 {
		t.Errorf("the bars are %+v", bars)
	}
	for i, want := range []string{"(2 launched)", "", "+1 uncertain", "(2 launched) +1 uncertain"} {
		if bars[i].More != want {
			t.Errorf("behind bar %d is %q, want %q", i, bars[i].More, want)
		}
	}
	if got := summary([]api.HourStat{{Hour: at(1), Source: api.Missing}}); !strings.HasPrefix(got,
		"last: not known\n1 of 1") {
		t.Errorf("of nothing it is %q", got)
	}
}
