package leases

import (
	"fmt"
	"net/http"
	"testing"
	"time"

	"github.com/cloudfn/cloudfn/shared/testkit"
)

// TestChangesAreLimited as far as they make no trust: each writes an event, and a delivery for each of up to 100
// callbacks.
func TestChangesAreLimited(t *testing.T) {
	t.Parallel()
	f := start(t, map[string]string{"CHANGE_RATE_LIMIT": "3"})
	f.hosts(t, 2)
	hosts := ofHosts(in(time.Hour), "PT2H", "")
	path := "/v1/leases/" + f.make(t, hosts).ID.String()
	for n, tc := range []struct {
		status int
		name   string
	}{{200, "a"}, {200, "a"}, {200, "b"}, {429, "a"}, {200, "b"}} {
		if a := patch(t, f.Client, path, fmt.Sprintf(`{"name": %q}`, tc.name)); a.Status != tc.status {
			t.Errorf("change %d: got %d %.200s, want %d", n, a.Status, a.Body, tc.status)
		}
	}
	refused(t, f.Post(t, "/v1/leases", hosts), http.StatusTooManyRequests, "")
	refused(t, f.Post(t, "/v1/leases?dry_run=true", hosts), http.StatusTooManyRequests, "")
	made := f.make(t, ofInstance(f.instance(t, f.project.ID, "active"), ""))
	f.exec(t, "update leases set status = 'error', start_result = 'failed' where id = $1", made.ID)
	refused(t, f.Post(t, "/v1/leases/"+made.ID.String()+"/retry", ""), http.StatusTooManyRequests, "")
}

// TestSearchesAreLimited: a dry run and a search for free hosts each may read the times of all hosts.
func TestSearchesAreLimited(t *testing.T) {
	t.Parallel()
	for name, search := range map[string]func(f fixture) testkit.Answer{
		"dry run": func(f fixture) testkit.Answer {
			return f.Post(t, "/v1/leases?dry_run=true", ofHosts(in(time.Hour), "PT2H", ""))
		},
		"availability": func(f fixture) testkit.Answer {
			return f.Get(t, "/v1/leases/availability?duration=PT1H")
		},
	} {
		f := start(t, map[string]string{"CHANGE_RATE_LIMIT": "2"})
		f.hosts(t, 1)
		for n, status := range []int{200, 200, 429} {
			a := search(f)
			if a.Status != status || (status == 429) != (a.Header.Get("Retry-After") != "") {
				t.Errorf("%s %d: got %d %.200s, want %d", name, n, a.Status, a.Body, status)
			}
		}
	}
}
