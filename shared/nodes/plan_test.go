package nodes

import (
	"testing"

	"github.com/cloudfn/cloudfn/shared/domain"
)

// TestPlan has a row for each status that Nova knows: none of them is moved in a way that Nova refuses.
func TestPlan(t *testing.T) {
	t.Parallel()
	methods := map[string]string{
		"ACTIVE": domain.LiveMigration, "PAUSED": domain.LiveMigration, "SHUTOFF": domain.ColdMigration,
		"BUILD": Wait, "MIGRATING": Wait, "RESIZE": Wait, "REVERT_RESIZE": Wait, "REBUILD": Wait, "REBOOT": Wait,
		"HARD_REBOOT": Wait, "PASSWORD": Wait,
		"ERROR": Skip, "VERIFY_RESIZE": Skip, "SUSPENDED": Skip, "RESCUE": Skip, "SHELVED": Skip,
		"SHELVED_OFFLOADED": Skip, "DELETED": Skip, "SOFT_DELETED": Skip, "of the future": Skip,
	}
	for _, status := range domain.ServerStatuses() {
		if methods[status] == "" {
			t.Errorf("no row for the status %s", status)
		}
	}
	for status, want := range methods {
		check(t, domain.Server{Status: status}, want)
		check(t, domain.Server{Status: status, Locked: true}, want)
		check(t, domain.Server{Status: status, Task: "powering-off"}, Wait)
	}
	check(t, domain.Server{Status: "UNKNOWN", Partial: true}, Wait)
}

func check(t *testing.T, s domain.Server, want string) {
	t.Helper()
	method, reason := Plan(s)
	hasReason := want == Wait || want == Skip
	if method != want || (reason != "") != hasReason {
		t.Errorf("%+v: got %q %q, want %q", s, method, reason, want)
	}
}
