package openstack

import (
	"context"
	"net/url"

	"github.com/cloudfn/cloudfn/shared/apperr"
)

// How names become ids. By its default policy Keystone lets a member see the domain of his project and the projects in which he has a role,
// and no other user. To admins it lists all users and projects.

// UserNamed is the id of the user of that name in a domain. NotFound when there is none, Forbidden when the session may not know.
func (s *Session) UserNamed(ctx context.Context, domainID, name string) (id string, err error) {
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

// ProjectNamed is the id of the project of that name in a domain: one of the session's user, or any that it may know of. NotFound when
// there is none, Forbidden when the session may not know.
func (s *Session) ProjectNamed(ctx context.Context, domainID, name string) (id string, err error) {
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

// DomainNamed is the id of a domain, given by its name or its id. own is the id of the one that the session's token is of, which it may see
// in any case. NotFound when there is none, Forbidden when the session may not know.
func (s *Session) DomainNamed(ctx context.Context, own, nameOrID string) (id string, err error) {
	if nameOrID == own {
		return own, nil
	}
	keystone := s.keystone()
	if own != "" {
		var body struct {
			Domain project `json:"domain"`
		}
		_, err := keystone.Get(ctx, keystone.ServiceURL("domains", url.PathEscape(own)), &body, nil)
		switch err = classify("keystone", err); apperr.CodeOf(err) {
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
