package process_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/testkit"
)

// TestLongLeasesOfLaunches goes to the end with leases that the service account handles: that of a server that was made
// in Nova, and the default one of a caller whose token can make no trust. A launch with a lease in the future is
// shelved until it starts.
func TestLongLeasesOfLaunches(t *testing.T) {
	t.Parallel()
	testkit.Heavy(t)
	l := newLessee(t, map[string]string{"DEFAULT_LEASE": "P1M", "LEASES_ADOPT": "P1M"})
	ids, servers := map[string]string{}, map[string]string{"adopted": l.Create(t, "adopted")}
	leaseOf := func(server string) string {
		return testkit.Scalar[string](t, l.conn, `select coalesce(
			(select lease_id::text from instances where server_id = $1), '')`, server)
	}
	start := time.Now().Add(time.Hour).UTC().Format(time.RFC3339)
	_, servers["later"] = l.launch(t, fmt.Sprintf(`, "lease": {"start": %q, "duration": "PT1H"}`, start))
	credential, secret := l.AppCredential(t)
	token := l.token
	l.token = l.AppCredentialToken(t, credential, secret)
	_, servers["default"] = l.launch(t, "")
	l.token = token

	l.Await(t, servers["later"], "SHELVED_OFFLOADED")
	if status := l.show(t, leaseOf(servers["later"])).Status; status != "pending" {
		t.Errorf("before its start the lease is %s", status)
	}
	// The next round is due, for a process that does not remember the last one.
	l.process.Terminate(t, time.Minute)
	if _, err := l.conn.Exec(t.Context(), "delete from jobs where key = 'adopt'"); err != nil {
		t.Fatal(err)
	}
	l.process = testkit.Spawn(t, l.env)
	testkit.Eventually(t, time.Minute, "the server is adopted", func() bool {
		l.tick()
		return leaseOf(servers["adopted"]) != ""
	})
	for name, server := range servers {
		ids[name] = leaseOf(server)
		hasTrust := testkit.Scalar[bool](t, l.conn, "select connection_id is not null from leases where id = $1", ids[name])
		if hasTrust != (name == "later") {
			t.Errorf("%s: with a trust: %v", name, hasTrust)
		}
	}
	l.at(t, ids["later"], "starts_at = clock_timestamp()")
	for name, id := range ids {
		l.becomes(t, id, domain.LeaseActive)
		l.Await(t, servers[name], "ACTIVE")
		l.at(t, id, "ends_at = clock_timestamp()")
	}
	for name, id := range ids {
		l.becomes(t, id, domain.LeaseEnded)
		l.Await(t, servers[name], "SHELVED_OFFLOADED")
		if got, want := l.events(t, id), "pending starting active ending ended"; got != want {
			t.Errorf("%s: its events are %q, want %q", name, got, want)
		}
	}
}
