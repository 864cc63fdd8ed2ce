package domain

import "testing"

// TestIsLast has a row for each host that does, or does not, take servers in the place of another.
func TestIsLast(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		other  ComputeHost
		pooled bool // the other one
		want   bool
	}{
		"another":          {other: ComputeHost{Name: "b", Zone: "z", IsUp: true, IsEnabled: true}},
		"of another zone":  {other: ComputeHost{Name: "b", Zone: "y", IsUp: true, IsEnabled: true}, want: true},
		"that is down":     {other: ComputeHost{Name: "b", Zone: "z", IsEnabled: true}, want: true},
		"that is cordoned": {other: ComputeHost{Name: "b", Zone: "z", IsUp: true}, want: true},
		"that is reservable": {
			other: ComputeHost{Name: "b", Zone: "z", IsUp: true, IsEnabled: true}, pooled: true, want: true,
		},
	} {
		hosts := []ComputeHost{{Name: "a", Zone: "z", IsUp: true, IsEnabled: true}, tc.other}
		if got := IsLast("a", hosts, func(name string) bool { return tc.pooled && name == "b" }); got != tc.want {
			t.Errorf("%s: got %t", name, got)
		}
	}
}
