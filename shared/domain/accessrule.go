package domain

import (
	"regexp"
	"slices"
	"strings"
)

// AccessRule is one call that a Keystone application credential may be limited to. In the path * stands for one
// segment, and ** for any.
type AccessRule struct {
	Service string `json:"service"` // its type in Keystone's catalog
	Method  string `json:"method"`
	Path    string `json:"path"`
}

// Permits reports whether the rule permits a request, as keystonemiddleware decides.
func (r AccessRule) Permits(service, method, path string) bool {
	if r.Service != service || !strings.EqualFold(r.Method, method) {
		return false
	}
	var pattern strings.Builder
	for rest := r.Path; rest != ""; {
		part := pathPart.FindString(rest)
		switch rest = rest[len(part):]; {
		case part == "**":
			pattern.WriteString(".*")
		case part == "*", strings.HasPrefix(part, "{"):
			pattern.WriteString("[^/]+")
		default:
			pattern.WriteString(regexp.QuoteMeta(part))
		}
	}
	matches, err := regexp.MatchString("^(?s:"+pattern.String()+")$", path)
	return matches && err == nil
}

// pathPart is a part of a rule's path: ** for anything, * or a name in braces for one segment, or a literal.
var pathPart = regexp.MustCompile(`^(?:\*\*|\*|\{[^}]*\}|[^*{]+|\{)`)

// Every path begins with **, because Nova, Glance and Neutron may be behind a prefix, such as /compute/v2.1.
var (
	serverAction = AccessRule{"compute", "POST", "/**/servers/*/action"}

	// accessAlways is needed whatever is permitted: to read the states of servers, and the quota.
	accessAlways = []AccessRule{
		{"compute", "GET", "/**/servers/*"}, // servers/detail, too
		{"compute", "GET", "/**/flavors/*"},
		{"compute", "GET", "/**/limits"},
	}
	accessFor = map[Permission][]AccessRule{
		MayAllocate: {
			{"compute", "POST", "/**/servers"},
			serverAction, // orders may stop new servers, and start reused ones
			{"compute", "GET", "/**/os-keypairs"},
			{"compute", "POST", "/**/os-keypairs"},
			{"compute", "DELETE", "/**/os-keypairs/*"},
			{"image", "GET", "/**/images"},
			{"image", "GET", "/**/images/*"},
			{"network", "GET", "/**/networks"},
			{"network", "GET", "/**/subnets"},
		},
		MayConnect: {},
		MayStart:   {serverAction},
		MayStop:    {serverAction},
		MayReboot:  {serverAction},
		MayShelve:  {serverAction},
		MaySnapshot: {
			serverAction,
			{"image", "GET", "/**/images"},
		},
		MayDeploy: {serverAction},
		MayDeallocate: {
			{"compute", "DELETE", "/**/servers/*"},
			{"network", "GET", "/**/ports"},
		},
	}
)

// AccessRules returns the calls that an application credential needs for the permissions. Rules cannot distinguish
// Nova's server actions, which differ in their bodies only: a credential that may stop servers may do any action.
func AccessRules(permissions []Permission) []AccessRule {
	rules := slices.Clone(accessAlways)
	for _, p := range permissions {
		for _, rule := range accessFor[p] {
			if !slices.Contains(rules, rule) {
				rules = append(rules, rule)
			}
		}
	}
	return rules
}
