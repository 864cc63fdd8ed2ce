package postgres_test

import (
	"os"
	process "os/exec"
	"strings"
	"testing"
)

// pooled is set in the process of the tests that TestStoresBehindPgBouncer runs again.
const pooled = "CLOUDFN_TEST_PGBOUNCER"

// representative matches tests of features that may break behind PgBouncer: JSON and arrays as parameters, batches,
// COPY, locks of a transaction, claims, concurrent statements.
const representative = "^(TestListRequests|TestPlaceTwice|TestFinalize|TestOtherProjects|TestConnectRaces|TestAdopt|" +
	"TestAnnounceTrustIsUnique|TestJobs|TestPolls|TestSessions|TestClaim|TestFenced|TestClaimActionsConcurrently|" +
	"TestKeyedAction|TestDeployment|TestRecordResources|TestGrantOnce|" +
	"TestChangeCallbackDuringDelivery|TestReadsOfRemoteConnections|TestStatsRetention)$"

// TestStoresBehindPgBouncer runs representative tests of the stores again behind a real PgBouncer in transaction mode.
func TestStoresBehindPgBouncer(t *testing.T) {
	if os.Getenv(pooled) != "" {
		t.Skip("this is the second run")
	}
	if out, err := startPgBouncer(); err != nil && os.Getenv("TEST_CLOUD") == "none" {
		t.Skipf("left out: make check needs no root, and there is no PgBouncer: %s", out)
	}
	cmd := process.Command(os.Args[0], "-test.v", "-test.run", representative, "-test.timeout", "10m")
	cmd.Env = append(os.Environ(), pooled+"=1")
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Errorf("%v\n%s", err, out)
	}
	for name := range strings.SplitSeq(strings.Trim(representative, "^()$"), "|") {
		if !strings.Contains(string(out), "--- PASS: "+name+" ") {
			t.Errorf("%s was not run behind PgBouncer", name)
		}
	}
}
