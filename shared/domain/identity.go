// Package domain holds the types and rules of cloudfn without technology: identities, servers, orders, connections,
// events and statistics, and their state machines.
package domain

import (
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"

	"github.com/cloudfn/cloudfn/shared/apperr"
)

// Identity is the caller, as Keystone confirmed it.
type Identity struct {
	UserID      string
	UserName    string
	ProjectID   string // "" unless the token is scoped to a project
	ProjectName string
	DomainID    string // the project's domain, or the domain the token is scoped to
	System      bool   // scoped to the whole system
	Roles       []string
	WriteRoles  []string // those of Roles that permit changes; empty = the token only reads
	ExpiresAt   time.Time
	AccessRules []AccessRule // of the token's application credential; nil = none, empty = nothing is permitted
}

// Has reports whether the identity holds any of the roles.
func (i Identity) Has(roles ...string) bool {
	return slices.ContainsFunc(roles, func(r string) bool { return slices.Contains(i.Roles, r) })
}

// MayAct reports whether the identity may do more than read.
func (i Identity) MayAct() bool { return len(i.WriteRoles) > 0 }

// FewestWriteRoles returns the fewest roles that permit changes: member, or all but admin, or admin for an identity
// that has nothing else. Empty = the identity only reads.
func (i Identity) FewestWriteRoles() []string {
	var others []string
	for _, role := range i.WriteRoles {
		switch {
		case strings.EqualFold(role, "member"):
			return []string{role}
		case !strings.EqualFold(role, "admin"):
			others = append(others, role)
		}
	}
	if len(others) == 0 {
		return i.WriteRoles
	}
	return others
}

// CloudAdmin reports whether OpenStack lets the identity read every project: the role admin in any project, or a reader
// of the whole system.
func (i Identity) CloudAdmin() bool {
	return i.Has("admin") && i.ProjectID != "" || i.System && i.Has("admin", "reader")
}

// DomainReader reports whether the identity may read every project of its domain: a token scoped to the domain, with a
// role that can read.
func (i Identity) DomainReader() bool {
	return i.ProjectID == "" && i.DomainID != "" && i.Has("admin", "manager", "member", "reader")
}

// MaxSession is the longest session at the console. A session also ends with its token.
const MaxSession = 12 * time.Hour

// Login is the credentials of a user who signs in.
type Login struct {
	User          string
	UserDomain    string // by name
	Password      Secret
	Project       string // name or id; "" = the user's only one
	ProjectDomain string // by name; "" = any
}

// Session is a signed-in user and the token.
type Session struct {
	Token Secret
	Ours  bool // the token was made for the session, and is revoked with it
	Who   Identity
	Until time.Time
}

// Access is who acts, in which project, and what is permitted there. The edge resolves it once for each request.
type Access struct {
	Identity   Identity   // the caller
	ProjectID  string     // the project of the orders and servers
	DomainID   string     // of the project
	Connection Connection // zero = the caller uses its own token, without limits of ours
	ResolvedAt time.Time  // by the database's clock, for a connection's end; zero without one
}

// OwnAccess returns the access of a caller to its own project.
func OwnAccess(who Identity) Access {
	return Access{Identity: who, ProjectID: who.ProjectID, DomainID: who.DomainID}
}

// DelegatedAccess returns the access of a caller through a connection.
func DelegatedAccess(who Identity, c Connection, now time.Time) Access {
	return Access{Identity: who, ProjectID: c.ProjectID, DomainID: c.DomainID, Connection: c, ResolvedAt: now}
}

// Filter selects the orders and instances that the caller may see.
func (a Access) Filter() Filter { return Filter{ProjectID: a.ProjectID, ConnectionID: a.Connection.ID} }

// Actor returns the caller as events show it.
func (a Access) Actor() *Actor { return ActorOf(a.Identity, a.Connection.ID) }

// Permits fails if the connection does not permit the actions. Without a connection OpenStack decides.
func (a Access) Permits(wanted ...Permission) error {
	if a.Connection.ID == uuid.Nil {
		return nil
	}
	return a.Connection.Permits(a.ResolvedAt, wanted...)
}

// Scope says whose rows are read.
type Scope string

// The scopes, from narrow to wide.
const (
	ScopeProject Scope = "project"
	ScopeDomain  Scope = "domain"
	ScopeCloud   Scope = "cloud"
)

// Scopes lists every scope, for messages and checks.
func Scopes() []string { return texts(ScopeProject, ScopeDomain, ScopeCloud) }

