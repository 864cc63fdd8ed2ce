package process_test

import (
	"fmt"
	"net/http"
	"testing"
	"time"

	"github.com/cloudfn/cloudfn/shared/domain"
)

// TestLongLeaseLeavesInstances: a lease that is cancelled starts its instance again, and one that ends with on_end=none
// leaves it running. A later lease of the instance shelves it only after that.
func TestLongLeaseLeavesInstances(t *testing.T) {
	t.Parallel()
	l := newLessee(t, nil)
	instance, server := l.launch(t, "")
	lease := func(name string, start time.Duration) string {
		return l.lease(t, fmt.Sprintf(`{"name": %q, "start": %q, "duration": "PT1H",
			"reservations": [{"type": "instance", "instance_id": %q}]}`, name, time.Now().Add(start).UTC().Format(time.RFC3339), instance)).ID
	}
	end := func(id, query string) {
		if a := l.client().Do(t, http.MethodDelete, "/v1/leases/"+id+query, ""); a.Status >= http.StatusBadRequest {
			t.Errorf("end: %d %s", a.Status, a.Body)
		}
	}
	cancelled := lease("cancelled", time.Hour)
	l.Await(t, server, "SHELVED_OFFLOADED")
	end(cancelled, "")
	l.becomes(t, cancelled, domain.LeaseCancelled)
	l.Await(t, server, "ACTIVE")

	first, later := lease("first", 0), lease("later", 2*time.Hour)
	l.becomes(t, first, domain.LeaseActive)
	l.tick()
	if s := l.Servers(t); len(s) != 1 || s[0].Status != "ACTIVE" {
		t.Errorf("during the first lease the servers are %+v", s)
	}
	end(first, "?on_end=none")
	l.becomes(t, first, domain.LeaseEnded)
	l.Await(t, server, "SHELVED_OFFLOADED") // by the later one
	if s := l.show(t, later).Status; s != string(domain.LeasePending) {
		t.Errorf("the later lease is %s", s)
	}
}
