package delegation

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"

	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/domain"
)

// ManagedConfig is for the function that declares managed resources.
type ManagedConfig struct {
	// For how long reconcile-managed may act in the name of who declares a resource, 1h to 8784h. A declaration renews
	// it when less than half of it is left.
	For time.Duration `env:"MANAGED_TRUST_FOR, default=8760h"`
	// Roles that a kind of managed resource requires besides one of WRITE_ROLES, as KIND=ROLE. A kind that requires
	// several has several entries. `none` = no kind requires more, as in clouds whose policies go by Keystone's roles.
	Roles []string `env:"MANAGED_ROLES, default=Loadbalancer=load-balancer_member,Secret=creator"`
}

// Validate rejects a ManagedConfig that cannot work.
func (c ManagedConfig) Validate() error {
	if c.For < time.Hour || c.For > domain.MaxConnectionTime {
		return fmt.Errorf("MANAGED_TRUST_FOR is %s: it must be 1h to %s", c.For, domain.MaxConnectionTime)
	}
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
// suffices. It rejects whom MayDeclare rejects.
func (t Trusts) RolesFor(who domain.Identity, kind domain.Kind) (roles []string, kinds []domain.Kind, err error) {
	if err := t.MayDeclare(who, kind); err != nil {
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

// ForManaged creates the trust with which reconcile-managed makes resources of a kind in the user's name until the end,
// and returns the connection to store with a declaration. Drop or Abandon it if it is not stored.
func (t Trusts) ForManaged(
	ctx context.Context, who domain.Identity, cloud Session, kind domain.Kind, end time.Time,
) (*domain.Connection, error) {
	roles, _, err := t.RolesFor(who, kind)
	if err != nil {
		return nil, err
	}
	id, err := uuid.NewV7()
	if err != nil {
		return nil, err
	}
	c := &domain.Connection{
		ID: id, ProjectID: who.ProjectID, DomainID: who.DomainID, UserID: who.UserID, Name: "managed resources",
		Kind: domain.TrustConnection, Managed: true,
		ActsAs: domain.ActsAs{
			UserID: who.UserID, UserName: who.UserName, ProjectID: who.ProjectID, ProjectName: who.ProjectName,
			Roles: roles,
		},
		Actions: []domain.Permission{}, UsableBy: []string{}, Flavors: []domain.Flavor{},
		ExpiresAt: end,
	}
	err = t.Create(ctx, who, cloud, c)
	if errors.Is(err, domain.ErrDelegatedToken) {
		err = apperr.Wrap(apperr.Conflict, err, "what you declare is made in your name, which takes a trust, and "+
			"Keystone does not let this token make one, because it was delegated itself: use a token of a login with "+
			"a password")
	}
	return c, err
}

// MayDeclare rejects a caller who can make no trust for managed resources of a kind, as far as that is known without
// asking Keystone.
func (t Trusts) MayDeclare(who domain.Identity, kind domain.Kind) error {
	if t.Trustee == "" {
		return apperr.New(apperr.Unsupported, "resources cannot be managed here, because that takes a trust to the "+
			"operator's service account, and TRUSTEE_USER_ID is not set")
	}
	if !who.MayAct() {
		return apperr.New(apperr.Forbidden, "your token only reads, and what you declare is made in your name: use a "+
			"token with another role, such as member")
	}
	if _, missing := t.Roles.of(who, kind); len(missing) > 0 {
		e := apperr.New(apperr.Forbidden, "the kind %s requires the role %s, and your token has only %s: have it "+
			"granted to you in the project, and send a new token", kind, strings.Join(missing, " and the role "),
			strings.Join(who.Roles, ", "))
		for _, role := range missing {
			e.Fields = append(e.Fields, apperr.Field{Field: "kind", Detail: "requires the role " + role})
		}
		return e
	}
	return nil
}
