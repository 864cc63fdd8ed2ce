// Package delegation makes trusts with the caller's own token, so that one whose connection is never stored is revoked
// in any case. It opens the sessions of what was delegated, and keeps them.
package delegation

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"

	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/domain"
)

// Config is for functions that make trusts.
type Config struct {
	// User id of the service account of run-connections, to which trusts are made; `cloudfnd trustee` prints it. When
	// empty, creating a trust fails with 501.
	Trustee string `env:"TRUSTEE_USER_ID"`
}

// trusteeID is the form of Keystone's user ids: 32 or 64 hexadecimal digits by default, other letters with other
// backends.
var trusteeID = regexp.MustCompile(`^[0-9A-Za-z_.@:-]*$`)

const maxTrusteeID = 255

// Validate rejects a Config that cannot work.
func (c Config) Validate() error {
	if len(c.Trustee) > maxTrusteeID || !trusteeID.MatchString(c.Trustee) {
		return fmt.Errorf("TRUSTEE_USER_ID is %q: it must be the id of a user, as `cloudfnd trustee` prints it",
			c.Trustee)
	}
	return nil
}

// Session is the caller's session in Keystone.
type Session interface {
	CreateTrust(
		ctx context.Context, who domain.Identity, trustee string, roles []string, after time.Time,
		announce func(end time.Time) (isFree bool, err error),
	) (domain.Trust, error)
	DeleteTrust(ctx context.Context, id string) error
}

// Store keeps what is known of trusts; postgres.Connections is one.
type Store interface {
	AnnounceTrust(context.Context, domain.OldTrust) (isFree bool, err error)
	ForgetTrust(ctx context.Context, projectID string, intent uuid.UUID) error
	DropTrust(context.Context, domain.OldTrust) error
	End(
		ctx context.Context, projectID string, id uuid.UUID,
		status domain.ConnectionStatus, reason string, revoked bool,
	) (ended bool, err error)
}

// Trusts makes trusts.
type Trusts struct {
	Store   Store
	Trustee string // the user to whom trusts are made; empty without one
	Roles   KindRoles
	Wake    func(functions ...string)
}

// CleanTimeout is for revoking what was delegated, also when the caller has hung up.
const CleanTimeout = 10 * time.Second

// Create creates a trust with the roles that the connection acts with. It announces the trust first: if this process
// dies before the connection is stored, run-connections finds the trust and revokes it.
func (t Trusts) Create(ctx context.Context, who domain.Identity, cloud Session, c *domain.Connection) error {
	intent, err := uuid.NewV7()
	if err != nil {
		return err
	}
	announce := func(end time.Time) (bool, error) {
		return t.Store.AnnounceTrust(ctx, domain.OldTrust{
			ID: intent, ProjectID: c.ProjectID, ConnectionID: c.ID, UserID: who.UserID, ExpiresAt: end,
		})
	}
	trust, err := cloud.CreateTrust(ctx, who, t.Trustee, c.ActsAs.Roles, c.ExpiresAt.Add(domain.TrustMargin), announce)
	if err == nil {
		c.DelegationID, c.TrustExpiresAt, c.TrustIntent = trust.ID, trust.ExpiresAt, intent
		return nil
	}
	if isRejection(err) {
		c.TrustIntent = intent
		t.forget(ctx, *c)
	}
	return t.badTrustee(err)
}

// isRejection reports whether Keystone has certainly created no trust. After any other error run-connections checks.
func isRejection(err error) bool {
	switch apperr.CodeOf(err) {
	case apperr.Invalid, apperr.Unauthenticated, apperr.Forbidden, apperr.NotFound, apperr.Conflict:
		return true
	}
	return false
}

// badTrustee changes the error of a trustee that Keystone does not know: that is the operator's mistake, not the
// caller's.
func (t Trusts) badTrustee(err error) error {
	if e := apperr.As(err); e.Code != apperr.NotFound || !strings.Contains(e.Message, t.Trustee) {
		return err
	}
	slog.Error("TRUSTEE_USER_ID is not the id of a user: set it to what `cloudfnd trustee` prints",
		"trustee", t.Trustee)
	return apperr.Wrap(apperr.Unsupported, err,
		"trusts are not supported here, because TRUSTEE_USER_ID is not the id of a user: use an application credential")
}

// Abandon revokes a trust whose connection could not be stored, and ends the connection in case it was stored after
// all.
func (t Trusts) Abandon(ctx context.Context, cloud Session, c domain.Connection) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), CleanTimeout)
	defer cancel()
	err := cloud.DeleteTrust(ctx, c.DelegationID)
	ended, endErr := t.Store.End(ctx, c.ProjectID, c.ID, domain.ConnectionDeleted, "it could not be stored", err == nil)
	slog.WarnContext(ctx, "connection not stored",
		"connection_id", c.ID, "trust_error", err, "was_stored", ended, "end_error", endErr)
	if err == nil {
		t.forget(ctx, c)
		return
	}
	t.Drop(ctx, &c)
}

