package auth

import (
	"context"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/domain"
)

func TestHeader(t *testing.T) {
	t.Parallel()
	longest := strings.Repeat("a", maxToken)
	for name, tc := range map[string]struct {
		values []string
		want   string // "" when it is refused
	}{
		"a token":            {[]string{"gAAAAABl-_="}, "gAAAAABl-_="},
		"the longest":        {[]string{longest}, longest},
		"none":               {nil, ""},
		"an empty one":       {[]string{""}, ""},
		"two":                {[]string{"a", "b"}, ""},
		"the same twice":     {[]string{"a", "a"}, ""},
		"one and an empty":   {[]string{"a", ""}, ""},
		"too long":           {[]string{longest + "a"}, ""},
		"a space":            {[]string{"a b"}, ""},
		"a line end":         {[]string{"a\r\nX-Roles: admin"}, ""},
		"a NUL":              {[]string{"a\x00"}, ""},
		"a DEL":              {[]string{"a\x7f"}, ""},
		"not ASCII":          {[]string{"tokén"}, ""},
		"joined by a proxy":  {[]string{"a, b"}, ""},
		"white space around": {[]string{" a"}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			sent := ""
			a := New(Config{}, func(_ context.Context, token domain.Secret) (domain.Identity, error) {
				sent = token.Reveal()
				return domain.Identity{UserID: "u", ProjectID: "p"}, nil
			})
			ctx, err := a.Authenticate(t.Context(), &http.Request{Header: http.Header{"X-Auth-Token": tc.values}})
			if sent != tc.want {
				t.Errorf("Keystone got the token %q", sent)
			}
			if tc.want == "" {
				if apperr.CodeOf(err) != apperr.Unauthenticated || CallerOrNone(ctx).UserID != "" {
					t.Errorf("got %v", err)
				}
				for _, v := range tc.values {
					if len(v) > 2 && strings.Contains(err.Error(), v) {
						t.Errorf("the refusal shows the token: %v", err)
					}
				}
				return
			}
			who, token, err2 := Project(ctx)
			if err != nil || err2 != nil || who.ProjectID != "p" || token.Reveal() != tc.want {
				t.Errorf("got %v %v %v", who, err, err2)
			}
		})
	}
}

func TestAllowList(t *testing.T) {
	t.Parallel()
	project := func(p, d string) domain.Identity { return domain.Identity{UserID: "u", ProjectID: p, DomainID: d} }
	all, projects, domains := Config{}, Config{AllowedProjects: []string{"p1", "p2"}}, Config{
		AllowedDomains: []string{"d1"},
	}
	both := Config{AllowedProjects: projects.AllowedProjects, AllowedDomains: domains.AllowedDomains}
	for name, tc := range map[string]struct {
		who                          domain.Identity
		all, projects, domains, both apperr.Code
	}{
		"both right":       {project("p2", "d1"), "", "", "", ""},
		"the project only": {project("p1", "d2"), "", "", apperr.Forbidden, apperr.Forbidden},
		"the domain only":  {project("p3", "d1"), "", apperr.Forbidden, "", apperr.Forbidden},
		"neither":          {project("p3", "d2"), "", apperr.Forbidden, apperr.Forbidden, apperr.Forbidden},
		"ids swapped":      {project("d1", "p1"), "", apperr.Forbidden, apperr.Forbidden, apperr.Forbidden},
		"a name, not an id": {
			domain.Identity{ProjectID: "x", ProjectName: "p1", DomainID: "d1"},
			"", apperr.Forbidden, "",
			apperr.Forbidden,
		},
		"a domain's token":       {project("", "d1"), "", apperr.Forbidden, "", apperr.Forbidden},
		"another domain's token": {project("", "d2"), "", apperr.Forbidden, apperr.Forbidden, apperr.Forbidden},
		"the system's token":     {domain.Identity{UserID: "u", System: true}, "", "", "", ""},
		"a token without scope": {
			project("", ""), apperr.Unauthenticated, apperr.Unauthenticated, apperr.Unauthenticated,
			apperr.Unauthenticated,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for _, c := range []struct {
				lists string
				cfg   Config
				want  apperr.Code
			}{{"no list", all, tc.all}, {"projects", projects, tc.projects}, {"domains", domains, tc.domains}, {"both", both, tc.both}} {
				a := New(c.cfg, func(context.Context, domain.Secret) (domain.Identity, error) { return tc.who, nil })
				ctx, err := a.Authenticate(t.Context(), &http.Request{Header: http.Header{"X-Auth-Token": {"t"}}})
				if apperr.CodeOf(err) != c.want {
					t.Errorf("%s: got %v, want %q", c.lists, err, c.want)
				}
				if got := CallerOrNone(ctx); got.UserID != tc.who.UserID { // the request log names who was refused
					t.Errorf("%s: the caller is %+v", c.lists, got)
				}
			}
		})
	}
}

