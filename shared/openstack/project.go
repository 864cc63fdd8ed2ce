package openstack

import (
	"context"
	"net/url"
	"sync"

	"golang.org/x/sync/errgroup"

	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/domain"
)

// How projects are listed: Keystone's `list_limit` cuts its lists off. Such a list says `truncated` and has no link to
// go on, and no filter divides it for certain. The tree of ids below a domain has no limit, so what the list lacks is
// read by id.

// projectReads is how many projects are read by id concurrently.
const projectReads = 8

type project struct {
	ID       string `json:"id"`
	Name     string `json:"name"`
	DomainID string `json:"domain_id"`
	Enabled  bool   `json:"enabled"`
	IsDomain bool   `json:"is_domain"`
}

// tree is the ids below a project, each with those below it.
type tree map[string]tree

func (t tree) each(see func(id string)) {
	for id, below := range t {
		see(id)
		below.each(see)
	}
}

// Projects lists the enabled projects of the domain ("" = of all) that the session may know of: every one
// when Keystone's policy lets it list them, else those in which its user has a role.
func (s *Session) Projects(ctx context.Context, domainID string) ([]domain.Project, error) {
	query := url.Values{"enabled": {"true"}}
	if domainID != "" {
		query.Set("domain_id", domainID)
	}
	found, truncated, err := s.listProjects(ctx, "projects", query)
	switch {
	case apperr.CodeOf(err) == apperr.Forbidden:
		if found, truncated, err = s.listProjects(ctx, "auth/projects", nil); truncated {
			err = errTruncated("projects of its user")
		}
	case err == nil && truncated:
		found, err = s.truncatedProjects(ctx, domainID, found)
	}
	if err != nil {
		return nil, err
	}
	return usable(found, domainID), nil
}

// usable are the projects that a user can work in, of the domain unless it is "".
func usable(found []project, domainID string) (out []domain.Project) {
	for _, p := range found {
		if p.Enabled && !p.IsDomain && (domainID == "" || p.DomainID == domainID) {
			out = append(out, domain.Project{ID: p.ID, Name: p.Name, DomainID: p.DomainID})
		}
	}
	return out
}

func errTruncated(what string) error {
	return apperr.New(apperr.BadGateway, "keystone's list of %s is cut off: raise list_limit in its configuration",
		what)
}

// listProjects reads a list of projects or domains to its end, or until Keystone cuts it off.
func (s *Session) listProjects(
	ctx context.Context, path string, query url.Values,
) (found []project, truncated bool, err error) {
	keystone := s.keystone()
	seen := map[string]bool{}
	for page := query.Encode(); ; {
		var body struct {
			Projects  []project `json:"projects"`
			Domains   []project `json:"domains"`
			Truncated bool      `json:"truncated"`
			Links     struct {
				Next string `json:"next"`
			} `json:"links"`
		}
		if err := getPage(ctx, keystone, keystone.ServiceURL(path)+"?"+page, &body); err != nil {
			return nil, false, classify("keystone", err)
		}
		found, truncated = append(append(found, body.Projects...), body.Domains...), truncated || body.Truncated
		next, err := url.Parse(body.Links.Next) // its host may be another one, which must not get the token
		if err != nil || next.RawQuery == "" {
			return found, truncated, nil //nolint:nilerr // no link
		}
		if page = next.RawQuery; seen[page] {
			return nil, false, apperr.New(apperr.BadGateway, "keystone returned the same page twice (marker ignored)")
		}
		seen[page] = true
	}
}

// truncatedProjects completes a list that Keystone has cut off.
func (s *Session) truncatedProjects(ctx context.Context, domainID string, listed []project) ([]project, error) {
	domains := []project{{ID: domainID}}
	if domainID == "" {
		var truncated bool
		var err error
		if domains, truncated, err = s.listProjects(ctx, "domains", nil); err != nil {
			return nil, err
		}
		if truncated {
			return nil, errTruncated("domains")
		}
	}
	known := map[string]bool{}
	for _, p := range listed {
		known[p.ID] = true
	}
	// Those of the user are listed without a limit: they need not be read one by one.
	own, _, err := s.listProjects(ctx, "auth/projects", nil)
	if err != nil {
		return nil, err
	}
	for _, p := range own {
		if !known[p.ID] {
			known[p.ID], listed = true, append(listed, p)
		}
	}
	var missing []string
	for _, d := range domains {
		below, err := s.treeOf(ctx, d.ID)
		if err != nil {
			return nil, err
		}
		below.each(func(id string) {
			if !known[id] {
				known[id], missing = true, append(missing, id)
			}
		})
	}
	more, err := s.projectsByID(ctx, missing)
	return append(listed, more...), err
}

