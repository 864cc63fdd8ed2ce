package launch

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"time"

	"github.com/google/uuid"

	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/orders"
)

// session is the part of OpenStack that this function needs.
type session interface {
	orders.Cloud
	Flavors(context.Context) ([]domain.Flavor, error)
	Image(ctx context.Context, id string) (domain.Image, error)
	Images(ctx context.Context, name string) ([]domain.Image, error)
	Networks(context.Context) ([]domain.Network, error)
	NetworkNames(context.Context) ([]domain.Network, error)
	KeyPairs(context.Context) ([]domain.KeyPair, error)
	SecurityGroups(context.Context) ([]domain.SecurityGroup, error)
	Zones(context.Context) ([]domain.Zone, error)
	ImportKeyPair(ctx context.Context, name, publicKey string) (domain.KeyPair, error)
	DeleteKeyPair(ctx context.Context, name string) error
	FreeAddresses(ctx context.Context, networkIDs []string) (map[string]map[int]float64, error)
	Room(context.Context, domain.Flavor) (int, error)
}

// orderStore is the part of the database that this function needs.
type orderStore interface {
	orders.Store
	Find(ctx context.Context, filter domain.Filter, id uuid.UUID) (domain.Order, error)
	Keyed(ctx context.Context, order domain.Order, claim domain.Claim, fingerprint string) error
	List(ctx context.Context, q domain.OrderQuery) ([]domain.ListedOrder, error)
	HeldFor(ctx context.Context, projectID string, id uuid.UUID) (time.Duration, error)
	Taken(ctx context.Context, projectID string, ids []uuid.UUID) ([]uuid.UUID, error)
}

type service struct {
	cloud interface {
		As(token domain.Secret, scope string) session
		Region() string
	}
	orders      orderStore
	instances   orders.Instances
	callbacks   callbackStore
	connections connectionStore
	seal        sealer
	sealOrder   sealer // makes what is ordered through a connection readable for run-connections only
	guard       guard
	wake        func(functions ...string)
	fence       time.Duration
}

// engine works on orders. Afterwards events are delivered, and servers that Nova works on are followed; an order that
// only run-connections can work on is passed on to it.
func (s service) engine(a access) orders.Engine {
	wake := func() { s.wake("deliver-events", "poll-instances") }
	if a.cloud == nil {
		wake = func() { s.wake("run-connections", "deliver-events") }
	}
	return orders.Engine{Orders: s.orders, Instances: s.instances, Wake: wake, Fence: s.fence}
}

// session is what the engine works with. The key pair that it makes for the order is put into key.
func (s service) session(a access, items []item, key *domain.Secret) orders.Session {
	if a.cloud == nil {
		return orders.Session{}
	}
	session := orders.Session{Cloud: a.cloud, Keys: a.cloud, UserID: a.Identity.UserID, UserData: make([]domain.Secret, len(items))}
	for n, i := range items {
		session.UserData[n] = i.userData
	}
	session.Prepare = func(ctx context.Context, order domain.Order, claim domain.Claim) (prepared domain.Order, err error) {
		prepared, *key, err = s.giveKey(ctx, a.cloud, order, claim)
		return prepared, err
	}
	return session
}

// launched is an order that was sent.
type launched struct {
	order          domain.Order
	isFresh        bool          // it was not there before
	privateKey     domain.Secret // of the key pair that was made now, if one was
	callback       *domain.Callback
	callbackSecret domain.Secret // of the callback that was made now, if one was
	retryAfter     time.Duration // when the same request, sent again, can resume what is left of the order; 0 = at once, or nothing is
}

// Launch stores the order and has its servers made. An order that is stored already is resumed: what a replica that
// died has left undone of it is finished by this call.
func (s service) Launch(ctx context.Context, a access, req createOrder) (out launched, err error) {
	order, err := s.find(ctx, a, req)
	if apperr.CodeOf(err) == apperr.NotFound {
		order, out, err = s.newOrder(ctx, a, req)
	}
	if err != nil {
		return out, err
	}
	order.BodySHA256 = req.hash[:] // Place compares it with the stored one
	var key domain.Secret
	done, err := s.engine(a).Submit(ctx, s.session(a, req.items, &key), order)
	if err = ignoreLeftKey(ctx, done.Order, err); err != nil {
		return out, err
	}
	if out.order, out.isFresh = done.Order, done.IsFresh; !out.isFresh {
		out.privateKey, out.callbackSecret = "", "" // another request was first
	}
	if key != "" {
		out.privateKey = key
	}
	if done.WasWorked {
		if err := rejection(done.Order, done.Unfinished); err != nil {
			return out, err
		}
	}
	if out.callback, err = s.callback(ctx, a.Identity, out.order); err != nil {
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

// find reads the order that the same request may have placed before. One whose id was made just now is not there.
func (s service) find(ctx context.Context, a access, req createOrder) (domain.Order, error) {
	if req.isNew {
		return domain.Order{}, apperr.New(apperr.NotFound, "the id is new")
	}
	return s.orders.Find(ctx, a.Filter(), req.id)
}

// newOrder makes the order that the request asks for, with its callback, and what the caller is shown once. It belongs
// to the project in which its servers will be.
func (s service) newOrder(ctx context.Context, a access, req createOrder) (order domain.Order, out launched, err error) {
	if err := a.Permits(req.permissions()...); err != nil {
		return order, out, err
	}
	if err := s.checkCallback(req.callback); err != nil {
		return order, out, err
	}
	specs, prints, err := s.specs(ctx, a, req)
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
			KeyName: spec.KeyName, KeyFingerprint: prints[spec.KeyName], ConnectionID: a.Connection.ID, Remote: a.Connection.Remote(),
		})
	}
	if a.cloud == nil {
		if out.privateKey, err = s.sealPayload(&order, req); err != nil {
			return order, out, err
		}
	}
	out.callbackSecret, err = s.newCallback(a.Identity, &order, req.callback)
	return order, out, err
}

