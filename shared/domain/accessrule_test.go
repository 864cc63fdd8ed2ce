package domain

import (
	"slices"
	"strings"
	"testing"
)

// TestAccessRules are for every permission, each rule once, in the form that Keystone takes. That they are enough, and
// how much they leave out, is tested against a real cloud in shared/openstack.
func TestAccessRules(t *testing.T) {
	t.Parallel()
	all := make([]Permission, 0, len(Permissions()))
	for _, p := range Permissions() {
		if _, known := accessFor[Permission(p)]; !known {
			t.Errorf("nobody says what %s calls", p)
		}
		all = append(all, Permission(p))
	}
	seen := map[AccessRule]bool{}
	for _, rule := range AccessRules(all) {
		if seen[rule] {
			t.Errorf("%v is there twice", rule)
		}
		seen[rule] = true
		if !strings.HasPrefix(rule.Path, "/") || len(rule.Path) > 225 || !slices.Contains([]string{
			"GET", "POST", "DELETE",
		}, rule.Method) {
			t.Errorf("Keystone does not take %v", rule)
		}
	}
	if first, second := AccessRules([]Permission{MayStop}), AccessRules([]Permission{
		MayStop, MayStart,
		MayStop,
	}); !slices.Equal(first, second) || len(first) != len(AccessRules(nil))+1 {
		t.Errorf("got %v and %v", first, second)
	}
	AccessRules([]Permission{MayDeallocate})[0].Path = "changed"
	if AccessRules(nil)[0].Path == "changed" {
		t.Error("who changes an answer changes the next one")
	}
}
