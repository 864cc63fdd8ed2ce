package openstack

import (
	"context"
	"errors"
	"math/rand/v2"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/gophercloud/gophercloud/v2"

	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/domain"
)

// How trusts behave: at each login Keystone checks that the trustor still has the roles. It answers 401 if the trust is
// deleted or expired, and 403 if a role is revoked. An expired trust stays in the trustor's list, and not even the
// trustor can delete it; one that has not expired can be deleted with a token of the trust.

// CreateTrust creates a trust from the session's user to the trustee, for some of the user's roles. It expires at a
// random time up to 10 minutes after the one given. A delegated token gets Conflict.
//
// Keystone allows one trust per trustor, trustee, project and end, and also counts deleted ones until they are purged;
// old releases compare whole seconds. So each attempt chooses another end, within twice that spread. announce is called
// with the end before each attempt: FindTrusts finds the trust by it if the answer is lost. If announce reports that an
// end is not free, it is skipped.
func (s *Session) CreateTrust(
	ctx context.Context, who domain.Identity, trustee string, roles []string, after time.Time,
	announce func(end time.Time) (isFree bool, err error),
) (domain.Trust, error) {
	type role struct {
		Name string `json:"name"`
	}
	wanted := make([]role, len(roles))
	for n, name := range roles {
		wanted[n] = role{name}
	}
	request := map[string]any{
		"trustor_user_id": who.UserID, "trustee_user_id": trustee, "project_id": who.ProjectID, "impersonation": true,
		"allow_redelegation": false, "roles": wanted,
	}
	for attempt := range trustAttempts {
		spread := rand.N(trustSpread << attempt) //nolint:gosec // not a secret
		end := after.Add(spread).UTC().Truncate(time.Microsecond)
		request["expires_at"] = end.Format("2006-01-02T15:04:05.000000Z")
		isFree, err := announce(end)
		if err != nil {
			return domain.Trust{}, err
		}
		if !isFree {
			continue
		}
		id, err := s.postTrust(ctx, request)
		if apperr.CodeOf(err) != apperr.Conflict {
			return domain.Trust{ID: id, ExpiresAt: end}, explainDelegated(err)
		}
	}
	return domain.Trust{}, apperr.New(apperr.Conflict,
		"no free end for a trust was found after %s: choose another expires_at",
		after.UTC().Format(time.RFC3339))
}

const (
	trustAttempts = 6
	trustSpread   = 10 * time.Minute // of the first attempt; that of the last is more than 5 hours
)

func (s *Session) postTrust(ctx context.Context, request map[string]any) (id string, err error) {
	var body struct {
		Trust struct {
			ID string `json:"id"`
		} `json:"trust"`
	}
	keystone := s.keystone()
	_, err = keystone.Post(ctx, keystone.ServiceURL("OS-TRUST", "trusts"), map[string]any{"trust": request}, &body, nil)
	if err == nil && body.Trust.ID == "" {
		return "", apperr.New(apperr.BadGateway, "keystone made a trust without giving its id")
	}
	return body.Trust.ID, classify("keystone", err)
}

// explainDelegated explains why a delegated token cannot create a trust: Keystone 2026.1 creates none for the token of
// an application credential, and no release does for the token of a trust without redelegation.
func explainDelegated(err error) error {
	if apperr.CodeOf(err) != apperr.Forbidden {
		return err
	}
	words := strings.ToLower(apperr.As(err).Message)
	if !strings.Contains(words, "delegat") && !strings.Contains(strings.ReplaceAll(words, "_", " "),
		"application credential") {
		return err
	}
	return apperr.Wrap(apperr.Conflict, errors.Join(domain.ErrDelegatedToken, err),
		"Keystone does not let this token make a trust, because it was delegated itself: "+
			"use a token of a login with a password, "+
			"or hand over an application credential (kind application_credential)")
}

// DeleteTrust deletes a trust, with the token of its trustor or of the trust. A deleted trust is no error.
func (s *Session) DeleteTrust(ctx context.Context, id string) error {
	keystone := s.keystone()
	_, err := keystone.Delete(ctx, keystone.ServiceURL("OS-TRUST", "trusts", url.PathEscape(id)), nil)
	if err = s.confirmAbsent(ctx, err); apperr.CodeOf(err) == apperr.NotFound {
		return nil
	}
	return err
}

// WithTrust opens a session as the trustor, from the trustee's own session. Unauthenticated or Forbidden mean that the
// trust or the trustee's session is no longer valid: renew the session to find out.
func (s *Session) WithTrust(ctx context.Context, id string) (*Session, error) {
	return s.cloud.login(ctx, &gophercloud.AuthOptions{
		TokenID: s.token.Reveal(),
		Scope:   &gophercloud.AuthScope{TrustID: id},
	})
}

// CheckTrust finds out in the trustee's session why a trust cannot be used. NotFound: it is deleted or expired. No
// error: the trust exists, but its trustor or the role does not. Forbidden: the trust is not the session's, or the
// session was not opened with a password; this says nothing about the trust.
func (s *Session) CheckTrust(ctx context.Context, id string) error {
	keystone := s.keystone()
	var body struct{}
	_, err := keystone.Get(ctx, keystone.ServiceURL("OS-TRUST", "trusts", url.PathEscape(id)), &body, nil)
	return s.confirmAbsent(ctx, err)
}

// FindTrusts lists the trusts from a user to the session's user in a project that expire in the same second: Keystone
// lists times without fractions. It does not find deleted trusts.
func (s *Session) FindTrusts(ctx context.Context, trustor, projectID string, end time.Time) (ids []string, err error) {
	keystone := s.keystone()
	var body struct {
		Trusts []struct {
			ID        string       `json:"id"`
			Trustor   string       `json:"trustor_user_id"`
			ProjectID string       `json:"project_id"`
			ExpiresAt keystoneTime `json:"expires_at"`
		} `json:"trusts"`
	}
	_, err = keystone.Get(ctx, keystone.ServiceURL("OS-TRUST", "trusts")+"?trustee_user_id="+url.QueryEscape(s.userID),
		&body, nil)
	if err != nil {
		return nil, s.confirmAbsent(ctx, err)
	}
	if body.Trusts == nil {
		return nil, apperr.New(apperr.BadGateway, "keystone gave a list of trusts without trusts")
	}
	for _, t := range body.Trusts {
		if t.Trustor == trustor && t.ProjectID == projectID &&
			t.ExpiresAt.Truncate(time.Second).Equal(end.Truncate(time.Second)) {
			ids = append(ids, t.ID)
		}
	}
	return ids, nil
}

// Credential opens a session with an application credential. Unauthenticated or NotFound mean that it is not valid.
func (c *Cloud) Credential(ctx context.Context, id string, secret domain.Secret) (*Session, error) {
	return c.login(ctx, &gophercloud.AuthOptions{
		ApplicationCredentialID:     id,
		ApplicationCredentialSecret: secret.Reveal(),
	})
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