func TestCaller(t *testing.T) {
	t.Parallel()
	if who := CallerOrNone(t.Context()); who.UserID != "" {
		t.Errorf("got %+v", who)
	}
	ctx := context.WithValue(t.Context(), contextKey{}, caller{domain.Identity{DomainID: "d"}, "t"})
	if _, _, err := Project(ctx); apperr.CodeOf(err) != apperr.Forbidden {
		t.Errorf("a domain's token for a project's work: got %v", err)
	}
	defer func() {
		if recover() == nil {
			t.Error("a public route was given a caller")
		}
	}()
	Caller(t.Context())
}

// TestAccessRules: a token of an application credential with access rules may do what these permit, and no more.
func TestAccessRules(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		rules []domain.AccessRule
		want  apperr.Code
	}{
		{nil, ""},
		{[]domain.AccessRule{{Service: "cloudfn", Method: "GET", Path: "/v1/servers"}}, ""},
		{[]domain.AccessRule{}, apperr.Forbidden},
		{[]domain.AccessRule{{Service: "compute", Method: "GET", Path: "/**"}}, apperr.Forbidden},
	} {
		cfg := Config{AccessRulesService: "cloudfn"}
		a := New(cfg, func(context.Context, domain.Secret) (domain.Identity, error) {
			return domain.Identity{UserID: "u", ProjectID: "p", AccessRules: tc.rules}, nil
		})
		r := httptest.NewRequest(http.MethodGet, "/v1/servers?limit=1", nil)
		r.Header.Set("X-Auth-Token", "t")
		ctx, err := a.Authenticate(t.Context(), r)
		if apperr.CodeOf(err) != tc.want || CallerOrNone(ctx).UserID != "u" {
			t.Errorf("%v: got %v", tc.rules, err)
		}
		if err != nil && !strings.Contains(err.Error(), "service cloudfn, method GET, path /v1/servers") {
			t.Errorf("%v: the missing rule is not named: %v", tc.rules, err)
		}
	}
}

// TestWriteRoles: a token may change things by the roles of the setting only, whatever else it may do in OpenStack.
func TestWriteRoles(t *testing.T) {
	t.Parallel()
	byDefault := []string{"member", "manager", "admin"}
	for _, tc := range []struct {
		setting, roles, write []string
	}{
		{byDefault, []string{"reader"}, nil},
		{byDefault, []string{"load-balancer_observer", "key-manager:audit", "heat_stack_user", "reader"}, nil},
		{byDefault, nil, nil},
		{byDefault, []string{"manager", "member", "reader"}, []string{"manager", "member"}},
		{byDefault, []string{"Member", "_member_"}, []string{"Member"}},
		{[]string{"operator"}, []string{"operator", "member"}, []string{"operator"}},
		{[]string{"operator"}, []string{"admin", "member"}, nil},
	} {
		a := New(Config{WriteRoles: tc.setting}, func(context.Context, domain.Secret) (domain.Identity, error) {
			return domain.Identity{UserID: "u", ProjectID: "p", Roles: tc.roles}, nil
		})
		ctx, err := a.Authenticate(t.Context(), &http.Request{Header: http.Header{"X-Auth-Token": {"t"}}})
		if err != nil {
			t.Fatal(err)
		}
		if who, _ := Caller(ctx); !slices.Equal(who.WriteRoles, tc.write) {
			t.Errorf("WRITE_ROLES %v, a token with %v: got %v, want %v", tc.setting, tc.roles, who.WriteRoles, tc.write)
		}
		want := apperr.Code("")
		if tc.write == nil {
			want = apperr.Forbidden
		}
		if err := CanWrite(ctx); apperr.CodeOf(err) != want {
			t.Errorf("WRITE_ROLES %v, a token with %v: %v", tc.setting, tc.roles, err)
		}
		if err := CanRead(ctx); err != nil {
			t.Errorf("a token with %v cannot read: %v", tc.roles, err)
		}
	}
}

func TestConfigValidate(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		cfg  Config
		good bool
	}{
		"nothing set": {Config{}, true},
		"lists":       {Config{AllowedProjects: []string{"a", "b"}, AllowedDomains: []string{"c"}}, true},
		// it would let in every domain's token
		"an empty project id": {Config{AllowedProjects: []string{"a", ""}}, false},
		"an empty role":       {Config{WriteRoles: []string{"member", ""}}, false},
		"an empty domain id":  {Config{AllowedDomains: []string{"", "c"}}, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if err := tc.cfg.Validate(); (err == nil) != tc.good {
				t.Errorf("got %v", err)
			}
		})
	}
}
