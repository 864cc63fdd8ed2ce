package domain

import (
	"encoding/json"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cloudfn/cloudfn/shared/apperr"
)

// TestFewestWriteRoles: a trust gets no role that does not permit changes, and admin only for want of another.
func TestFewestWriteRoles(t *testing.T) {
	t.Parallel()
	for given, want := range map[string]string{
		"": "", "admin": "admin", "admin manager member": "member", "admin manager": "manager",
		"member load-balancer_member creator": "member",
	} {
		roles := strings.Fields(given)
		got := Identity{Roles: append(roles, "heat_stack_user"), WriteRoles: roles}.FewestWriteRoles()
		if strings.Join(got, " ") != want {
			t.Errorf("%v: got %v", roles, got)
		}
	}
}

func TestView(t *testing.T) {
	t.Parallel()
	member := Identity{ProjectID: "p1", DomainID: "d1", Roles: []string{"member", "reader"}}
	admin := Identity{ProjectID: "p1", DomainID: "d1", Roles: []string{"admin"}}
	ofDomain := Identity{DomainID: "d1", Roles: []string{"reader"}}
	noRole := Identity{DomainID: "d1", Roles: []string{"some_other"}}
	system := Identity{System: true, Roles: []string{"reader"}}
	for name, tc := range map[string]struct {
		who     Identity
		scope   Scope
		project string
		want    View
		code    apperr.Code
	}{
		"own project":               {member, "", "", View{Scope: ScopeProject, ProjectID: "p1"}, ""},
		"own project by id":         {member, "", "p1", View{Scope: ScopeProject, ProjectID: "p1"}, ""},
		"another project":           {member, "", "p2", View{}, apperr.Forbidden},
		"the domain, as a member":   {member, ScopeDomain, "", View{}, apperr.Forbidden},
		"the cloud, as a member":    {member, ScopeCloud, "", View{}, apperr.Forbidden},
		"another project, as admin": {admin, "", "p2", View{Scope: ScopeProject, ProjectID: "p2"}, ""},
		"the domain, as admin":      {admin, ScopeDomain, "", View{Scope: ScopeDomain, DomainID: "d1"}, ""},
		"the cloud, as admin":       {admin, ScopeCloud, "", View{Scope: ScopeCloud}, ""},
		"a domain's reader":         {ofDomain, "", "", View{Scope: ScopeDomain, DomainID: "d1"}, ""},
		"a domain's reader, one project": {
			ofDomain, "", "p9", View{Scope: ScopeProject, ProjectID: "p9", DomainID: "d1"}, "",
		},
		"a domain's reader, the cloud":    {ofDomain, ScopeCloud, "", View{}, apperr.Forbidden},
		"a domain's token without a role": {noRole, "", "", View{}, apperr.Forbidden},
		"a system reader":                 {system, "", "", View{Scope: ScopeCloud}, ""},
		"a system reader, no project":     {system, ScopeProject, "", View{}, apperr.Invalid},
		"a project with scope=domain":     {admin, ScopeDomain, "p1", View{}, apperr.Invalid},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got, err := NewView(tc.who, tc.scope, tc.project)
			if got != tc.want || apperr.CodeOf(err) != tc.code {
				t.Errorf("got %+v %v, want %+v %s", got, err, tc.want, tc.code)
			}
		})
	}
}

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
			t.Errorf("no one says what %s calls", p)
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
			"GET", "POST", "PUT", "DELETE",
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

// TestShortTime: a duration is written as people write it.
func TestShortTime(t *testing.T) {
	t.Parallel()
	for d, want := range map[time.Duration]string{
		0: "0s", 20 * time.Minute: "20m", 90 * time.Minute: "1h30m", 100 * time.Millisecond: "100ms",
		time.Hour + 5*time.Second: "1h0m5s", 720 * time.Hour: "720h",
	} {
		if got := ShortTime(d); got != want {
			t.Errorf("%s: got %s, want %s", d, got, want)
		}
	}
}

func TestSecretNeverShows(t *testing.T) {
	t.Parallel()
	in := struct {
		S Secret `json:"s"`
	}{}
	if err := json.Unmarshal([]byte(`{"s":"canary"}`), &in); err != nil || in.S.Reveal() != "canary" {
		t.Fatalf("got %q, %v", in.S.Reveal(), err)
	}
	var log strings.Builder
	slog.New(slog.NewJSONHandler(&log, nil)).Info("x", "s", in.S, "in", in)
	out, _ := json.Marshal(in)
	for _, text := range []string{
		fmt.Sprint(in.S), fmt.Sprintf("%v %+v %#v %s %q", in, in, in, in.S, in.S), string(out), log.String(),
	} {
		if strings.Contains(text, "canary") {
			t.Errorf("it shows in %s", text)
		}
	}
}
