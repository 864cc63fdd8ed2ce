package openstack

import (
	"context"

	"github.com/gophercloud/gophercloud/v2"

	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/domain"
)

// SignIn gets a token by a user's password: scoped to l.Project, which needs its domain, or unscoped, to choose among
// the user's projects. All rejections are the same error: it must not show whether the user exists, nor repeat the
// input.
func (c *Cloud) SignIn(ctx context.Context, l domain.Login) (domain.Secret, domain.Identity, error) {
	auth := gophercloud.AuthOptions{Username: l.User, DomainName: l.UserDomain, Password: l.Password.Reveal()}
	scope := any("unscoped") // without it, it would be one of the user's default project
	if l.Project != "" {
		scope = map[string]any{"project": map[string]any{
			"name":   l.Project,
			"domain": map[string]any{"name": l.ProjectDomain},
		}}
	}
	return c.signIn(ctx, &auth, scope)
}

// Choose exchanges a token for one of a project.
func (c *Cloud) Choose(
	ctx context.Context, token domain.Secret, projectID string,
) (domain.Secret, domain.Identity, error) {
	scope := map[string]any{"project": map[string]any{"id": projectID}}
	return c.signIn(ctx, &gophercloud.AuthOptions{TokenID: token.Reveal()}, scope)
}

func (c *Cloud) signIn(
	ctx context.Context, auth *gophercloud.AuthOptions, scope any,
) (domain.Secret, domain.Identity, error) {
	request, err := auth.ToTokenV3CreateMap(nil)
	if err != nil {
		return "", domain.Identity{}, apperr.Wrap(apperr.Internal, err, "internal error")
	}
	if inner, ok := request["auth"].(map[string]any); ok {
		inner["scope"] = scope
	}
	session, t, err := c.create(ctx, request)
	switch apperr.CodeOf(err) {
	case "":
		return session.token, t.identity(), nil
	case apperr.Unauthenticated, apperr.Forbidden, apperr.NotFound, apperr.Invalid:
		cause := apperr.As(err).Cause // without Keystone's own words, which may repeat the request's
		return "", domain.Identity{}, apperr.Wrap(apperr.Unauthenticated, cause,
			"Keystone does not accept this: the user, the password, a domain or the project is wrong, "+
				"or the user is disabled")
	}
	return "", domain.Identity{}, keystoneAway(err)
}

// ProjectsOf lists the enabled projects in which the token's user has a role.
func (c *Cloud) ProjectsOf(ctx context.Context, token domain.Secret) ([]domain.Project, error) {
	found, truncated, err := c.As(token, "").listProjects(ctx, "auth/projects", nil)
	if truncated {
		err = errTruncated("projects of its user")
	}
	return usable(found, ""), err
}

// Revoke revokes a token. An ended token is no error.
func (c *Cloud) Revoke(ctx context.Context, token domain.Secret) error {
	keystone := c.As(token, "").keystone()
	_, err := keystone.Delete(ctx, keystone.ServiceURL("auth", "tokens"), &gophercloud.RequestOpts{
		MoreHeaders: map[string]string{"X-Subject-Token": token.Reveal()},
	})
	if err = classify("keystone", err); apperr.CodeOf(err) == apperr.Unauthenticated ||
		apperr.CodeOf(err) == apperr.NotFound {
		return nil
	}
	return err
}
