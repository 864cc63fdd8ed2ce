package connections

import (
	"context"
	"slices"
	"strconv"

	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/domain"
)

// nameResolver is the part of a session that resolves names.
type nameResolver interface {
	FindUser(ctx context.Context, domainID, name string) (id string, err error)
	FindProject(ctx context.Context, domainID, name string) (id string, err error)
	FindDomain(ctx context.Context, own, nameOrID string) (id string, err error)
}

// resolveNames adds the ids of the draft's names to UsableBy. It uses the caller's token, so that nobody learns more
// about users and projects than Keystone shows them.
func (s service) resolveNames(ctx context.Context, who domain.Identity, token domain.Secret, d *draft) error {
	if len(d.names) == 0 {
		return nil
	}
	cloud := s.cloud.As(token, who.ProjectID)
	for _, n := range d.names {
		id, err := n.resolve(ctx, cloud, who.DomainID)
		if err != nil {
			return err
		}
		if !slices.Contains(d.UsableBy, id) {
			d.UsableBy, d.UsableNames = append(d.UsableBy, id), append(d.UsableNames, n.resolved(id))
		}
	}
	return nil
}

// resolve finds the id in Keystone. own is the domain of the caller's project.
func (n UsableName) resolve(ctx context.Context, cloud nameResolver, own string) (id string, err error) {
	domainID := own
	if n.Domain != nil {
		if domainID, err = cloud.FindDomain(ctx, own, string(*n.Domain)); err != nil {
			return "", n.unknown(err)
		}
	}
	resolve := cloud.FindUser
	kind, name := n.kind()
	if kind == "project" {
		resolve = cloud.FindProject
	}
	if id, err = resolve(ctx, domainID, name); err != nil {
		return "", n.unknown(err)
	}
	return id, nil
}

// unknown gives the same error for a name that is absent and for one that Keystone does not show, so that the answer
// does not report whether the name exists.
func (n UsableName) unknown(err error) error {
	if code := apperr.CodeOf(err); code != apperr.Forbidden && code != apperr.NotFound {
		return err
	}
	kind, name := n.kind()
	of := "the domain of your project"
	if n.Domain != nil {
		of = "the domain " + quoted(string(*n.Domain))
	}
	reader := map[string]string{"user": "that user", "project": "its members"}[kind]
	return apperr.InvalidField(n.field, "your token shows no "+kind+" "+quoted(name)+" in "+of+
		": give the id, which `openstack token issue -f value -c "+kind+"_id` prints for "+reader+
		", and `openstack "+kind+" show -f value -c id NAME` for an administrator")
}

// resolved is the name as it is shown beside its id.
func (n UsableName) resolved(id string) domain.UsableByName {
	return domain.UsableByName{
		ID: id, User: string(deref(n.User)), Project: string(deref(n.Project)), Domain: string(deref(n.Domain)),
	}
}

// quoted is a text of the request as an error repeats it.
func quoted(text string) string { return strconv.QuoteToGraphic(text) }
