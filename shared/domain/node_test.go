package domain

import (
	"strings"
	"testing"
)

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
