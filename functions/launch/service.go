package launch

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
	"golang.org/x/sync/errgroup"

	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/domain"
)

// session is the part of OpenStack that this function needs.
type session interface {
	Flavors(context.Context) ([]domain.Flavor, error)
	Image(ctx context.Context, id string) (domain.Image, error)
	Images(ctx context.Context, name string) ([]domain.Image, error)
	Networks(context.Context) ([]domain.Network, error)
	NetworkNames(context.Context) ([]domain.Network, error)
	KeyPairs(context.Context) ([]domain.KeyPair, error)
	SecurityGroups(context.Context) ([]domain.SecurityGroup, error)
	Zones(context.Context) ([]domain.Zone, error)
	Quota(context.Context) (domain.Quota, error)
	CreateServer(ctx context.Context, spec domain.LaunchSpec, name string, userData domain.Secret, tags []string) (string, error)
	DeleteServer(ctx context.Context, id string) error
	Server(ctx context.Context, id string) (domain.Server, error)
	Servers(context.Context, domain.ServerQuery) (page []domain.Server, more bool, err error)
}

// orderStore is the part of the database that this function needs.
type orderStore interface {
	Place(ctx context.Context, order domain.Order, claimFor time.Duration) (domain.Claim, error)
	Renew(ctx context.Context, order domain.Order, claim domain.Claim, claimFor time.Duration) error
	Release(ctx context.Context, order domain.Order, claim domain.Claim) error
	Decide(ctx context.Context, claim domain.Claim, i domain.Instance) error
	Conclude(ctx context.Context, order domain.Order) error
	Get(ctx context.Context, projectID string, id uuid.UUID) (domain.Order, error)
	Busy(ctx context.Context, projectID string, id uuid.UUID) (bool, error)
}

// instanceStore is where it writes what it sees of instances.
type instanceStore interface {
	Change(ctx context.Context, known []domain.Instance) (told int, err error)
}

type service struct {
	cloud interface {
		As(token domain.Secret, scope string) session
	}
	orders    orderStore
	instances instanceStore
	claim     time.Duration
}

const (
	parallel = 4 // create calls at once, per order
	// Of the request's time, kept for writing down what happened: a quarter, up to this much.
	longestFinish = 10 * time.Second
)

// Launch stores the order, then asks Nova for its servers. fresh is false for an order that was there
// already; what a copy that died has left undone of it is finished by this call.
func (s service) Launch(ctx context.Context, who domain.Identity, token domain.Secret, w wish) (order domain.Order, fresh bool, err error) {
	cloud := s.cloud.As(token, who.ProjectID)
	order, err = s.orders.Get(ctx, who.ProjectID, w.id)
	switch {
	case apperr.CodeOf(err) == apperr.NotFound:
		if order, err = newOrder(ctx, cloud, who, w); err != nil {
			return order, false, err
		}
	case err != nil:
		return order, false, err
	}
	order.BodySHA256 = w.hash[:] // Place compares it with the stored one
	claim, err := s.orders.Place(ctx, order, s.claim)
	if err != nil {
		return order, false, err
	}
	var failed error
	if claim.Held {
		if order, err = s.orders.Get(ctx, who.ProjectID, w.id); err != nil {
			return order, claim.Fresh, err
		}
		failed = s.work(ctx, cloud, order, claim, w.userData)
	}
	if order, err = s.conclude(ctx, who.ProjectID, w.id); err != nil {
		return order, claim.Fresh, err
	}
	if claim.Held {
		if err := refused(order, failed); err != nil {
			return order, claim.Fresh, err
		}
	}
	return order, claim.Fresh, s.markInterrupted(ctx, order)
}

func newOrder(ctx context.Context, cloud session, who domain.Identity, w wish) (domain.Order, error) {
	found, errs := resolve(ctx, cloud, w)
	if err := first(errs); err != nil {
		return domain.Order{}, err
	}
	order := domain.Order{ID: w.id, ProjectID: who.ProjectID, DomainID: who.DomainID, UserID: who.UserID, Spec: found.spec}
	for n := range found.spec.Count {
		order.Instances = append(order.Instances, domain.Instance{
			ID: uuid.Must(uuid.NewV7()), ProjectID: who.ProjectID, Name: found.spec.InstanceName(n), State: domain.InstanceRequested,
		})
	}
	return order, nil
}

// work asks Nova for every server of the order that is undecided. What it cannot decide is left to whoever
// sends the order again; the error says why.
func (s service) work(ctx context.Context, cloud session, order domain.Order, claim domain.Claim, userData domain.Secret) error {
	deadline, _ := ctx.Deadline()
	finishing := min(longestFinish, time.Until(deadline)/4)
	working, cancel := context.WithDeadline(ctx, deadline.Add(-finishing))
	defer cancel()
	if !claim.Fresh {
		var err error
		if order, err = s.resume(working, cloud, order); err != nil {
			return err
		}
	}
	group, working := errgroup.WithContext(working)
	group.SetLimit(width(working, cloud, order))
	var open atomic.Bool
	for _, i := range order.Instances {
		if i.Decided() {
			continue
		}
		group.Go(func() error {
			err := s.create(working, cloud, order, claim, i, userData)
			if errors.Is(err, errOpen) {
				open.Store(true)
			}
			return err
		})
	}
	err := group.Wait()
	if open.Load() {
		return errors.Join(errOpen, err) // the claim runs on: nobody asks again before Nova has surely finished
	}
	return errors.Join(err, s.orders.Release(context.WithoutCancel(ctx), order, claim))
}

