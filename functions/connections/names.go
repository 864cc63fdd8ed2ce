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

// resolve looks up the names of usable_by and adds their ids. It uses the caller's token: nobody learns more about users and projects from
// this service than Keystone lets them see.
func (s service) resolve(ctx context.Context, who domain.Identity, token domain.Secret, w *wish) error {
	if len(w.names) == 0 {
		return nil
	}
	cloud := s.cloud.As(token, who.ProjectID)
	for _, n := range w.names {
		id, err := n.find(ctx, cloud, who.DomainID)
		if err != nil {
			return err
		}
		if slices.Contains(w.UsableBy, id) {
			continue
		}
		w.UsableBy, w.UsableNames = append(w.UsableBy, id), append(w.UsableNames, n.as(id))
	}
	return nil
}

// find looks the name up in its domain. own is the domain of the caller's project.
func (n nameOf) find(ctx context.Context, cloud naming, own string) (id string, err error) {
	domainID := own
	if n.Domain != nil {
		if domainID, err = cloud.DomainNamed(ctx, own, *n.Domain); err != nil {
			return "", n.unlessHidden(err)
		}
	}
	find := cloud.UserNamed
	kind, name := n.what()
	if kind == "project" {
		find = cloud.ProjectNamed
	}
	if id, err = find(ctx, domainID, name); err != nil {
		return "", n.unlessHidden(err)
	}
	return id, nil
}

// unlessHidden is the caller's mistake for a name that is absent, and for one that Keystone does not show: the answer is the same, so that
// it does not say whether there is such a name.
func (n nameOf) unlessHidden(err error) error {
	if code := apperr.CodeOf(err); code != apperr.Forbidden && code != apperr.NotFound {
		return err
	}
	kind, name := n.what()
	of := "the domain of your project"
	if n.Domain != nil {
		of = "the domain " + quoted(*n.Domain)
	}
	return apperr.InvalidField(n.field, "your token shows no "+kind+" "+quoted(name)+" in "+of+": give the id, which `openstack token issue -f value -c "+
		kind+"_id` prints for "+knows[kind]+", and `openstack "+kind+" show -f value -c id NAME` for an administrator")
}

// knows is who gets to know an id from Keystone.
var knows = map[string]string{"user": "that user", "project": "its members"}

// as is how the name is shown beside its id.
func (n nameOf) as(id string) domain.UsableByName {
	named := domain.UsableByName{ID: id}
	if kind, name := n.what(); kind == "user" {
		named.User = name
	} else {
		named.Project = name
	}
	if n.Domain != nil {
		named.Domain = *n.Domain
	}
	return named
}

// quoted is a text of the request as an error repeats it.
func quoted(text string) string { return strconv.QuoteToGraphic(text) }
