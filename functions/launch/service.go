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
	"github.com/cloudfn/cloudfn/shared/ordering"
)

// session is the part of OpenStack that this function needs.
type session interface {
	ordering.Cloud
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
	ordering.Store
	delegatedStore
	Place(ctx context.Context, order domain.Order, claimFor time.Duration) (domain.Claim, error)
	Claim(ctx context.Context, order domain.Order, claimFor time.Duration) (domain.Claim, error)
	Keyed(ctx context.Context, order domain.Order, claim domain.Claim, fingerprint string) error
	Conclude(ctx context.Context, order domain.Order) error
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
	instances   ordering.Instances
	callbacks   callbackStore
	connections connectionStore
	seal        sealer
	sealOrder   sealer // makes what is ordered through a connection readable for run-connections only
	guard       guard
	wake        func(functions ...string)
	claim       time.Duration
}

// tell wakes who is waiting for news: events are delivered, and servers that Nova works on are followed.
func (s service) tell() { s.wake("deliver-events", "poll-instances") }

func (s service) worker() ordering.Worker {
	return ordering.Worker{Orders: s.orders, Instances: s.instances, Tell: s.tell, Claim: s.claim}
}

// workerOf is a worker that makes servers as the user.
func (s service) workerOf(who domain.Identity) ordering.Worker {
	w := s.worker()
	w.User = who.UserID
	return w
}

// work asks Nova for the order's servers with the caller's token.
func (s service) work(
	ctx context.Context, cloud session, who domain.Identity, order domain.Order, claim domain.Claim, items []item,
) (key domain.Secret, err error) {
	wish := ordering.Wish{UserData: make([]domain.Secret, len(items))}
	for n, i := range items {
		wish.UserData[n] = i.userData
	}
	wish.Prepare = func(ctx context.Context, order domain.Order) (prepared domain.Order, err error) {
		prepared, key, err = s.giveKey(ctx, cloud, order, claim)
		return prepared, err
	}
	err = s.workerOf(who).Work(ctx, cloud, order, claim, &wish)
	return key, err
}

// launched is an order that was sent.
type launched struct {
	order          domain.Order
	fresh          bool          // it was not there before
	privateKey     domain.Secret // of the key pair that was made now, if one was
	callback       *domain.Callback
	callbackSecret domain.Secret // of the callback that was made now, if one was
	retryAfter     time.Duration // when the same request, sent again, can go on with what is left of the order; 0 = at once, or nothing is
}

// Launch stores the order, then asks Nova for its servers. One that was there already is gone on with: what a copy that
// died has left undone of it is finished by this call.
func (s service) Launch(ctx context.Context, who domain.Identity, token domain.Secret, w wish) (out launched, err error) {
	cloud := s.cloud.As(token, who.ProjectID)
	out.order, err = s.orders.Get(ctx, who.ProjectID, w.id)
	switch {
	case apperr.CodeOf(err) == apperr.NotFound:
		if out.order, err = s.newOrder(ctx, cloud, who, w); err != nil {
			return out, err
		}
		if out.callbackSecret, err = s.newCallback(who, &out.order, w.callback); err != nil {
			return out, err
		}
	case err != nil:
		return out, err
	}
	out.order.BodySHA256 = w.hash[:] // Place compares it with the stored one
	claim, err := s.orders.Place(ctx, out.order, ordering.ClaimFor(s.claim))
	if err != nil {
		return out, err
	}
	if out.fresh = claim.Fresh; !out.fresh {
		out.callbackSecret = "" // another request was first
	}
	var failed error
	if claim.Held {
		s.tell()
		if out.order, err = s.orders.Get(ctx, who.ProjectID, w.id); err != nil {
			return out, err
		}
		out.privateKey, failed = s.work(ctx, cloud, who, out.order, claim, w.items)
	}
	if out.order, err = s.conclude(ctx, cloud, who.ProjectID, w.id); err != nil {
		return out, err
	}
	if claim.Held {
		if err := refused(out.order, failed); err != nil {
			return out, err
		}
	}
	if out.callback, err = s.callback(ctx, who, out.order); err != nil {
		return out, err
	}
	out.retryAfter, err = s.markInterrupted(ctx, out.order)
	return out, err
}

