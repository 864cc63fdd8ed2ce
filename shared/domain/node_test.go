package domain

import (
	"strings"
	"testing"
)

// TestSubstitutes has a row for each host that does, or does not, take servers in the place of another.
func TestSubstitutes(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		other  ComputeHost
		pooled bool // the other one
		isLast bool
	}{
		"another":          {other: ComputeHost{Name: "b", Zone: "z", IsUp: true, IsEnabled: true}},
		"of another zone":  {other: ComputeHost{Name: "b", Zone: "y", IsUp: true, IsEnabled: true}, isLast: true},
		"that is down":     {other: ComputeHost{Name: "b", Zone: "z", IsEnabled: true}, isLast: true},
		"that is cordoned": {other: ComputeHost{Name: "b", Zone: "z", IsUp: true}, isLast: true},
		"that is reservable": {
			other: ComputeHost{Name: "b", Zone: "z", IsUp: true, IsEnabled: true}, pooled: true, isLast: true,
		},
	} {
		hosts := []ComputeHost{{Name: "a", Zone: "z", IsUp: true, IsEnabled: true}, tc.other}
		if got := Substitutes("a", hosts, map[string]bool{"b": tc.pooled}); (len(got) == 0) != tc.isLast {
			t.Errorf("%s: got %v", name, got)
		}
	}
}

// TestCheckLabel has a row for each form of a label that Kubernetes takes, and for each that it does not.
func TestCheckLabel(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("x", 63)
	for label, want := range map[string]string{
		"rack=r1": "", "a=": "", "A.b_c-d=1": "", "example.com/rack=r": "", long + "=" + long: "",
		"=x": "key", "-a=x": "key", "a-=x": "key", "a/b/c=x": "key", "/a=x": "key", "a/=x": "key", "a b=x": "key",
		"UPPER.example/a=x": "key", long + "x=": "key", strings.Repeat("x", 254) + "/a=x": "key",
		"a=two words": "value", "a=-": "value", "a=" + long + "x": "value", "a=b/c": "value",
	} {
		key, value, _ := strings.Cut(label, "=")
		got := CheckLabel(key, value)
		if (got == "") != (want == "") || got != "" && !strings.HasPrefix(got, "the "+want) {
			t.Errorf("%.80s: got %q, want the %s to be wrong", label, got, want)
		}
	}
}
