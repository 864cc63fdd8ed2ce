package domain

import (
	"slices"
	"strings"
	"testing"
)

// TestAccessRulePermits what keystonemiddleware lets through.
func TestAccessRulePermits(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		service, method, rule, path string
		want                        bool
	}{
		{"cloudfn", "GET", "/v1/servers", "/v1/servers", true},
		{"cloudfn", "get", "/v1/servers", "/v1/servers", true},
		{"cloudfn", "POST", "/v1/servers", "/v1/servers", false},
		{"compute", "GET", "/v1/servers", "/v1/servers", false},
		{"cloudfn", "GET", "/v1/servers", "/v1/servers/x", false},
		{"cloudfn", "GET", "/v1/servers", "/v1/serversx", false},
		{"cloudfn", "GET", "/v1/servers/*", "/v1/servers/x", true},
		{"cloudfn", "GET", "/v1/servers/*", "/v1/servers/x/y", false},
		{"cloudfn", "GET", "/v1/servers/*", "/v1/servers/", false},
		{"cloudfn", "GET", "/v1/servers/{id}", "/v1/servers/x", true},
		{"cloudfn", "GET", "/v1/servers/{id}/actions", "/v1/servers/x/y/actions", false},
		{"cloudfn", "GET", "/v1/**", "/v1/servers/x/y", true},
		{"cloudfn", "GET", "/**", "/v1/servers", true},
		{"cloudfn", "GET", "/v1.servers", "/v1/servers", false},
		{"cloudfn", "GET", "/v1/{", "/v1/{", true},
		{"cloudfn", "GET", "", "/v1", false},
	} {
		rule := AccessRule{Service: tc.service, Method: tc.method, Path: tc.rule}
		if got := rule.Permits("cloudfn", "GET", tc.path); got != tc.want {
			t.Errorf("%+v, GET %s: %t", rule, tc.path, got)
		}
	}
}

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
