package orders

import (
	"context"

	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/domain"
)

// FloatingIPs is the part of OpenStack that the floating IPs of orders need.
type FloatingIPs interface {
	EnsureFloatingIP(
		ctx context.Context, serverID string, a domain.FloatingIPAttach,
	) (f domain.FloatingIP, isChanged bool, err error)
	ReleaseFloatingIPs(ctx context.Context, serverID, mark string) error
}

// giveFloatingIP takes StepFloatingIP. It can be repeated: Neutron is read first. The step is recorded when Nova shows
// the address, so that the event of the instance has it. What Neutron rejects for good is recorded as the instance's
// failure.
func (e Engine) giveFloatingIP(
	ctx context.Context, cloud Cloud, order domain.Order, claim domain.Claim, i domain.Instance,
) error {
	f, _, err := cloud.EnsureFloatingIP(ctx, i.ServerID, i.FloatingIPRequest())
	out := domain.InstanceFloatingIP{ID: f.ID, Address: f.Address}
	switch {
	case apperr.Final(err) && apperr.CodeOf(err) != apperr.Forbidden: // which another session may do
		out = domain.InstanceFloatingIP{Problem: domain.ProblemOf(err)}
	case err != nil:
		return err
	case i.AwaitsAddress(f, order.ReadAt):
		return nil
	}
	return e.Orders.RecordFloatingIP(ctx, order, claim, i.ID, out)
}

// releaseFloatingIP releases what was made for the instance before a rollback deletes its server, recorded or not. An
// address that the project had before is free when the server is deleted.
func releaseFloatingIP(ctx context.Context, cloud Cloud, order domain.Order, i domain.Instance) error {
	if !order.Spec.FloatingIPs || !i.Spec.MakesFloatingIP() {
		return nil
	}
	return cloud.ReleaseFloatingIPs(ctx, i.ServerID, domain.FloatingIPMark(i.ID))
}
