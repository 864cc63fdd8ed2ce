package delegation

import (
	"context"
	"errors"
	"time"

	"github.com/google/uuid"

	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/domain"
)

// LeaseSpare is how long the connection of a lease outlasts it, so that its end can be done late, and retried. The
// connection ends with the lease.
const LeaseSpare = 24 * time.Hour

// ForLease creates the trust with which run-connections handles a lease's instances, and returns the connection to
// store with the lease. The lease needs its id, name, project and end. Drop or Abandon it if it is not stored.
func (t Trusts) ForLease(
	ctx context.Context, who domain.Identity, cloud Session, lease domain.Lease,
) (*domain.Connection, error) {
	if err := t.MayLease(who); err != nil {
		return nil, err
	}
	id, err := uuid.NewV7()
	if err != nil {
		return nil, err
	}
	c := &domain.Connection{
		ID: id, ProjectID: who.ProjectID, DomainID: who.DomainID, UserID: who.UserID, Name: leaseName(lease.Name),
		Kind: domain.TrustConnection, LeaseID: lease.ID,
		ActsAs: domain.ActsAs{
			UserID: who.UserID, UserName: who.UserName, ProjectID: who.ProjectID, ProjectName: who.ProjectName,
			Roles: who.FewestWriteRoles(),
		},
		Actions:   lease.Permissions(),
		UsableBy:  []string{},
		Flavors:   []domain.Flavor{},
		ExpiresAt: lease.EndsAt.Add(LeaseSpare),
	}
	err = t.Create(ctx, who, cloud, c)
	if errors.Is(err, domain.ErrDelegatedToken) {
		err = apperr.Wrap(apperr.Conflict, err, "a lease stops and starts its instances in your name, which takes a "+
			"trust, and Keystone does not let this token make one, because it was delegated itself: use a token of a "+
			"login with a password")
	}
	return c, err
}

// MayLease rejects a caller who can make no trust for a lease, as far as that is known without asking Keystone.
func (t Trusts) MayLease(who domain.Identity) error {
	if t.Trustee == "" {
		return apperr.New(apperr.Unsupported, "instances cannot be leased here, because that takes a trust to the "+
			"operator's service account, and TRUSTEE_USER_ID is not set")
	}
	if !who.MayAct() {
		return apperr.New(apperr.Forbidden, "your token only reads, and a lease stops and starts its instances "+
			"in your name: use a token with another role, such as member")
	}
	return nil
}

// leaseName is the connection's name, as long as names of connections may be.
func leaseName(lease string) string {
	name := []rune("lease " + lease)
	return string(name[:min(len(name), 255)])
}