// texts converts values of a string type.
func texts[S ~string](values ...S) []string {
	list := make([]string, len(values))
	for n, value := range values {
		list[n] = string(value)
	}
	return list
}

// View is a scope that the caller may read. Every SQL statement that reads rows of projects takes one.
type View struct {
	Scope     Scope
	ProjectID string // for ScopeProject
	DomainID  string // for ScopeDomain; for ScopeProject, the domain the project must belong to ("" = any)
}

// NewView checks that the caller may read the scope. project is for ScopeProject only ("" = the caller's own); scope ""
// is the token's own.
func NewView(who Identity, scope Scope, project string) (View, error) {
	if scope == "" {
		scope = defaultScope(who, project)
	}
	if project != "" && scope != ScopeProject {
		return View{}, apperr.InvalidField("project_id", "requires scope=project")
	}
	switch scope {
	case ScopeProject:
		return projectView(who, project)
	case ScopeDomain:
		if who.DomainReader() || who.CloudAdmin() && who.DomainID != "" {
			return View{Scope: ScopeDomain, DomainID: who.DomainID}, nil
		}
		return View{},
			apperr.New(apperr.Forbidden, "scope=domain needs a token scoped to the domain, or the admin role")
	case ScopeCloud:
		if who.CloudAdmin() {
			return View{Scope: ScopeCloud}, nil
		}
		return View{}, apperr.New(apperr.Forbidden, "scope=cloud needs the admin role, or a reader of the system")
	}
	return View{}, apperr.Unknown("scope", "scope", string(scope), Scopes()...)
}

func defaultScope(who Identity, project string) Scope {
	switch {
	case project != "" || who.ProjectID != "":
		return ScopeProject
	case who.DomainID != "":
		return ScopeDomain
	}
	return ScopeCloud
}

func projectView(who Identity, project string) (View, error) {
	switch {
	case project == "" && who.ProjectID == "":
		return View{}, apperr.InvalidField("project_id", "is needed, because the token is not scoped to a project")
	case project == "" || project == who.ProjectID:
		return View{Scope: ScopeProject, ProjectID: who.ProjectID}, nil
	case who.CloudAdmin():
		return View{Scope: ScopeProject, ProjectID: project}, nil
	case who.DomainReader():
		// The rows carry their domain: a project of another domain looks like one without rows.
		return View{Scope: ScopeProject, ProjectID: project, DomainID: who.DomainID}, nil
	}
	return View{}, apperr.New(apperr.Forbidden,
		"project_id is another project's; that needs a token scoped to its domain, or the admin role")
}

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
	// actionLog shows whether Nova has accepted an action whose answer was lost: see ActionRequest.LogName.
	actionLog = AccessRule{"compute", "GET", "/**/servers/*/os-instance-actions"}

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
		MayAttach: {
			{"network", "GET", "/**/networks"},
			{"network", "GET", "/**/ports"},
			{"network", "GET", "/**/subnets"},
			{"network", "GET", "/**/routers"},
			{"network", "GET", "/**/floatingips"},
			{"network", "POST", "/**/floatingips"},
			{"network", "DELETE", "/**/floatingips/*"},
		},
		MayConnect: {},
		MayStart:   {serverAction},
		MayStop:    {serverAction},
		MayReboot:  {serverAction, actionLog},
		MayPause:   {serverAction},
		MaySuspend: {serverAction},
		MayShelve:  {serverAction},
		MayLock:    {serverAction},
		MayRename:  {{"compute", "PUT", "/**/servers/*"}},
		MayResize:  {serverAction, actionLog},
		MayRebuild: {
			serverAction, actionLog,
			{"image", "GET", "/**/images"},
			{"image", "GET", "/**/images/*"},
		},
		MaySnapshot: {
			serverAction,
			{"image", "GET", "/**/images"},
		},
		MayRescue: {
			serverAction, actionLog,
			{"image", "GET", "/**/images"},
			{"image", "GET", "/**/images/*"},
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

// UnservedReason is why callbacks and connections of a project are suspended that the operator does not serve. They are
// resumed when it is served again.
const UnservedReason = "the operator does not serve the project any more"

// Remains are what a project has left in the database that still has effects.
type Remains struct {
	ProjectID string
	DomainID  string // "" = unknown
	// Since is when the project was found not to be served; zero = it is.
	Since time.Time
	// Counts are how many there are of each kind; what a project has none of is absent. Connections of leases and
	// managed resources count.
	Counts map[string]int
}