// treeOf reads the ids of all projects of a domain. A domain is a project, too.
func (s *Session) treeOf(ctx context.Context, domainID string) (tree, error) {
	keystone := s.keystone()
	var body struct {
		Project struct {
			Subtree tree `json:"subtree"`
		} `json:"project"`
	}
	err := getPage(ctx, keystone, keystone.ServiceURL("projects", url.PathEscape(domainID))+"?subtree_as_ids", &body)
	return body.Project.Subtree, classify("keystone", err)
}

// projectsByID reads projects one by one; one that was deleted meanwhile is left out.
func (s *Session) projectsByID(ctx context.Context, ids []string) ([]project, error) {
	keystone := s.keystone()
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(projectReads)
	var mu sync.Mutex
	var found []project
	for _, id := range ids {
		group.Go(func() error {
			var body struct {
				Project project `json:"project"`
			}
			err := get(ctx, keystone, keystone.ServiceURL("projects", url.PathEscape(id)), &body)
			if apperr.CodeOf(err) == apperr.NotFound {
				return nil
			}
			mu.Lock()
			defer mu.Unlock()
			found = append(found, body.Project)
			return err
		})
	}
	err := group.Wait()
	return found, err
}

// How names become ids. By its default policy Keystone lets a member see the domain of his project and the projects in
// which he has a role, and no other user. To admins it lists all users and projects.

// FindUser returns the id of the user with a name in a domain. The error is NotFound, or Forbidden if the session may
// not list users.
func (s *Session) FindUser(ctx context.Context, domainID, name string) (id string, err error) {
	var body struct {
		Users []project `json:"users"`
	}
	keystone := s.keystone()
	query := url.Values{"domain_id": {domainID}, "name": {name}}
	if err := getPage(ctx, keystone, keystone.ServiceURL("users")+"?"+query.Encode(), &body); err != nil {
		return "", classify("keystone", err)
	}
	return onlyNamed("user", body.Users, domainID, name)
}

// FindProject returns the id of the project with a name in a domain: one of the session's user, or any that it may see.
// The error is NotFound, or Forbidden if the session may not list projects.
func (s *Session) FindProject(ctx context.Context, domainID, name string) (id string, err error) {
	if own, _, err := s.listProjects(ctx, "auth/projects", nil); err == nil {
		if id, err := onlyNamed("project", own, domainID, name); err == nil {
			return id, nil
		}
	}
	found, _, err := s.listProjects(ctx, "projects", url.Values{"domain_id": {domainID}, "name": {name}})
	if err != nil {
		return "", err
	}
	return onlyNamed("project", found, domainID, name)
}

// FindDomain returns the id of a domain by its name or id. own is the id of the token's own domain. The error is
// NotFound, or Forbidden if the session may not list domains.
func (s *Session) FindDomain(ctx context.Context, own, nameOrID string) (id string, err error) {
	if nameOrID == own {
		return own, nil
	}
	keystone := s.keystone()
	if own != "" {
		var body struct {
			Domain project `json:"domain"`
		}
		err := get(ctx, keystone, keystone.ServiceURL("domains", url.PathEscape(own)), &body)
		switch apperr.CodeOf(err) {
		case "":
			if body.Domain.Name == nameOrID {
				return own, nil
			}
		case apperr.Forbidden, apperr.NotFound:
		default:
			return "", err
		}
	}
	found, _, err := s.listProjects(ctx, "domains", nil)
	if err != nil {
		return "", err
	}
	for _, d := range found {
		if d.ID == nameOrID || d.Name == nameOrID {
			return d.ID, nil
		}
	}
	return "", apperr.New(apperr.NotFound, "there is no domain %q", nameOrID)
}

// onlyNamed finds a name among what Keystone lists, whose databases may take names that differ in case for equal.
func onlyNamed(what string, found []project, domainID, name string) (id string, err error) {
	for _, p := range found {
		if p.Name == name && p.DomainID == domainID && !p.IsDomain {
			return p.ID, nil
		}
	}
	return "", apperr.New(apperr.NotFound, "there is no %s %q", what, name)
}