// specs are what the servers are made of, and the fingerprints of the caller's key pairs by name, where one is needed.
func (s service) specs(ctx context.Context, a access, req createOrder) ([]domain.LaunchSpec, map[string]string, error) {
	if a.cloud == nil {
		specs, errs := sizedSpecs(a.Connection, req)
		return specs, nil, first(append(errs, s.withinLimits(a.Connection, req, specs)...))
	}
	found, errs := resolve(ctx, a.cloud, req)
	if err := first(errs); err != nil {
		return nil, nil, err
	}
	specs := make([]domain.LaunchSpec, len(found))
	for n, f := range found {
		specs[n] = f.spec
	}
	prints, err := fingerprints(ctx, a.cloud, found)
	return specs, prints, err
}

// fingerprints are those of the caller's key pairs, by name, when a server is to have one.
func fingerprints(ctx context.Context, cloud session, found []resolved) (map[string]string, error) {
	if !slices.ContainsFunc(found, func(r resolved) bool { return r.spec.KeyName != "" }) {
		return nil, nil //nolint:nilnil // none is needed
	}
	pairs, err := cloud.KeyPairs(ctx)
	prints := make(map[string]string, len(pairs))
	for _, k := range pairs {
		prints[k.Name] = k.Fingerprint
	}
	return prints, err
}

// Get reads an order, with what Nova says of its servers now where this function may ask. What an order asks for
// besides its servers (that they are stopped, or that none is left) is resumed, if nobody does it.
func (s service) Get(ctx context.Context, a access, id uuid.UUID) (domain.Order, *domain.Callback, error) {
	order, err := s.orders.Find(ctx, a.Filter(), id)
	switch {
	case err != nil:
	case a.cloud == nil, order.IsDelegated() && order.IsRemote(): // only run-connections can look into that cloud
	case order.IsDelegated():
		order, err = s.engine(a).Observe(ctx, a.cloud, order)
	default:
		order, err = s.engine(a).Refresh(ctx, orders.Session{Cloud: a.cloud, Keys: a.cloud}, order)
		err = ignoreLeftKey(ctx, order, err)
	}
	if err != nil {
		return order, nil, err
	}
	callback, err := s.callback(ctx, a.Identity, order)
	if err != nil {
		return order, nil, err
	}
	_, err = s.markInterrupted(ctx, order)
	return order, callback, err
}

// markInterrupted shows which instances nobody works on any more. That is not stored: it ends when the order is sent
// again. It says after which time whoever works on the order now cannot be alive without having renewed the claim, or
// Nova is done with calls of one who died.
func (s service) markInterrupted(ctx context.Context, order domain.Order) (retryAfter time.Duration, err error) {
	if order.Undecided() == 0 || order.IsDelegated() { // what it takes to resume that is stored
		return 0, nil
	}
	held, err := s.orders.HeldFor(ctx, order.ProjectID, order.ID)
	if err != nil || held > 0 {
		return held, err
	}
	interrupt(order)
	return order.CallsEndIn(), nil
}

// rejection is the error that answers an order of which nothing came: the first instance's when Nova refused all, or
// why nothing was asked for when nothing was decided.
func rejection(order domain.Order, unfinished error) error {
	switch {
	case (order.Status == domain.OrderFailed || order.Status == domain.OrderRolledBack) && !order.HasServers():
		n := slices.IndexFunc(order.Instances, func(i domain.Instance) bool { return *i.Problem != *domain.Forgone() })
		why := order.Instances[max(0, n)].Problem
		return apperr.New(apperr.Code(why.Code), "%s", why.Detail)
	case unfinished == nil || errors.Is(unfinished, domain.ErrFenced):
		return nil
	case order.Undecided() == len(order.Instances) && !errors.Is(unfinished, orders.ErrOpen):
		return unfinished
	}
	slog.Warn("order left unfinished", "order_id", order.ID, "error", unfinished)
	return nil
}
