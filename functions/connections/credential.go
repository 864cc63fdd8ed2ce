package connections

import (
	"context"
	"fmt"
	"net/url"
	"strings"
	"time"

	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/domain"
)

// createByCredential checks an application credential, and stores the connection.
func (s service) createByCredential(
	ctx context.Context, who domain.Identity, d draft,
) (stored domain.Connection, err error) {
	if err := s.normalizeCloud(&d); err != nil {
		return stored, err
	}
	project := who.ProjectID
	if d.AuthURL != "" {
		project = "" // any project of the other cloud
	}
	if err := s.checkCredential(ctx, &d, project); err != nil {
		return stored, err
	}
	stored, err = s.insert(ctx, d)
	if !apperr.Retryable(err) {
		return stored, err
	}
	reading, cancel := domain.Detached(ctx)
	defer cancel()
	if found, lookup := s.store.Get(reading, who, d.ID); lookup == nil { // it was stored, and its answer was lost
		s.wake("deliver-events")
		return found, nil
	}
	return stored, err
}

// checkCredential logs in with an application credential of the project (empty for any), and seals its secret.
func (s service) checkCredential(ctx context.Context, d *draft, project string) error {
	cloud, as, err := s.cloud.Credential(ctx, d.AuthURL, d.Region, d.DelegationID, d.secret)
	switch apperr.CodeOf(err) {
	case "":
	case apperr.Unauthenticated, apperr.NotFound, apperr.Forbidden, apperr.Invalid:
		return badCredential(err)
	default:
		return err
	}
	if project != "" && as.ProjectID != project {
		return apperr.InvalidField("id", fmt.Sprintf(
			"belongs to the project %s (%s), and must belong to the project %s", as.ProjectName, as.ProjectID, project))
	}
	if err := checkRoles("id", as, d.Actions); err != nil {
		return err
	}
	d.ActsAs = as
	if d.Flavors, err = cloud.Flavors(ctx); err != nil {
		return badAccess(*d, err)
	}
	if err := checkLimits(*d, s.regionOf(*d)); err != nil {
		return err
	}
	if d.CredentialExpiresAt, err = checkCredentialEnd(ctx, cloud, *d); err != nil {
		return err
	}
	d.Secret, err = s.key.Seal(d.SealedFor(), d.secret)
	return err
}

// checkRoles rejects an application credential that only reads when the actions need more. Other roles than reader have
// the cloud's own names and rights, so they are checked when they are used.
func checkRoles(field string, as domain.ActsAs, actions []domain.Permission) error {
	var more []string
	for _, p := range actions {
		if p != domain.MayConnect { // which only reads
			more = append(more, string(p))
		}
	}
	if !as.ReadsOnly() || len(more) == 0 {
		return nil
	}
	return apperr.InvalidField(field, fmt.Sprintf(
		"the application credential has only the role reader, which cannot %s: make one with another of your roles, "+
			"such as member; with reader alone a connection may have the action connect only",
		strings.Join(more, ", ")))
}

// checkCredentialEnd rejects a connection that would outlive its application credential, if Keystone shows when that
// ends. It gives that end; zero when it is never, or unknown.
func checkCredentialEnd(ctx context.Context, cloud session, d draft) (end time.Time, err error) {
	end, err = cloud.CredentialEnd(ctx, d.DelegationID)
	switch apperr.CodeOf(err) {
	case "":
	case apperr.Unauthenticated, apperr.Forbidden, apperr.NotFound:
		return time.Time{}, nil // the operator's policy hides it: the connection is lost when the credential ends
	default:
		return end, err
	}
	return end, endsBefore(d.ExpiresAt, end)
}

// endsBefore rejects an end after that of the application credential, if that is known.
func endsBefore(expires, credential time.Time) error {
	if credential.IsZero() || !expires.After(credential) {
		return nil
	}
	return apperr.InvalidField("expires_at",
		fmt.Sprintf("is %s, after the end of the application credential: must be %s or earlier",
			expires.Format(time.RFC3339Nano), credential.Format(time.RFC3339Nano)))
}

// badCredential is a fault of the request: the caller's own token is good.
func badCredential(cause error) error {
	e := apperr.Wrap(apperr.Invalid, cause,
		"Keystone does not accept the application credential: its id or its secret is wrong, it has expired, "+
			"or its user is disabled")
	e.Fields = []apperr.Field{
		{Field: "id", Detail: "is not accepted with this secret"},
		{Field: "secret", Detail: "is not accepted for this id"},
	}
	return e
}

// badAccess changes the error of reading with an accepted credential to a fault of the request, where it is one.
func badAccess(d draft, cause error) error {
	e := apperr.As(cause)
	switch {
	case e.Code == apperr.Unauthenticated || e.Code == apperr.Forbidden:
		e = apperr.InvalidField("id",
			"is not allowed to list flavors: its access rules must have what GET /v1/connections/access-rules lists")
	case e.Code == apperr.Internal && d.AuthURL != "" && d.Region == "":
		e = apperr.InvalidField("region", "must be given, because that cloud has several")
	default:
		return cause
	}
	e.Cause = cause
	return e
}

// normalizeCloud sets AuthURL to the configured URL of another cloud. It clears what is this cloud's own.
func (s service) normalizeCloud(d *draft) error {
	sameCloud, sameRegion := s.cloud.Home(d.AuthURL, d.Region)
	if sameCloud {
		d.AuthURL = ""
		if sameRegion {
			d.Region = ""
		}
		return nil
	}
	for _, other := range s.clouds {
		if bare(other) == bare(d.AuthURL) {
			d.AuthURL = other
			return nil
		}
	}
	host := "" // the rest of the URL may have a password
	if u, err := url.Parse(d.AuthURL); err == nil {
		host = u.Host
	}
	return apperr.Unknown("auth_url", "cloud", host, s.clouds...)
}
