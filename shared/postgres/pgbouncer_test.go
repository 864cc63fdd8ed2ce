package postgres_test

import (
	"os"
	process "os/exec"
	"testing"
)

// pooled is set in the process of the tests that TestThroughPgBouncer runs again.
const pooled = "CLOUDFN_TEST_PGBOUNCER"

// representative are tests with what may break behind PgBouncer: JSON and arrays as parameters, batches, COPY, locks of a
// transaction, claims, many at once.
const representative = "^(TestListRequests|TestPlaceTwice|TestConclude|TestOtherProjects|TestConnectRaces|TestTakeOver|TestEndOfATrust|" +
	"TestJobs|TestPolls|TestSessions|TestClaim|TestFenced|TestActionsAtOnce|TestKeyedAction|TestDeployment|TestSeenIsKept|TestGrantOnce|" +
	"TestCallbacksChangeWhileTheyAreDelivered|TestReadsOfRemoteConnections|TestStatsRetention)$"

// TestThroughPgBouncer runs representative tests of the stores again behind a real PgBouncer in transaction mode.
func TestThroughPgBouncer(t *testing.T) {
	if os.Getenv(pooled) != "" {
		t.Skip("this is the second run")
	}
	cmd := process.Command(os.Args[0], "-test.run", representative, "-test.timeout", "10m")
	cmd.Env = append(os.Environ(), pooled+"=1")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}
