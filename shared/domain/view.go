package domain

import "github.com/cloudfn/cloudfn/shared/apperr"

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
