package openstack

import (
	"context"
	"net/url"
	"slices"
	"time"

	"github.com/gophercloud/gophercloud/v2"

	"github.com/cloudfn/cloudfn/shared/domain"
)

// Credential opens a session with an application credential. Unauthenticated or NotFound mean that it is not valid.
func (c *Cloud) Credential(ctx context.Context, id string, secret domain.Secret) (*Session, domain.ActsAs, error) {
	session, t, err := c.loginAs(ctx, &gophercloud.AuthOptions{
		ApplicationCredentialID:     id,
		ApplicationCredentialSecret: secret.Reveal(),
	})
	return session, t.actsAs(), err
}

// ActsAs returns the identity of a session that was opened by a login.
func (s *Session) ActsAs() domain.ActsAs { return s.actsAs }

// CredentialEnd returns when the session's application credential expires; zero = never. Keystone's policy may forbid
// to read it.
func (s *Session) CredentialEnd(ctx context.Context, id string) (time.Time, error) {
	keystone := s.keystone()
	var body struct {
		Credential struct {
			ExpiresAt keystoneTime `json:"expires_at"`
		} `json:"application_credential"`
	}
	address := keystone.ServiceURL("users", url.PathEscape(s.userID), "application_credentials", url.PathEscape(id))
	err := get(ctx, keystone, address, &body)
	return body.Credential.ExpiresAt.Time, err
}

// UserID returns the session's user.
func (s *Session) UserID() string { return s.userID }

func (t token) actsAs() domain.ActsAs {
	a := domain.ActsAs{UserID: t.User.ID, UserName: t.User.Name, Roles: []string{}}
	if t.Project != nil {
		a.ProjectID, a.ProjectName = t.Project.ID, t.Project.Name
	}
	for _, r := range t.Roles {
		a.Roles = append(a.Roles, r.Name)
	}
	slices.Sort(a.Roles)
	a.Unrestricted = t.Credential != nil && !t.Credential.Restricted
	return a
}
