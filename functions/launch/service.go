package launch

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"time"

	"github.com/google/uuid"
	"golang.org/x/sync/errgroup"

	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/delegation"
	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/openstack"
	"github.com/cloudfn/cloudfn/shared/orders"
	"github.com/cloudfn/cloudfn/shared/postgres"
	"github.com/cloudfn/cloudfn/shared/seal"
	"github.com/cloudfn/cloudfn/shared/webhook"
)

type service struct {
	cloud       *openstack.Cloud
	orders      postgres.Orders
	instances   postgres.Instances
	callbacks   postgres.Callbacks
	connections postgres.Connections
	launches    postgres.RateLimit
	leases      postgres.Leases
	trusts      delegation.Trusts
	rules       domain.LeaseRules
	// defaultLease is how long the leases of launches last that request none; zero = they get none.
	defaultLease domain.Period
	seal         seal.PublicKey // for deliver-events
	sealOrder    seal.PublicKey // for run-connections
	guard        *webhook.Guard
	// mostCallbacks are as many as a project may have.
	mostCallbacks int
	wake          func(functions ...string)
}

// engine works on orders. Its wake-ups have events delivered and servers polled; an order that only run-connections can
// work on is passed on to it.
func (s service) engine(a access) orders.Engine {
	wake := func() { s.wake("deliver-events", "poll-instances") }
	if a.cloud == nil {
		wake = func() { s.wake("run-connections", "deliver-events") }
	}
	return orders.Engine{Orders: s.orders, Instances: s.instances, Wake: wake, Fence: fence}
}

// session is what the engine works with. Without a cloud, the order is left to run-connections.
func session(a access, items []item, key *keyPair) orders.Session {
	if a.cloud == nil {
		return orders.Session{}
	}
	userData := make([]domain.Secret, len(items))
	for n, i := range items {
		userData[n] = i.userData
	}
	return orders.Session{
		Cloud: a.cloud, Keys: a.cloud, UserID: a.Identity.UserID, UserData: userData, Prepare: key.prepare,
	}
}

// launched is the result of a launch.
type launched struct {
	related

	order          domain.Order
	isFresh        bool          // it was not stored before
	privateKey     domain.Secret // of the key pair that this request made, if it made one
	callbackSecret domain.Secret // of the callback that this request made, if it made one
	retryAfter     time.Duration // until the same request can resume the order; 0 = immediately, or it is done
}

// Launch stores the order and has its servers made. An order that is stored already is resumed: this call finishes what
// a replica that died has left undone, and counts for no limit.
func (s service) Launch(ctx context.Context, a access, req createOrder) (out launched, err error) {
	order, err := s.find(ctx, a, req)
	if apperr.CodeOf(err) == apperr.NotFound {
		if err = s.launches.Take(ctx, a.Identity.ProjectID, "this project"); err == nil {
			order, out, err = s.newOrder(ctx, a, req)
		}
	}
	if err != nil {
		return out, err
	}
	order.BodySHA256 = req.hash[:] // Place compares it with the stored one
	key := keyPair{cloud: a.cloud, userID: a.Identity.UserID, orders: s.orders}
	done, err := s.engine(a).Submit(ctx, session(a, req.items, &key), order)
	switch {
	case !done.IsFresh:
		s.revoke(ctx, a, order, err)
	case order.Lease != nil:
		s.wake("run-leases")
	}
	if err = ignoreLeftKey(ctx, done.Order, err); err != nil {
		return out, refusedLease(err, req.lease)
	}
	if out.order, out.isFresh = done.Order, done.IsFresh; !out.isFresh {
		out.privateKey, out.callbackSecret = "", "" // another request was first
	}
	if key.private != "" {
		out.privateKey = key.private
	}
	if done.WasWorked {
		if err := rejection(done.Order, done.Unfinished); err != nil {
			return out, err
		}
	}
	if out.related, err = s.relatedTo(ctx, a.Identity, out.order); err != nil {
		return out, err
	}
	out.retryAfter, err = s.markInterrupted(ctx, out.order)
	return out, err
}

