package process_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/cloudfn/cloudfn/shared/testkit"
)

// isolates has Nova's scheduler heed isolating aggregates, or not, and starts it anew with that.
func isolates(t *testing.T, isOn bool) {
	t.Helper()
	const on, off = "enable_isolated_aggregate_filtering = true", "enable_isolated_aggregate_filtering = false"
	file := filepath.Join(filepath.Dir(testkit.CloudsYAML(t)), "conf", "nova", "nova.conf")
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	was, is := on, off
	if isOn {
		was, is = off, on
	}
	changed := strings.Replace(string(text), was, is, 1)
	if !strings.Contains(changed, is) {
		t.Fatalf("%s has no line %q", file, was)
	}
	if err := os.WriteFile(file, []byte(changed), 0o600); err != nil {
		t.Fatal(err)
	}
	sandbox(t, "stop", "nova-scheduler")
	startServices(t, "nova-scheduler")
}

// TestFaultIsolationOff: the self-test says unproven while the scheduler does not isolate the hosts, and proven again
// when it does.
func TestFaultIsolationOff(t *testing.T) {
	host := testkit.ReservableHosts(t)[0]
	l := newLessee(t, nil)
	l.reserve(t, host)
	tested := func(want string) {
		t.Helper()
		testkit.Eventually(t, 3*time.Minute, "the isolation is "+want, func() bool {
			l.tick()
			return testkit.Scalar[int](t, l.conn, "select count(*)::int from isolation where result = $1", want) == 1
		})
	}
	dayLater := func() {
		t.Helper()
		if _, err := l.conn.Exec(t.Context(), `
with again as (update isolation set tested_at = tested_at - interval '25 hours')
delete from jobs where kind = 'run-leases' and key = 'probe'`); err != nil {
			t.Fatal(err)
		}
	}
	tested("proven")
	t.Cleanup(func() { isolates(t, true) })
	isolates(t, false)
	dayLater()
	tested("unproven")
	testkit.Eventually(t, time.Minute, "the server that got onto the host is deleted", func() bool {
		found, err := admin(t).HostServers(t.Context(), host)
		return err == nil && len(found) == 0
	})
	isolates(t, true)
	dayLater()
	tested("proven")
}