// width is how many servers are asked for at once: one when they do not all fit the quota. Nova counts again after
// it has made a server, and of several that come together more than need be may end in ERROR; one by one, fewer do.
func width(ctx context.Context, cloud session, order domain.Order) int {
	n := order.Undecided()
	if n < 2 {
		return 1
	}
	quota, err := cloud.Quota(ctx)
	if err != nil || !quota.Fits(order.Spec, n) {
		return 1
	}
	return parallel
}

// errOpen says that Nova may or may not have made the server.
var errOpen = errors.New("it is open whether nova made the server")

// create asks Nova for one server and writes down what it says, if it says anything final.
func (s service) create(ctx context.Context, cloud session, order domain.Order, claim domain.Claim, i domain.Instance, userData domain.Secret) error {
	if err := ctx.Err(); err != nil {
		return err // another one failed, or the time is up: nothing was sent for this one
	}
	if err := s.orders.Renew(ctx, order, claim, s.claim); err != nil {
		return err
	}
	// Not canceled when another create fails: Nova would go on, and nobody would hear its answer.
	limit := s.claim * 2 / 3
	if deadline, ok := ctx.Deadline(); ok {
		limit = min(limit, time.Until(deadline)+longestFinish/2)
	}
	asking, cancel := context.WithTimeout(context.WithoutCancel(ctx), limit)
	defer cancel()
	id, err := cloud.CreateServer(asking, order.Spec, i.Name, userData, tags(order, i))
	switch {
	case err == nil:
		i.ServerID, i.State, i.RawStatus = id, domain.InstanceBuilding, "BUILD"
	case final(err):
		i.State, i.Problem = domain.InstanceError, &domain.Problem{Code: string(apperr.CodeOf(err)), Detail: apperr.As(err).Message}
	case sentNothing(err):
		return err
	default:
		slog.WarnContext(ctx, "open create", "instance_id", i.ID, "error", err)
		return errors.Join(errOpen, err)
	}
	return s.orders.Decide(context.WithoutCancel(ctx), claim, i)
}

// tags are how a server is found again: by its instance, and all of an order at once.
func tags(order domain.Order, i domain.Instance) []string {
	return []string{i.ID.String(), orderTag(order)}
}

func orderTag(order domain.Order) string { return "cloudfn-order:" + order.ID.String() }

// final says whether Nova refused for good: the same call would be refused again.
func final(err error) bool {
	switch apperr.CodeOf(err) {
	case apperr.Invalid, apperr.Forbidden, apperr.Quota, apperr.NotFound, apperr.Conflict, apperr.TooLarge, apperr.Unsupported:
		return true
	}
	return false
}

// sentNothing says whether Nova surely made nothing, although it did not refuse for good.
func sentNothing(err error) bool {
	code := apperr.CodeOf(err)
	return code == apperr.Unauthenticated || code == apperr.RateLimited || errors.Is(err, apperr.ErrNotSent)
}

// Get reads an order, with what Nova says of its servers now.
func (s service) Get(ctx context.Context, who domain.Identity, token domain.Secret, id uuid.UUID) (domain.Order, error) {
	order, err := s.orders.Get(ctx, who.ProjectID, id)
	if err != nil {
		return order, err
	}
	if _, _, err := s.observe(ctx, s.cloud.As(token, who.ProjectID), order); err != nil {
		return order, err
	}
	if order, err = s.conclude(ctx, who.ProjectID, id); err != nil {
		return order, err
	}
	return order, s.markInterrupted(ctx, order)
}

// conclude reads the order back and writes the status that follows from its instances.
func (s service) conclude(ctx context.Context, projectID string, id uuid.UUID) (domain.Order, error) {
	order, err := s.orders.Get(ctx, projectID, id)
	if err != nil || order.Evaluate() == order.Status {
		return order, err
	}
	order.Status = order.Evaluate()
	return order, s.orders.Conclude(ctx, order)
}

// markInterrupted shows which instances nobody works on any more. That is not stored: it ends when the order is
// sent again.
func (s service) markInterrupted(ctx context.Context, order domain.Order) error {
	if order.Undecided() == 0 {
		return nil
	}
	busy, err := s.orders.Busy(ctx, order.ProjectID, order.ID)
	if err != nil || busy {
		return err
	}
	for n := range order.Instances {
		if i := &order.Instances[n]; !i.Decided() {
			i.Problem = &domain.Problem{Code: "interrupted", Detail: "the launch was interrupted; send the same request with the same id again to finish it"}
		}
	}
	return nil
}

// refused is the error that answers an order of which nothing came: the first instance's refusal when Nova
// refused all, or what kept us from asking when nothing was decided.
func refused(order domain.Order, failed error) error {
	first := order.Instances[0]
	made := slices.ContainsFunc(order.Instances, func(i domain.Instance) bool { return i.ServerID != "" })
	switch {
	case order.Status == domain.OrderFailed && !made:
		return apperr.New(apperr.Code(first.Problem.Code), "%s", first.Problem.Detail)
	case failed == nil || errors.Is(failed, domain.ErrFenced):
		return nil
	case order.Undecided() == len(order.Instances) && !errors.Is(failed, errOpen):
		return failed
	}
	slog.Warn("order left unfinished", "order_id", order.ID, "error", failed)
	return nil
}
