package openstack

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/domain"
)

// TestProjects falls back to the user's own where the policy does not let it list all.
func TestProjects(t *testing.T) {
	t.Parallel()
	const list = `{"projects":[{"id":"p1","name":"a","domain_id":"d1","enabled":true},{"id":"p2","domain_id":"d1","enabled":false},
		{"id":"p3","domain_id":"d2","enabled":true},{"id":"d1","domain_id":"d1","enabled":true,"is_domain":true}],"links":{"next":null}}`
	for name, status := range map[string]int{"may list": 200, "may not": 403} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newStub(t)
			s.answer("GET /v3/projects", status, list)
			s.answer("GET /v3/auth/projects", 200, list)
			got, err := s.session(t).Projects(t.Context(), "d1")
			if diff := cmp.Diff([]domain.Project{{ID: "p1", Name: "a", DomainID: "d1"}}, got); err != nil ||
				diff != "" {
				t.Errorf("%v %s", err, diff)
			}
		})
	}
}

// cutOff is a Keystone whose list_limit is 2, with 4 projects in two domains. The sandbox's has no limit.
func cutOff(t *testing.T) *stub {
	t.Helper()
	s := newStub(t)
	one := func(id, domainID string) string {
		return fmt.Sprintf(`{"id":%q,"name":"n-%s","domain_id":%q,"enabled":true}`, id, id, domainID)
	}
	s.answer("GET /v3/projects", 200, `{"projects":[`+one("p1", "d1")+`,`+one("p2",
		"d2")+`],"links":{"next":null},"truncated":true}`)
	s.answer("GET /v3/auth/projects", 200, `{"projects":[`+one("p1", "d1")+`,`+one("p3",
		"d1")+`],"links":{"next":null}}`)
	s.answer("GET /v3/projects/d1", 200, `{"project":{"id":"d1","subtree":{"p1":{"p4":null,"gone":{}},"p3":null}}}`)
	s.answer("GET /v3/projects/d2", 200, `{"project":{"id":"d2","subtree":{"p2":null,"off":null}}}`)
	s.answer("GET /v3/projects/p4", 200, `{"project":`+one("p4", "d1")+`}`)
	s.answer("GET /v3/projects/off", 200, `{"project":`+strings.Replace(one("off", "d2"), "true", "false", 1)+`}`)
	return s
}

// TestTruncatedProjects: what Keystone cuts off is found by the trees of its domains; where it cannot be, that is an
// error.
func TestTruncatedProjects(t *testing.T) {
	t.Parallel()
	const domains = `{"domains":[{"id":"d1"},{"id":"d2"}],"links":{"next":null}`
	for name, tc := range map[string]struct {
		domainID string
		change   func(*stub)
		want     []string
		code     apperr.Code
	}{
		"the whole cloud": {
			"", func(s *stub) { s.answer("GET /v3/domains", 200, domains+`}`) }, []string{"p1", "p2", "p3", "p4"}, "",
		},
		"a domain": {"d1", func(*stub) {}, []string{"p1", "p3", "p4"}, ""},
		"too many domains": {
			"", func(s *stub) { s.answer("GET /v3/domains", 200, domains+`,"truncated":true}`) }, nil,
			apperr.BadGateway,
		},
		"domains are not shown": {"", func(s *stub) { s.answer("GET /v3/domains", 403, `{}`) }, nil, apperr.Forbidden},
		"the tree is not shown": {
			"d3", func(s *stub) { s.answer("GET /v3/projects/d3", 403, `{}`) }, nil, apperr.Forbidden,
		},
		"a project does not come": {"d3", func(s *stub) {
			s.answer("GET /v3/projects/d3", 200, `{"project":{"subtree":{"p9":null}}}`)
			s.answer("GET /v3/projects/p9", 503, ``)
		}, nil, apperr.Unavailable},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := cutOff(t)
			tc.change(s)
			got, err := s.session(t).Projects(t.Context(), tc.domainID)
			var ids []string
			for _, p := range got {
				ids = append(ids, p.ID)
			}
			if diff := cmp.Diff(tc.want, ids, cmpopts.SortSlices(strings.Compare)); diff != "" ||
				apperr.CodeOf(err) != tc.code {
				t.Errorf("%v %s", err, diff)
			}
		})
	}
}
