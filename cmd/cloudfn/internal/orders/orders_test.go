package orders

import (
	"testing"

	"github.com/cloudfn/cloudfn/cmd/cloudfn/internal/api"
)

// TestName shows an order by the name that it was launched with, as far as its servers' names tell it.
func TestName(t *testing.T) {
	t.Parallel()
	for want, names := range map[string][]string{
		"": {}, "web-1": {"web-1"}, "guest": {"guest-1", "guest-2"}, "a-b": {"a-b-1", "a-b-12"},
		"web (and 1 more)": {"web", "db"}, "web-1 (and 1 more)": {"web-1", "db-2"}, "x- (and 1 more)": {"x-", "x-1"},
	} {
		o := api.Order{}
		for _, name := range names {
			o.Instances = append(o.Instances, api.Instance{Name: name})
		}
		if got := name(o); got != want {
			t.Errorf("%q: got %q, want %q", names, got, want)
		}
	}
}