// AfterFailure handles the error of storing a connection, or what has it. Postgres may have stored it although its
// response was lost: if mayBeStored, AfterFailure returns what get reads. Otherwise it revokes c's new trust; nil means
// no trust. While it is unknown whether the connection is stored, the trust stays: run-connections revokes it if no
// connection has it.
func AfterFailure[T any](
	ctx context.Context, t Trusts, cloud Session, c *domain.Connection, cause error, mayBeStored bool,
	get func(context.Context) (T, error),
) (stored T, err error) {
	var none T
	if mayBeStored {
		reading, cancel := domain.Detached(ctx)
		defer cancel()
		if stored, err = get(reading); err == nil {
			return stored, nil
		}
		if apperr.CodeOf(err) != apperr.NotFound {
			return none, cause
		}
	}
	if mayBeStored {
		t.Discard(ctx, cloud, c, cause)
	} else if c != nil {
		t.Abandon(ctx, cloud, *c)
	}
	return none, cause
}

// Discard revokes the trust of a connection that is not stored; nil means no trust. After an error that leaves open
// whether it was stored, run-connections finds out.
func (t Trusts) Discard(ctx context.Context, cloud Session, c *domain.Connection, cause error) {
	switch {
	case c == nil:
	case apperr.Retryable(cause):
		t.Drop(ctx, c)
	default:
		t.Abandon(ctx, cloud, *c)
	}
}

// Drop has run-connections revoke a trust unless a stored connection has it; nil means no trust.
func (t Trusts) Drop(ctx context.Context, c *domain.Connection) {
	if c == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), CleanTimeout)
	defer cancel()
	slog.WarnContext(ctx, "new trust not used; it is revoked", "connection_id", c.ID)
	err := t.Store.DropTrust(ctx, domain.OldTrust{
		ID: c.TrustIntent, ProjectID: c.ProjectID, ConnectionID: c.ID, UserID: c.UserID, TrustID: c.DelegationID,
		ExpiresAt: c.TrustExpiresAt,
	})
	if err != nil {
		slog.WarnContext(ctx, "trust not revoked before its announcement expires", "connection_id", c.ID, "error", err)
	}
	t.Wake("run-connections")
}

// forget deletes the announcement of a trust that Keystone does not have.
func (t Trusts) forget(ctx context.Context, c domain.Connection) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), CleanTimeout)
	defer cancel()
	if err := t.Store.ForgetTrust(ctx, c.ProjectID, c.TrustIntent); err != nil {
		slog.WarnContext(ctx, "announcement of an absent trust stays until it expires", "connection_id", c.ID,
			"error", err)
	}
}

// Purpose is what a trust is made for automatically: a lease, or managed resources.
type Purpose struct {
	name        string
	lease       uuid.UUID
	kind        domain.Kind // "" = a lease
	permissions []domain.Permission
	end         time.Time

	// For errors: what needs the trust, and what is done with it.
	needs, does string
}

// LeaseMargin is how long the connection of a lease outlasts it, so that its end can be done late, and retried. The
// connection ends with the lease.
const LeaseMargin = 24 * time.Hour

// ForLease is for the trust with which run-connections handles a lease's instances. The lease needs its id, name and
// end.
func ForLease(lease domain.Lease) Purpose {
	name := []rune("lease " + lease.Name)
	return Purpose{
		name: string(name[:min(len(name), 255)]), lease: lease.ID, permissions: lease.Permissions(),
		end:   lease.EndsAt.Add(LeaseMargin),
		needs: "instances cannot be leased here", does: "a lease stops and starts its instances in your name",
	}
}

// ForManaged is for the trust with which reconcile-managed makes resources of a kind in the user's name until the end.
func ForManaged(kind domain.Kind, end time.Time) Purpose {
	return Purpose{
		name: "managed resources", kind: kind, permissions: []domain.Permission{}, end: end,
		needs: "resources cannot be managed here", does: "what you declare is made in your name",
	}
}

// Check rejects a caller who can make no trust for a purpose, as far as that is known without a call to Keystone.
func (t Trusts) Check(who domain.Identity, p Purpose) error {
	if t.Trustee == "" {
		return apperr.New(apperr.Unsupported, "%s, because that takes a trust to the operator's service account, and "+
			"TRUSTEE_USER_ID is not set", p.needs)
	}
	if !who.MayAct() {
		return apperr.New(apperr.Forbidden, "your token only reads, and %s: use a token with another role, such as "+
			"member", p.does)
	}
	if _, missing := t.Roles.of(who, p.kind); len(missing) > 0 {
		e := apperr.New(apperr.Forbidden, "the kind %s requires the role %s, and your token has only %s: have it "+
			"granted to you in the project, and send a new token", p.kind, strings.Join(missing, " and the role "),
			strings.Join(who.Roles, ", "))
		for _, role := range missing {
			e.Fields = append(e.Fields, apperr.Field{Field: "kind", Detail: "requires the role " + role})
		}
		return e
	}
	return nil
}

