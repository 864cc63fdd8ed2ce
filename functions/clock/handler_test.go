package clock

import (
	"testing"

	"github.com/cloudfn/cloudfn/shared/testkit"
)

// TestEventsThatAreNotTicks get 4xx, so that no one sends them again.
func TestEventsThatAreNotTicks(t *testing.T) {
	t.Parallel()
	app := testkit.Start(t, testkit.Env(t, testkit.Database(t), nil), Function)
	ce := func(more ...string) []string {
		return append([]string{"Ce-Specversion", "1.0", "Ce-Id", "1", "Ce-Source", "/x"}, more...)
	}
	for name, tc := range map[string]struct {
		header []string
		want   int
	}{
		"no event":     {nil, 400},
		"a wrong key":  {ce("Ce-Type", "dev.knative.sources.ping", "Ce-Cloudfnkey", "guess"), 403},
		"another type": {ce("Ce-Type", "com.example.other", "Ce-Cloudfnkey", testkit.EventKey), 415},
	} {
		if a := app.Do(t, "POST", "/events/clock", "", tc.header...); a.Status != tc.want {
			t.Errorf("%s: got %d %s, want %d", name, a.Status, a.Body, tc.want)
		}
	}
}