// ignoreLeftKey leaves an order running whose key pair could not be deleted: the next request for it tries that.
func ignoreLeftKey(ctx context.Context, order domain.Order, err error) error {
	if errors.Is(err, orders.ErrKeyLeft) {
		slog.WarnContext(ctx, "order not finalized", "order_id", order.ID, "error", err)
		return nil
	}
	return err
}

// find reads the order that the same request may have placed before. A generated id is not stored yet.
func (s service) find(ctx context.Context, a access, req createOrder) (domain.Order, error) {
	if req.isNew {
		return domain.Order{}, apperr.New(apperr.NotFound, "the id is new")
	}
	return s.orders.Find(ctx, a.Filter(), req.id)
}

// Get reads an order, and updates it from Nova where the caller's token can read its servers. It resumes
// the rest of the order's work besides requesting its servers, if no replica does it.
func (s service) Get(
	ctx context.Context, a access, id uuid.UUID,
) (domain.Order, related, error) {
	order, err := s.orders.Find(ctx, a.Filter(), id)
	switch {
	case err != nil:
	case a.cloud == nil, order.IsDelegated() && order.IsRemote(): // only run-connections can read that cloud
	case order.IsDelegated():
		order, err = s.engine(a).Observe(ctx, a.cloud, order)
	default:
		order, err = s.engine(a).Refresh(ctx, orders.Session{
			Cloud: a.cloud, Keys: a.cloud, UserID: a.Identity.UserID,
		}, order)
		err = ignoreLeftKey(ctx, order, err)
	}
	if err != nil {
		return order, related{}, err
	}
	if _, err = s.markInterrupted(ctx, order); err != nil {
		return order, related{}, err
	}
	with, err := s.relatedTo(ctx, a.Identity, order)
	return order, with, err
}

// markInterrupted shows which instances no replica works on any more. That is not stored: it ends when the order is
// resumed. retryAfter is the time until the claim ends, or Nova is done with the create calls of a replica that died.
func (s service) markInterrupted(ctx context.Context, order domain.Order) (retryAfter time.Duration, err error) {
	if order.Undecided() == 0 || order.IsDelegated() { // run-connections resumes it from what is stored
		return 0, nil
	}
	expiresIn, err := s.orders.ClaimExpiresIn(ctx, order.ProjectID, order.ID)
	if err != nil || expiresIn > 0 {
		return expiresIn, err
	}
	interrupt(order)
	return order.CallsEndIn(), nil
}

// rejection is the error that answers an order without any servers: the first instance's when Nova rejected all, or why
// the work stopped when nothing was decided.
func rejection(order domain.Order, unfinished error) error {
	switch {
	case (order.Status == domain.OrderFailed || order.Status == domain.OrderRolledBack) && !order.HasServers():
		n := slices.IndexFunc(order.Instances, func(i domain.Instance) bool {
			return *i.Problem != *domain.NotCreated()
		})
		why := order.Instances[max(0, n)].Problem
		return apperr.New(apperr.Code(why.Code), "%s (order %s)", why.Detail, order.ID)
	case unfinished == nil || errors.Is(unfinished, domain.ErrFenced):
		return nil
	case order.Undecided() == len(order.Instances) && !errors.Is(unfinished, orders.ErrOpen):
		return unfinished
	}
	slog.Warn("order left unfinished", "order_id", order.ID, "error", unfinished)
	return nil
}

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
	if err := first(resolveFloatingIPs(ctx, a.cloud, req, found)); err != nil {
		return nil, nil, err
	}
	specs := make([]domain.LaunchSpec, len(found))
	for n, f := range found {
		specs[n] = f.spec
		specs[n].SecurityGroups, _ = names.securityGroups(req.items[n])
		ids, _ := names.networkGroups(req.items[n])
		for k := range specs[n].Attachments {
			specs[n].Attachments[k].SecurityGroups = ids[k]
		}
	}
	fingerprints := make(map[string]string, len(names.keys))
	for _, k := range names.keys {
		fingerprints[k.Name] = k.Fingerprint
	}
	return specs, fingerprints, nil
}

