package launch

import (
	"context"

	"golang.org/x/sync/errgroup"

	"github.com/cloudfn/cloudfn/shared/domain"
)

// newOrder makes the order of the request, with its callback, and the secrets that the caller is shown once. It belongs
// to the project in which its servers will be.
func (s service) newOrder(
	ctx context.Context, a access, req createOrder,
) (order domain.Order, out launched, err error) {
	if err := a.Permits(req.permissions()...); err != nil {
		return order, out, err
	}
	if err := s.checkCallback(req.callback); err != nil {
		return order, out, err
	}
	specs, fingerprints, err := s.specs(ctx, a, req)
	if err != nil {
		return order, out, err
	}
	order = domain.Order{
		ID: req.id, ProjectID: a.ProjectID, DomainID: a.DomainID, UserID: a.Identity.UserID, Spec: req.spec,
		ConnectionID: a.Connection.ID, Actor: a.Actor(),
	}
	for n, i := range req.items {
		spec := specs[n]
		if req.generateKey {
			spec.KeyName = req.spec.GeneratedKey
		}
		order.Instances = append(order.Instances, domain.Instance{
			ID: i.id, ProjectID: a.ProjectID, Name: i.name, State: domain.InstanceRequested, Spec: spec,
			KeyName: spec.KeyName, KeyFingerprint: fingerprints[spec.KeyName],
			ConnectionID: a.Connection.ID, Remote: a.Connection.Remote(),
		})
	}
	if a.cloud == nil {
		if out.privateKey, err = s.sealPayload(&order, req); err != nil {
			return order, out, err
		}
	}
	if out.callbackSecret, err = s.newCallback(a.Identity, &order, req.callback); err != nil {
		return order, out, err
	}
	if order.Lease, err = s.newLease(ctx, a, req, order); err != nil || order.Lease == nil {
		return order, out, err
	}
	order.Spec.LeaseID = &order.Lease.Lease.ID
	for n := range order.Instances {
		order.Instances[n].LeaseID = order.Lease.Lease.ID
	}
	return order, out, s.delegate(ctx, a, req, order.Lease) // last, because what fails after it has to be undone
}

// specs are the servers' parts by id, and the fingerprints of the caller's key pairs by name, if a server has one.
func (s service) specs(ctx context.Context, a access, req createOrder) ([]domain.LaunchSpec, map[string]string, error) {
	reserved, err := s.reserved(ctx, a, req)
	if err != nil {
		return nil, nil, err
	}
	if a.cloud == nil {
		specs, errs := sizedSpecs(a.Connection, req, reserved)
		return specs, nil, first(append(errs, s.withinLimits(a.Connection, req, specs)...))
	}
	var names names
	var group errgroup.Group
	group.Go(func() (err error) {
		names, err = readNames(ctx, a.cloud, req)
		return err
	})
	found, errs := resolve(ctx, a.cloud, req, reserved)
	if err := group.Wait(); err != nil {
		return nil, nil, err
	}
	if err := first(append(errs, names.check(req)...)); err != nil {
		return nil, nil, err
	}
	specs := make([]domain.LaunchSpec, len(found))
	for n, f := range found {
		specs[n] = f.spec
		specs[n].SecurityGroups, _ = names.securityGroups(req.items[n])
	}
	fingerprints := make(map[string]string, len(names.keys))
	for _, k := range names.keys {
		fingerprints[k.Name] = k.Fingerprint
	}
	return specs, fingerprints, nil
}
