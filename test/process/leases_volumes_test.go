package process_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/testkit"
)

// TestLongVolumesFollowLease: a server with a volume goes through a lease: shelved, unshelved, shelved. Nova keeps the
// attachment all the while, and Cinder keeps the volume for it.
func TestLongVolumesFollowLease(t *testing.T) {
	t.Parallel()
	l := newLessee(t, nil)
	instance, server := l.launch(t, "")
	volume := l.AttachVolume(t, server)
	is := func(when, status string) {
		t.Helper()
		if got, isAttached := l.Attached(t, volume, server); got != status || !isAttached {
			t.Errorf("%s the volume is %s in Cinder, and attached in Nova: %v; want %s", when, got, isAttached, status)
		}
	}
	lease := l.lease(t, fmt.Sprintf(`{"name": "with data", "start": %q, "duration": "PT1H",
		"reservations": [{"type": "instance", "instance_id": %q}]}`,
		time.Now().Add(time.Hour).UTC().Format(time.RFC3339), instance))
	l.Await(t, server, "SHELVED_OFFLOADED")
	is("before the start", "reserved")
	l.at(t, lease.ID, "starts_at = clock_timestamp()")
	l.becomes(t, lease.ID, domain.LeaseActive)
	l.Await(t, server, "ACTIVE")
	is("during the lease", "in-use")
	l.at(t, lease.ID, "ends_at = clock_timestamp()")
	l.becomes(t, lease.ID, domain.LeaseEnded)
	l.Await(t, server, "SHELVED_OFFLOADED")
	is("after the end", "reserved")
	testkit.Eventually(t, time.Minute, "it starts again", func() bool {
		return l.client().Post(t, "/v1/servers/"+instance+"/actions", `{"action": "start"}`).Status < 300
	})
	l.Await(t, server, "ACTIVE")
	is("when it is started again", "in-use")
}