func (s service) newOrder(ctx context.Context, cloud session, who domain.Identity, w wish) (domain.Order, error) {
	if err := s.checkCallback(w.callback); err != nil {
		return domain.Order{}, err
	}
	found, errs := resolve(ctx, cloud, w)
	if err := first(errs); err != nil {
		return domain.Order{}, err
	}
	prints, err := fingerprints(ctx, cloud, found)
	if err != nil {
		return domain.Order{}, err
	}
	order := domain.Order{
		ID: w.id, ProjectID: who.ProjectID, DomainID: who.DomainID, UserID: who.UserID, Spec: w.spec,
		Actor: domain.ActorOf(who, uuid.Nil),
	}
	for n, i := range w.items {
		spec := found[n].spec
		if w.generateKey {
			spec.KeyName = w.spec.GeneratedKey
		}
		order.Instances = append(order.Instances, domain.Instance{
			ID: i.id, ProjectID: who.ProjectID, Name: i.name, State: domain.InstanceRequested, Spec: spec,
			KeyName: spec.KeyName, KeyFingerprint: prints[spec.KeyName],
		})
	}
	return order, nil
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

// Get reads an order, with what Nova says of its servers now. What an order wants besides its servers (that they are
// stopped, or that none is left) is gone on with, if nobody does so.
func (s service) Get(ctx context.Context, who domain.Identity, token domain.Secret, id uuid.UUID) (domain.Order, *domain.Callback, error) {
	cloud := s.cloud.As(token, who.ProjectID)
	order, err := s.orders.Get(ctx, who.ProjectID, id)
	switch {
	case err != nil:
	case order.ConnectionID != uuid.Nil:
		order, err = s.watch(ctx, cloud, order)
	default:
		if err = s.goOn(ctx, cloud, order); err == nil {
			order, err = s.conclude(ctx, cloud, who.ProjectID, id)
		}
	}
	if err != nil {
		return order, nil, err
	}
	callback, err := s.callback(ctx, who, order)
	if err != nil {
		return order, nil, err
	}
	_, err = s.markInterrupted(ctx, order)
	return order, callback, err
}

// goOn writes down what Nova says of the order's servers now, and does what the order wants besides them.
func (s service) goOn(ctx context.Context, cloud session, order domain.Order) (err error) {
	var claim domain.Claim
	if order.Spec.Attended() && order.Status == domain.OrderRunning {
		if claim, err = s.orders.Claim(ctx, order, ordering.ClaimFor(s.claim)); err != nil {
			return err
		}
	}
	if claim.Held {
		err = s.worker().Work(ctx, cloud, order, claim, nil)
		if apperr.CodeOf(err) != apperr.Forbidden {
			return err
		}
		slog.WarnContext(ctx, "order not gone on with", "order_id", order.ID, "error", err) // its caller may look, and no more
	}
	_, err = s.worker().Observe(ctx, cloud, order)
	return err
}

// conclude reads the order back and writes the status that follows from its instances. Of an order that failed as a whole
// nothing may be left; while something is, it is running.
func (s service) conclude(ctx context.Context, cloud session, projectID string, id uuid.UUID) (domain.Order, error) {
	order, err := s.orders.Get(ctx, projectID, id)
	if err != nil {
		return order, err
	}
	status := order.Evaluate()
	if err := s.clear(ctx, cloud, order, status); err != nil {
		slog.WarnContext(ctx, "order not cleared", "order_id", order.ID, "error", err)
		return order, nil
	}
	if status == order.Status {
		return order, nil
	}
	order.Status, order.Problem = status, order.LeftProblem()
	err = s.orders.Conclude(ctx, order)
	s.tell()
	return order, err
}

// clear deletes the key pair of an order that leaves no servers behind. Only its owner can delete it.
func (s service) clear(ctx context.Context, cloud session, order domain.Order, status domain.OrderStatus) error {
	if order.Spec.GeneratedKey == "" || status != domain.OrderRolledBack && (status != domain.OrderFailed || made(order)) {
		return nil
	}
	return cloud.DeleteKeyPair(ctx, order.Spec.GeneratedKey)
}

func made(order domain.Order) bool {
	return slices.ContainsFunc(order.Instances, func(i domain.Instance) bool { return i.ServerID != "" })
}

// markInterrupted shows which instances nobody works on any more. That is not stored: it ends when the order is
// sent again. It says after which time whoever works on the order now cannot be alive without having renewed the claim, or Nova
// is done with calls of one who died.
func (s service) markInterrupted(ctx context.Context, order domain.Order) (retryAfter time.Duration, err error) {
	if order.Undecided() == 0 || order.ConnectionID != uuid.Nil { // what it takes to go on with that is stored
		return 0, nil
	}
	held, err := s.orders.HeldFor(ctx, order.ProjectID, order.ID)
	if err != nil || held > 0 {
		return held, err
	}
	interrupt(order)
	return order.CallsEndIn(), nil
}

// refused is the error that answers an order of which nothing came: the first instance's refusal when Nova
// refused all, or what kept us from asking when nothing was decided.
func refused(order domain.Order, failed error) error {
	switch {
	case (order.Status == domain.OrderFailed || order.Status == domain.OrderRolledBack) && !made(order):
		n := slices.IndexFunc(order.Instances, func(i domain.Instance) bool { return *i.Problem != *domain.Forgone() })
		why := order.Instances[max(0, n)].Problem
		return apperr.New(apperr.Code(why.Code), "%s", why.Detail)
	case failed == nil || errors.Is(failed, domain.ErrFenced):
		return nil
	case order.Undecided() == len(order.Instances) && !errors.Is(failed, ordering.ErrOpen):
		return failed
	}
	slog.Warn("order left unfinished", "order_id", order.ID, "error", failed)
	return nil
}
