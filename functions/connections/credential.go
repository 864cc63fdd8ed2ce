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

// credential looks whether an application credential is good, and what it is of.
func (s service) credential(ctx context.Context, who domain.Identity, w wish) (stored domain.Connection, err error) {
	if err := s.place(&w); err != nil {
		return stored, err
	}
	project := who.ProjectID
	if w.AuthURL != "" {
		project = "" // of another cloud it may be any
	}
	if err := s.tryCredential(ctx, &w, project); err != nil {
		return stored, err
	}
	return s.keep(ctx, w)
}

// tryCredential logs in with an application credential, which must be of the project ("" = any), and seals its secret.
func (s service) tryCredential(ctx context.Context, w *wish, project string) error {
	cloud, as, err := s.cloud.Credential(ctx, w.AuthURL, w.Region, w.DelegationID, w.secret)
	switch apperr.CodeOf(err) {
	case "":
	case apperr.Unauthenticated, apperr.NotFound, apperr.Forbidden, apperr.Invalid:
		return badCredential(err)
	default:
		return err
	}
	if project != "" && as.ProjectID != project {
		return apperr.InvalidField("id", fmt.Sprintf("is of the project %s (%s), and must be of the project %s, because its servers are followed there",
			as.ProjectName, as.ProjectID, project))
	}
	if err := suffices("id", as, w.Actions); err != nil {
		return err
	}
	w.ActsAs = as
	if w.Flavors, err = cloud.Flavors(ctx); err != nil {
		return badAccess(*w, err)
	}
	if err := checkLimits(*w, s.regionOf(*w)); err != nil {
		return err
	}
	if w.CredentialExpiresAt, err = outlives(ctx, cloud, *w); err != nil {
		return err
	}
	w.Secret, err = s.key.Seal(w.SealedFor(), w.secret)
	return err
}

// suffices refuses an application credential that only reads when the actions need more. Other roles than reader have the cloud's own
// names and rights, so what they are good for is seen when they are used.
func suffices(field string, as domain.ActsAs, actions []domain.Permission) error {
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
		"the application credential has only the role reader, which cannot %s: make one with another of your roles, such as member; "+
			"with reader alone a connection may have the action connect only", strings.Join(more, ", ")))
}

// outlives refuses a connection that would end later than its application credential, as far as Keystone lets us see when that ends, and
// gives that end; zero = never, or not known.
func outlives(ctx context.Context, cloud session, w wish) (end time.Time, err error) {
	end, err = cloud.CredentialEnd(ctx, w.DelegationID)
	switch apperr.CodeOf(err) {
	case "":
	case apperr.Unauthenticated, apperr.Forbidden, apperr.NotFound:
		return time.Time{}, nil // the operator's policy keeps it from its own user: the connection is lost when the credential ends
	default:
		return end, err
	}
	return end, endsBefore(w.ExpiresAt, end)
}

// endsBefore refuses an end of a connection after that of its application credential, where that is known.
func endsBefore(expires, credential time.Time) error {
	if credential.IsZero() || !expires.After(credential) {
		return nil
	}
	return apperr.InvalidField("expires_at", fmt.Sprintf("is %s, and the application credential ends before that: it must not be after %s",
		expires.Format(time.RFC3339Nano), credential.Format(time.RFC3339Nano)))
}

// badCredential is the caller's mistake, and not his token's.
func badCredential(cause error) error {
	e := apperr.Wrap(apperr.Invalid, cause, "Keystone does not accept the application credential: its id or its secret is wrong, it has expired, or its user is disabled")
	e.Fields = []apperr.Field{{Field: "id", Detail: "is not accepted with this secret"}, {Field: "secret", Detail: "is not accepted for this id"}}
	return e
}

// badAccess says why a credential that Keystone accepts cannot be used, where that is the caller's mistake.
func badAccess(w wish, cause error) error {
	e := apperr.As(cause)
	switch {
	case e.Code == apperr.Unauthenticated || e.Code == apperr.Forbidden:
		e = apperr.InvalidField("id", "is not allowed to list flavors: its access rules must have what GET /v1/connections/access-rules lists")
	case e.Code == apperr.Internal && w.AuthURL != "" && w.Region == "":
		e = apperr.InvalidField("region", "must be given, because that cloud has several")
	default:
		return cause
	}
	e.Cause = cause
	return e
}

// place finds the cloud that is meant, among those that there may be connections to. What is this cloud's own is left out.
func (s service) place(w *wish) error {
	sameCloud, sameRegion := s.cloud.Home(w.AuthURL, w.Region)
	if sameCloud {
		w.AuthURL = ""
		if sameRegion {
			w.Region = ""
		}
		return nil
	}
	for _, other := range s.clouds {
		if bare(other) == bare(w.AuthURL) {
			w.AuthURL = other
			return nil
		}
	}
	host := "" // of the URL no more is repeated: there may be a password in it
	if u, err := url.Parse(w.AuthURL); err == nil {
		host = u.Host
	}
	return apperr.Unknown("auth_url", "cloud", host, s.clouds...)
}
