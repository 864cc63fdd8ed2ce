package openstack

import (
	"context"
	"math/rand/v2"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/gophercloud/gophercloud/v2"

	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/domain"
)

// How somebody acts for a user who is not there. Of a trust Keystone checks at each login that the user still has the
// roles; it answers 401 when the trust is gone or expired, 403 when a role is. An expired trust stays in the user's
// list, and not even the user can delete it then; one that is not over can be deleted with a token that was made of it.

// CreateTrust lets another user, the trustee, act as the session's user with some of the roles that this one has. The
// trust ends at a random moment soon after the one given. It is a Conflict when the session's token was delegated
// itself.
//
// Keystone lets a user give a trustee one trust in a project for each end, and also counts deleted ones until the
// operator purges them. Old releases compare whole seconds. So each attempt chooses the end anew, from twice as much
// time. announce is called with the end before each attempt: the trust can be found by it (FindTrusts) when its id is
// never learnt. An end that is not free is not tried.
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
		end := after.Add(rand.N(trustSpread << attempt)).UTC().Truncate(time.Microsecond) //nolint:gosec // it is not secret
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
			return domain.Trust{ID: id, ExpiresAt: end}, mayDelegate(err)
		}
	}
	return domain.Trust{}, apperr.New(apperr.Conflict,
		"Keystone has a trust for each end that was tried after %s: choose another expires_at",
		after.UTC().Format(time.RFC3339))
}

const (
	trustAttempts = 6
	trustSpread   = 10 * time.Minute // of the first attempt; that of the last is over 5 hours
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

// mayDelegate says what to do instead when Keystone lets nobody delegate with what was delegated to him: newer ones
// (2026.1) take no trust from the token of an application credential, and none takes one from the token of a trust that
// does not allow it.
func mayDelegate(err error) error {
	if apperr.CodeOf(err) != apperr.Forbidden {
		return err
	}
	words := strings.ToLower(apperr.As(err).Message)
	if !strings.Contains(words, "delegat") && !strings.Contains(strings.ReplaceAll(words, "_", " "),
		"application credential") {
		return err
	}
	return apperr.Wrap(apperr.Conflict, err,
		"Keystone does not let this token make a trust, because it was delegated itself: "+
			"use a token of a login with a password, or hand over an application credential (kind application_credential)")
}

// DeleteTrust takes a trust back: with the token of the user who gave it, or one made of it. One that is gone is no
// error.
func (s *Session) DeleteTrust(ctx context.Context, id string) error {
	keystone := s.keystone()
	_, err := keystone.Delete(ctx, keystone.ServiceURL("OS-TRUST", "trusts", url.PathEscape(id)), nil)
	if err = s.confirmAbsent(ctx, err); apperr.CodeOf(err) == apperr.NotFound {
		return nil
	}
	return err
}

func (s *Session) keystone() *gophercloud.ServiceClient {
	return &gophercloud.ServiceClient{ProviderClient: s.provider(), Endpoint: s.cloud.identity, Type: "identity"}
}

// Trust opens a session as the user who gave the trust, from the trustee's own session. Unauthenticated or Forbidden
// say that the trust is not good any more, or that the trustee's session is not: open that one anew to tell.
func (s *Session) Trust(ctx context.Context, id string) (*Session, domain.ActsAs, error) {
	session, t, err := s.cloud.loginAs(ctx, &gophercloud.AuthOptions{
		TokenID: s.token.Reveal(),
		Scope:   &gophercloud.AuthScope{TrustID: id},
	})
	return session, t.actsAs(), err
}

// KnowsTrust looks at a trust from the trustee's own session, and so tells why no session can be opened with it:
// NotFound says that it is gone or has expired, no error that it is there and its user or the role is not; Forbidden
// says that the trust is somebody else's, or that the session is not one of a login with a password, and so nothing of
// the trust.
func (s *Session) KnowsTrust(ctx context.Context, id string) error {
	keystone := s.keystone()
	var body struct{}
	_, err := keystone.Get(ctx, keystone.ServiceURL("OS-TRUST", "trusts", url.PathEscape(id)), &body, nil)
	return s.confirmAbsent(ctx, err)
}

// FindTrusts finds the trusts that a user gave the session's user in a project and that end in the same second:
// Keystone lists ends without fractions. Trusts that were deleted are not found.
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

// Credential opens a session with an application credential. Unauthenticated or NotFound say that it is not good, or
// not any more.
func (c *Cloud) Credential(ctx context.Context, id string, secret domain.Secret) (*Session, domain.ActsAs, error) {
	session, t, err := c.loginAs(ctx, &gophercloud.AuthOptions{
		ApplicationCredentialID:     id,
		ApplicationCredentialSecret: secret.Reveal(),
	})
	return session, t.actsAs(), err
}

// ActsAs is who Keystone sees at work, with which roles. It is known of a session that was opened by a login.
func (s *Session) ActsAs() domain.ActsAs { return s.actsAs }

// CredentialEnd is when the application credential ends that the session was opened with; zero when it does not.
// Keystone shows a user's credentials to the user, also by a token of one, unless the operator's policy says otherwise:
// then it refuses.
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

// UserID is who the session is.
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
