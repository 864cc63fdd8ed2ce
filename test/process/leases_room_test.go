package process_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/testkit"
)

// TestLongLeaseWithoutRoom: an instance that Nova finds no host for is asked for again, until its lease is in error.
// Its end comes nevertheless.
func TestLongLeaseWithoutRoom(t *testing.T) {
	t.Parallel()
	l := newLessee(t, map[string]string{"LEASES_RETRY_FOR": "10s"}) // three attempts: their pauses are 5, 10 and 20 s
	instance, server := l.launch(t, "")
	lease := l.lease(t, fmt.Sprintf(`{"name": "no room", "start": %q, "duration": "PT1H", "on_end": "delete",
		"reservations": [{"type": "instance", "instance_id": %q}]}`,
		time.Now().Add(time.Hour).UTC().Format(time.RFC3339), instance))
	l.Await(t, server, "SHELVED_OFFLOADED")
	// As if each host had become too small since.
	testkit.NovaSQL(t, `update nova_api.request_specs set spec = regexp_replace(spec,
		'"memory_mb": [0-9]+', '"memory_mb": 999999999') where instance_uuid = '`+server+`'`)
	l.at(t, lease.ID, "starts_at = clock_timestamp()")
	failed := l.becomes(t, lease.ID, domain.LeaseError)
	if failed.Reason == nil || !strings.Contains(failed.Reason.Detail, "no host") {
		t.Errorf("its reason is %+v", failed.Reason)
	}
	if n := testkit.Scalar[int](t, l.conn, "select count(*)::int from actions where verb = 'start'"); n < 2 {
		t.Errorf("it was tried %d times", n)
	}
	l.at(t, lease.ID, "ends_at = clock_timestamp()")
	l.becomes(t, lease.ID, domain.LeaseEnded)
	l.Await(t, server, "DELETED")
	if got, want := l.events(t, lease.ID), "pending starting error ending ended"; got != want {
		t.Errorf("its events are %q, want %q", got, want)
	}
}
