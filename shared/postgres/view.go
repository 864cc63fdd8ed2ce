package postgres

import (
	"fmt"

	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/domain"
)

// filter turns a view into the two values that statements compare project_id and domain_id with; ""
// leaves that column open. A view that names nobody is refused, so that a forgotten check cannot show
// everything.
func filter(v domain.View) (project, domainID string, err error) {
	switch {
	case v.Scope == domain.ScopeProject && v.ProjectID != "":
		return v.ProjectID, v.DomainID, nil
	case v.Scope == domain.ScopeDomain && v.DomainID != "":
		return "", v.DomainID, nil
	case v.Scope == domain.ScopeCloud:
		return "", "", nil
	}
	return "", "", apperr.Wrap(apperr.Internal, fmt.Errorf("view without an owner: %+v", v), "internal error")
}
