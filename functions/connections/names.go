package connections

import (
	"context"
	"slices"
	"strconv"

	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/domain"
)

// naming is the part of a session that names are looked up with.
type naming interface {
	UserNamed(ctx context.Context, domainID, name string) (id string, err error)
	ProjectNamed(ctx context.Context, domainID, name string) (id string, err error)
	DomainNamed(ctx context.Context, own, nameOrID string) (id string, err error)
}

// lookup calls do with the operator's account for names, and the domain that it is of; "" is the whole system.
type lookup func(ctx context.Context, do func(n naming, domainID string) error) error

// resolve looks up the names of usable_by and adds their ids: with the caller's token, and what Keystone does not let that see, with the
// operator's account.
func (s service) resolve(ctx context.Context, who domain.Identity, token domain.Secret, w *wish) error {
	if len(w.names) == 0 {
		return nil
	}
	cloud := s.cloud.As(token, who.ProjectID)
	for _, n := range w.names {
		id, err := s.idOf(ctx, cloud, who, n)
		if err != nil {
			return err
		}
		if slices.Contains(w.UsableBy, id) {
			continue
		}
		named := domain.UsableByName{ID: id}
		if kind, name := n.what(); kind == "user" {
			named.User = name
		} else {
			named.Project = name
		}
		if n.Domain != nil {
			named.Domain = *n.Domain
		}
		w.UsableBy, w.UsableNames = append(w.UsableBy, id), append(w.UsableNames, named)
	}
	return nil
}

// idOf looks one name up. What is in no domain that names are looked up in here, and what Keystone lets nobody see, is one and the same
// answer, which does not tell whether it exists.
func (s service) idOf(ctx context.Context, cloud naming, who domain.Identity, n nameOf) (id string, err error) {
	id, seen, err := n.find(ctx, cloud, who.DomainID, who.DomainID, nil)
	if seen || err != nil || s.lookup == nil {
		return n.found(id, seen, err)
	}
	err = s.lookup(ctx, func(account naming, domainID string) (err error) {
		id, seen, err = n.find(ctx, account, who.DomainID, domainID, s.lookupDomains)
		return err
	})
	return n.found(id, seen, err)
}

// find looks the name up in its domain. own is the domain of the session. seen says that the session may know of that domain, whether it
// has the name or not (id is ""). Names are looked up in the allowed domains only, if there are any.
func (n nameOf) find(ctx context.Context, cloud naming, callers, own string, allowed []string) (id string, seen bool, err error) {
	domainID := callers
	if n.Domain != nil {
		if domainID, err = cloud.DomainNamed(ctx, own, *n.Domain); err != nil {
			return "", false, unlessHidden(err)
		}
	}
	if len(allowed) > 0 && !slices.Contains(allowed, domainID) {
		return "", false, nil
	}
	find := cloud.UserNamed
	kind, name := n.what()
	if kind == "project" {
		find = cloud.ProjectNamed
	}
	switch id, err = find(ctx, domainID, name); apperr.CodeOf(err) {
	case "":
		return id, true, nil
	case apperr.NotFound:
		return "", own == "" || own == domainID, nil
	}
	return "", false, unlessHidden(err)
}

// unlessHidden is nil for an error that says that a session may not know.
func unlessHidden(err error) error {
	if code := apperr.CodeOf(err); code == apperr.Forbidden || code == apperr.NotFound {
		return nil
	}
	return err
}

// found is the id, or why there is none.
func (n nameOf) found(id string, seen bool, err error) (string, error) {
	kind, name := n.what()
	of := "the domain of your project"
	if n.Domain != nil {
		of = "the domain " + quoted(*n.Domain)
	}
	switch {
	case err != nil:
		return "", err
	case id != "":
		return id, nil
	case seen:
		return "", apperr.InvalidField(n.field, "there is no "+kind+" "+quoted(name)+" in "+of)
	}
	return "", apperr.InvalidField(n.field, "names of "+kind+"s in "+of+" cannot be looked up here for you: give the id, which `openstack "+kind+
		" show -f value -c id NAME` prints for the "+kind+" itself and for an administrator")
}

// quoted is a text of the request as an error repeats it.
func quoted(text string) string { return strconv.QuoteToGraphic(text) }
