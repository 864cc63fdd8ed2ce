package connections

import (
	"context"
	"fmt"
	"log/slog"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/google/uuid"

	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/delegation"
	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/lookup"
)

// createByTrust creates a trust with the caller's own token, and stores the connection.
func (s service) createByTrust(
	ctx context.Context, who domain.Identity, token domain.Secret, d draft,
) (stored domain.Connection, err error) {
	cloud := s.cloud.As(token, who.ProjectID)
	if d.Flavors, err = cloud.Flavors(ctx); err != nil {
		return stored, err
	}
	if err := checkLimits(d, s.cloud.Region()); err != nil {
		return stored, err
	}
	d.ActsAs = domain.ActsAs{
		UserID: who.UserID, UserName: who.UserName, ProjectID: who.ProjectID,
		ProjectName: who.ProjectName, Roles: d.roles,
	}
	if err := s.trusts.Create(ctx, who, cloud, &d.Connection); err != nil {
		return stored, err
	}
	if stored, err = s.insert(ctx, d); err == nil {
		return stored, nil
	}
	return s.afterFailure(ctx, who, cloud, d, err)
}

// afterFailure handles the error of storing a connection. A grant that was released, or not, tells whether the
// connection is stored.
func (s service) afterFailure(
	ctx context.Context, who domain.Identity, cloud session, d draft, cause error,
) (domain.Connection, error) {
	mayBeStored := apperr.Retryable(cause)
	if d.grant != nil {
		released, err := s.releaseGrant(ctx, d)
		if err != nil { // it waits for a transaction that still runs
			slog.WarnContext(ctx, "run-connections has to check a trust", "connection_id", d.ID, "error", err)
			return domain.Connection{}, cause
		}
		mayBeStored = !released
	}
	return delegation.AfterFailure(ctx, s.trusts, cloud, &d.Connection, cause, mayBeStored, s.find(who, d.ID))
}

// find returns the way to read a connection that may have been stored although the response of Postgres was lost.
func (s service) find(who domain.Identity, id uuid.UUID) func(context.Context) (domain.Connection, error) {
	return func(ctx context.Context) (domain.Connection, error) {
		stored, err := s.store.Get(ctx, who, id)
		if err == nil {
			s.wake("deliver-events")
		}
		return stored, err
	}
}

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
	if stored, err = s.insert(ctx, d); apperr.Retryable(err) {
		return delegation.AfterFailure(ctx, s.trusts, nil, nil, err, true, s.find(who, d.ID))
	}
	return stored, err
}

// checkCredential logs in with an application credential of the project (empty for any), and seals its secret.
func (s service) checkCredential(ctx context.Context, d *draft, project string) error {
	cloud, err := s.cloud.Credential(ctx, d.AuthURL, d.Region, d.DelegationID, d.secret)
	switch apperr.CodeOf(err) {
	case "":
	case apperr.Unauthenticated, apperr.NotFound, apperr.Forbidden, apperr.Invalid:
		return badCredential(err)
	default:
		return err
	}
	as := cloud.ActsAs()
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

// checkLimits checks that the connection's cloud has the flavors, and that the connection acts in one of the regions.
// region is where it acts.
func checkLimits(d draft, region string) error {
	for n, flavor := range d.Limits.Flavors {
		ref := lookup.Ref{Field: fmt.Sprintf("limits.flavors[%d]", n), Value: flavor}
		if _, err := lookup.PickFlavor(d.Flavors, ref); err != nil {
			return err
		}
	}
	switch {
	case len(d.Limits.Regions) == 0 || slices.Contains(d.Limits.Regions, region):
		return nil
	case region == "":
		return apperr.InvalidField("limits.regions", "cannot be checked, because the connection's region is unknown: "+
			"give region, or leave limits.regions out")
	}
	return apperr.InvalidField("limits.regions",
		fmt.Sprintf("must have %q, the region that the connection acts in, and has %s",
			region, strings.Join(d.Limits.Regions, ", ")), region)
}

// regionOf is where the connection acts; empty when that is unknown.
func (s service) regionOf(d draft) string {
	if d.AuthURL == "" && d.Region == "" {
		return s.cloud.Region()
	}
	return d.Region
}

// nameResolver is the part of a session that resolves names.
type nameResolver interface {
	FindUser(ctx context.Context, domainID, name string) (id string, err error)
	FindProject(ctx context.Context, domainID, name string) (id string, err error)
	FindDomain(ctx context.Context, own, nameOrID string) (id string, err error)
}

// resolveNames adds the ids of the draft's names to UsableBy. It uses the caller's token, so that no one learns more
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
		ID: id, User: string(domain.Deref(n.User)), Project: string(domain.Deref(n.Project)),
		Domain: string(domain.Deref(n.Domain)),
	}
}

// quoted is a text of the request as an error repeats it.
func quoted(text string) string { return strconv.QuoteToGraphic(text) }
