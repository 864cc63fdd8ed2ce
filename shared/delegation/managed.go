package delegation

import (
	"context"
	"errors"
	"fmt"
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
}

// Validate rejects a ManagedConfig that cannot work.
func (c ManagedConfig) Validate() error {
	if c.For < time.Hour || c.For > domain.MaxConnectionTime {
		return fmt.Errorf("MANAGED_TRUST_FOR is %s: it must be 1h to %s", c.For, domain.MaxConnectionTime)
	}
	return nil
}

// ForManaged creates the trust with which reconcile-managed acts in the user's name until the end, and returns the
// connection to store with a declaration. Drop or Abandon it if it is not stored.
func (t Trusts) ForManaged(
	ctx context.Context, who domain.Identity, cloud Session, end time.Time,
) (*domain.Connection, error) {
	if err := t.MayDeclare(who); err != nil {
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
			Roles: who.FewestWriteRoles(),
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

// MayDeclare rejects a caller who can make no trust for managed resources, as far as that is known without asking
// Keystone.
func (t Trusts) MayDeclare(who domain.Identity) error {
	if t.Trustee == "" {
		return apperr.New(apperr.Unsupported, "resources cannot be managed here, because that takes a trust to the "+
			"operator's service account, and TRUSTEE_USER_ID is not set")
	}
	if !who.MayAct() {
		return apperr.New(apperr.Forbidden, "your token only reads, and what you declare is made in your name: use a "+
			"token with another role, such as member")
	}
	return nil
}
