package runleases

import (
	"testing"

	"github.com/cloudfn/cloudfn/shared/testkit"
)

// TestTick answers a tick without work.
func TestTick(t *testing.T) {
	t.Parallel()
	app := testkit.Start(t, testkit.Env(t, testkit.Database(t), nil), Function)
	if a := app.Tick(t, "run-leases"); a.Status != 204 {
		t.Errorf("got %d %s", a.Status, a.Body)
	}
}