// checkCallback rejects a URL or secret that can never work, before anything is stored.
func (s service) checkCallback(req *launchCallback) error {
	if req == nil {
		return nil
	}
	if err := s.guard.Check(string(req.URL)); err != nil {
		return ofCallback(err)
	}
	if req.Secret == nil {
		return nil
	}
	return ofCallback(webhook.CheckSecret(*req.Secret))
}

// ofCallback gives the fields of an error their paths in the request.
func ofCallback(err error) error {
	if err == nil {
		return nil
	}
	e := *apperr.As(err)
	e.Fields = slices.Clone(e.Fields)
	for n := range e.Fields {
		e.Fields[n].Field = "callback." + e.Fields[n].Field
	}
	e.Message = "callback." + e.Message
	return &e
}

// newCallback adds the requested callback to the order. It belongs to the caller's project, even if the order does not.
func (s service) newCallback(who domain.Identity, order *domain.Order, req *launchCallback) (domain.Secret, error) {
	if req == nil {
		return "", nil
	}
	events := slices.Clone(req.Events)
	slices.Sort(events)
	c := domain.Callback{
		ID: uuid.Must(uuid.NewV7()), ProjectID: who.ProjectID, UserID: who.UserID, URL: string(req.URL),
		Events: slices.Compact(events), OrderID: order.ID, OfProject: order.ProjectID, ConnectionID: order.ConnectionID,
		Most: s.mostCallbacks,
	}
	secret := domain.Deref(req.Secret)
	if req.Secret == nil {
		secret = webhook.NewSecret()
	}
	var err error
	c.Secret, err = s.seal.Seal(c.SealedFor(), secret)
	order.Callback, order.Spec.CallbackID = &c, &c.ID
	return secret, err
}

// relatedTo reads what is shown with orders.
func (s service) relatedTo(
	ctx context.Context, who domain.Identity, orders ...domain.Order,
) (with related, err error) {
	if with.callbacks, err = s.callbacksOf(ctx, who, orders...); err != nil {
		return with, err
	}
	with.leases, err = s.leasesOf(ctx, orders...)
	return with, err
}

// callbacksOf reads the callbacks of orders by their ids, as far as they are stored and the caller's project's.
func (s service) callbacksOf(
	ctx context.Context, who domain.Identity, orders ...domain.Order,
) (map[uuid.UUID]domain.Callback, error) {
	var ids []uuid.UUID
	for _, o := range orders {
		if o.Spec.CallbackID != nil {
			ids = append(ids, *o.Spec.CallbackID)
		}
	}
	if len(ids) == 0 {
		return nil, nil //nolint:nilnil // like an empty map
	}
	found, err := s.callbacks.ListByIDs(ctx, who.ProjectID, ids)
	byID := make(map[uuid.UUID]domain.Callback, len(found))
	for _, c := range found {
		byID[c.ID] = c
	}
	return byID, err
}

// List returns orders as they are stored, and shows which of them no replica works on any more.
func (s service) List(ctx context.Context, q domain.OrderQuery) (list []domain.Order, err error) {
	found, err := s.orders.List(ctx, q)
	for _, f := range found {
		if !f.Busy && !f.IsDelegated() {
			interrupt(f.Order)
		}
		list = append(list, f.Order)
	}
	return list, err
}

// interrupt gives each undecided instance the error that no replica works on it.
func interrupt(order domain.Order) {
	for n := range order.Instances {
		if i := &order.Instances[n]; !i.Decided() {
			i.Problem = &domain.Problem{
				Code:   "interrupted",
				Detail: "the launch was interrupted; send the same request with the same id again to finish it",
			}
		}
	}
}
