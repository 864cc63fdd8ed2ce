package limit

import (
	"strings"
	"testing"
	"time"

	"github.com/cloudfn/cloudfn/shared/apperr"
)

// TestInFlight: sources are apart, and leave nothing in memory. A script with 16 requests at a time is within the limit
// of every function.
func TestInFlight(t *testing.T) {
	t.Parallel()
	l, _ := limits(t, Config{Address: 1, Project: 1})
	for name, enter := range map[string]func(string) (func(), error){
		"address-in-flight": l.EnterAddress, "project-in-flight": l.EnterProject,
	} {
		var all []func()
		for n := range 16 {
			leave, err := enter("2001:db8::1")
			if err != nil {
				t.Fatalf("%s: request %d: %v", name, n, err)
			}
			all = append(all, leave)
		}
		_, err := enter("2001:db8::1")
		if e := apperr.As(err); e.Code != apperr.RateLimited || e.RetryAfter != time.Second || e.Limit == nil ||
			*e.Limit != (apperr.Limit{Name: name, Quota: 16}) || !strings.Contains(e.Message, "at most 16 in flight") {
			t.Errorf("%s: got %v", name, err)
		}
		other, err := enter("192.0.2.1")
		if err != nil {
			t.Errorf("%s: another source: %v", name, err)
		}
		all[0]()
		again, err := enter("2001:db8::1")
		if err != nil {
			t.Errorf("%s: after one has ended: %v", name, err)
		}
		for _, leave := range append(all[1:], other, again) {
			leave()
		}
	}
	if n := len(l.addressesInFlight.now) + len(l.projectsInFlight.now); n != 0 {
		t.Errorf("%d sources are in memory", n)
	}
	_, _ = l.EnterAddress("2001:db8::1")
	if n := l.addressesInFlight.now["2001:db8::1"]; n != 0 {
		t.Error("the other addresses of its network count apart")
	}
}
