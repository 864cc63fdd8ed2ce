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
		{Hour: at(1), Running: &two, Total: &two, Source: api.Rebuilt},
		{Hour: at(2), Source: api.Missing},
		{Hour: at(3), Running: &zero, Total: &two, Source: api.Sampled},
	}
	want := "last: 0 running (Jan 02 03:00)\npeak: 2 running (Jan 02 01:00)\n" +
		"1 of 3 hours are rebuilt from Nova's history\n" +
		"1 of 3 hours are missing: how many ran then is not known\n"
	if got := summary(hours); got != want {
		t.Errorf("the summary is\n%s\nwant\n%s", got, want)
	}
	bars := bars(hours)
	if bars[0].Annotation != "rebuilt" || !bars[1].Missing || bars[2].Missing || bars[2].Part != 0 || bars[2].All != 2 {
		t.Errorf("the bars are %+v", bars)
	}
	if got := summary([]api.HourStat{{Hour: at(1), Source: api.Missing}}); !strings.HasPrefix(got,
		"last: not known\n1 of 1") {
		t.Errorf("of nothing it is %q", got)
	}
}