// Delegate creates a trust for a purpose with the fewest roles, and returns the connection to store with it. Drop or
// Abandon the connection if it is not stored.
func (t Trusts) Delegate(
	ctx context.Context, who domain.Identity, cloud Session, p Purpose,
) (*domain.Connection, error) {
	if err := t.Check(who, p); err != nil {
		return nil, err
	}
	id, err := uuid.NewV7()
	if err != nil {
		return nil, err
	}
	roles, _ := t.Roles.of(who, p.kind)
	c := &domain.Connection{
		ID: id, ProjectID: who.ProjectID, DomainID: who.DomainID, UserID: who.UserID, Name: p.name,
		Kind: domain.TrustConnection, LeaseID: p.lease, Managed: p.kind != "",
		ActsAs: domain.ActsAs{
			UserID: who.UserID, UserName: who.UserName, ProjectID: who.ProjectID, ProjectName: who.ProjectName,
			Roles: roles,
		},
		Actions: p.permissions, UsableBy: []string{}, Flavors: []domain.Flavor{}, ExpiresAt: p.end,
	}
	if err = t.Create(ctx, who, cloud, c); errors.Is(err, domain.ErrDelegatedToken) {
		err = apperr.Wrap(apperr.Conflict, err, "%s, which takes a trust, and Keystone does not let this token make "+
			"one, because it was delegated itself: use a token of a login with a password", p.does)
	}
	if err != nil {
		return nil, err
	}
	return c, nil
}

// ManagedConfig is for the function that declares managed resources.
type ManagedConfig struct {
	// For how long reconcile-managed may act in the name of who declares a resource. A declaration renews it
	// when less than half of it is left.
	For time.Duration `env:"MANAGED_TRUST_FOR, default=8760h" min:"1h" max:"8784h"`
	// Roles that a kind of managed resource requires besides one of WRITE_ROLES, as KIND=ROLE. A kind that requires
	// several has several entries. `none` = no kind requires more, as in clouds whose policies go by Keystone's roles.
	Roles []string `env:"MANAGED_ROLES, default=Loadbalancer=load-balancer_member,Secret=creator"`
}

// Validate rejects a ManagedConfig that cannot work.
func (c ManagedConfig) Validate() error {
	_, err := c.KindRoles()
	return err
}

// KindRoles are the roles that kinds require besides one that permits changes. Octavia and Barbican have such roles:
// an ordinary member of a project may use neither.
type KindRoles map[domain.Kind][]string

const noRoles = "none"

// KindRoles reads MANAGED_ROLES.
func (c ManagedConfig) KindRoles() (KindRoles, error) {
	all := KindRoles{}
	if slices.Equal(c.Roles, []string{noRoles}) {
		return all, nil
	}
	for _, entry := range c.Roles {
		name, role, _ := strings.Cut(entry, "=")
		kind := domain.Kind(name)
		if !slices.Contains(domain.Kinds(), kind) || role == "" {
			return nil, fmt.Errorf("MANAGED_ROLES has the entry %q: it must be KIND=ROLE, such as Secret=creator, "+
				"with a kind of %v; or %s must be the only entry", entry, domain.Kinds(), noRoles)
		}
		all[kind] = append(all[kind], role)
	}
	return all, nil
}

// of returns the roles of a trust for resources of a kind: the fewest that permit changes, and those that the kind
// requires. missing are those that the caller does not have.
func (r KindRoles) of(who domain.Identity, kind domain.Kind) (roles, missing []string) {
	roles = slices.Clone(who.FewestWriteRoles())
	for _, name := range r[kind] {
		is := func(role string) bool { return strings.EqualFold(role, name) } // as Keystone and oslo.policy compare
		switch n := slices.IndexFunc(who.Roles, is); {
		case n < 0:
			missing = append(missing, name)
		case !slices.ContainsFunc(roles, is):
			roles = append(roles, who.Roles[n])
		}
	}
	return roles, missing
}

// RolesFor returns the roles of a trust for resources of a kind, and the kinds for which a trust with just these roles
// suffices. It rejects a caller whom Check rejects.
func (t Trusts) RolesFor(who domain.Identity, kind domain.Kind) (roles []string, kinds []domain.Kind, err error) {
	if err := t.Check(who, ForManaged(kind, time.Time{})); err != nil {
		return nil, nil, err
	}
	roles, _ = t.Roles.of(who, kind)
	for _, other := range domain.Kinds() {
		if same, missing := t.Roles.of(who, other); len(missing) == 0 && slices.Equal(same, roles) {
			kinds = append(kinds, other)
		}
	}
	return roles, kinds, nil
}
