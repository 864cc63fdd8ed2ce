package pollinstances

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

// orderStore is the part of the database that orders are attended with.
type orderStore interface {
	Get(ctx context.Context, projectID string, id uuid.UUID) (domain.Order, error)
	Claim(ctx context.Context, order domain.Order, claimFor time.Duration) (domain.Claim, error)
	Decide(ctx context.Context, claim domain.Claim, i domain.Instance) error
	Release(ctx context.Context, order domain.Order, claim domain.Claim) error
	Conclude(ctx context.Context, order domain.Order) error
	ordering.ExtraStore
}

// stepsClaim is for how long an order's steps are this copy's alone. They are a few short calls for each instance.
const stepsClaim = time.Minute

// attend writes the status that follows from the instances of each order that is still running, and does what the order
// asks for beyond its servers: to stop them once they run, or to delete them all when it is rolled back.
func (s *service) attend(ctx context.Context) error {
	running, err := s.polls.Running(ctx)
	if err != nil {
		return err
	}
	errs := make([]error, len(running))
	for n, o := range running {
		if errs[n] = s.attendOne(ctx, o); errs[n] != nil {
			slog.WarnContext(ctx, "an order could not be attended to", "project_id", o.ProjectID, "order_id", o.ID, "error", errs[n])
		}
	}
	return again(errs)
}

func (s *service) attendOne(ctx context.Context, key domain.Order) error {
	order, err := s.orders.Get(ctx, key.ProjectID, key.ID)
	if err != nil {
		return err
	}
	if slices.ContainsFunc(order.Next(), ours) {
		if err := s.finish(ctx, order); err != nil {
			return err
		}
		if order, err = s.orders.Get(ctx, key.ProjectID, key.ID); err != nil {
			return err
		}
	}
	if order.Evaluate() == order.Status {
		return nil
	}
	defer s.wake()
	order.Problem = order.LeftProblem()
	return s.orders.Conclude(ctx, order)
}

// ours says whether a step can be done without the caller. To create a server takes what only the caller has.
func ours(step domain.Step) bool { return step != domain.StepNone && step != domain.StepCreate }

// finish takes the order's steps, in a session in its project. An account that may only read leaves them to the caller,
// whose next call takes them.
func (s *service) finish(ctx context.Context, key domain.Order) error {
	if _, refused := s.readOnly.Load(key.ProjectID); refused {
		return nil
	}
	claim, err := s.orders.Claim(ctx, key, stepsClaim)
	if err != nil || !claim.Held {
		return err
	}
	order, err := s.orders.Get(ctx, key.ProjectID, key.ID) // under the claim, so that all create calls are known
	if err == nil {
		err = s.cloud.use(ctx, key.ProjectID, func(cloud session) error { return s.steps(ctx, cloud, order, claim) })
	}
	if mayNotAct(err) {
		slog.WarnContext(ctx, "the service account may not act in the project: its orders are finished by their callers alone", "project_id", key.ProjectID, "error", err)
		s.readOnly.Store(key.ProjectID, true)
		err = nil
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), endTimeout)
	defer cancel()
	return errors.Join(err, s.orders.Release(ctx, key, claim))
}

// mayNotAct says whether the account's role in the project allows nothing, or it has none there at all.
func mayNotAct(err error) bool {
	code := apperr.CodeOf(err)
	return code == apperr.Forbidden || code == apperr.Unauthenticated
}

func (s *service) steps(ctx context.Context, cloud session, order domain.Order, claim domain.Claim) error {
	ctx, cancel := context.WithTimeout(ctx, stepsClaim*2/3) // the rest is left to Nova to end a call
	defer cancel()
	var failed error
	for n, step := range order.Next() {
		err := s.step(ctx, cloud, step, order, order.Instances[n], claim)
		if mayNotAct(err) || errors.Is(err, domain.ErrFenced) || ctx.Err() != nil {
			return errors.Join(err, failed)
		}
		failed = errors.Join(failed, err) // one server may be locked: the others are none the worse for it
	}
	return failed
}

// step asks Nova for one thing, and writes down at once that it is under way.
func (s *service) step(
	ctx context.Context, cloud session, step domain.Step, order domain.Order, i domain.Instance, claim domain.Claim,
) error {
	switch step {
	case domain.StepForgo:
		return s.forgo(ctx, cloud, order, i, claim)
	case domain.StepDelete:
		if err := ordering.Delete(ctx, cloud, s.instances, i, order.CreatedAt); err != nil {
			return err
		}
		i.State = domain.InstanceDeleting
	case domain.StepStop:
		err := cloud.StopServer(ctx, i.ServerID)
		if apperr.CodeOf(err) == apperr.Conflict {
			return nil // it is no longer as it was: the next look says how
		}
		if err != nil {
			return err
		}
		i.State = domain.InstanceUpdating
	default:
		return nil
	}
	i.SeenAt = order.ReadAt // what others saw since may be what came of it
	return s.change(ctx, []domain.Instance{i})
}

// forgo writes down that an instance is not asked for any more, unless it has a server after all.
func (s *service) forgo(ctx context.Context, cloud session, order domain.Order, i domain.Instance, claim domain.Claim) error {
	found, err := ordering.ServersByTag(ctx, cloud, i.ID.String())
	if err != nil {
		return err
	}
	i.SeenAt = order.ReadAt
	if server, adopted, ok := order.OwnServer(i, found); ok {
		adopted.Found(server)
		return s.change(ctx, []domain.Instance{adopted})
	}
	i.State, i.Problem = domain.InstanceError, domain.Forgone()
	defer s.wake()
	return s.orders.Decide(ctx, claim, i)
}

// removeUnwanted deals with servers that carry an order's tags and are not its own: it deletes what the order itself made
// twice, and publishes one event about any other. One that cannot be deleted now comes up again when all servers are read.
func (s *service) removeUnwanted(ctx context.Context, servers []domain.Server) error {
	there := slices.DeleteFunc(slices.Clone(servers), func(server domain.Server) bool {
		state := domain.StateOf(server.Status, server.Task)
		return state == domain.InstanceDeleting || state == domain.InstanceDeleted
	})
	unwanted, err := s.polls.Unwanted(ctx, there)
	if err != nil {
		return err
	}
	for _, server := range there {
		if !slices.Contains(unwanted, server.ID) {
			continue
		}
		if err := s.removeExtra(ctx, server); err != nil {
			slog.WarnContext(ctx, "a server that its order does not need could not be dealt with: it is tried again later", "project_id", server.ProjectID, "server_id", server.ID, "error", err)
		}
	}
	return nil
}

func (s *service) removeExtra(ctx context.Context, server domain.Server) error {
	id, instance, ok := server.Made()
	if !ok {
		return nil
	}
	order, err := s.orders.Get(ctx, server.ProjectID, id)
	if err != nil {
		return err
	}
	n := slices.IndexFunc(order.Instances, func(i domain.Instance) bool { return i.ID == instance })
	if n < 0 {
		return nil
	}
	i := order.Instances[n]
	if own, _, found := order.OwnServer(i, []domain.Server{server}); found && own.ID == server.ID {
		return nil // it is about to be adopted
	}
	if _, duplicate := order.Duplicate(i, server); !duplicate {
		defer s.wake()
		return ordering.RemoveExtra(ctx, nil, s.orders, order, i, server)
	}
	if _, refused := s.readOnly.Load(server.ProjectID); refused {
		return nil
	}
	err = s.cloud.use(ctx, server.ProjectID, func(cloud session) error {
		return ordering.RemoveExtra(ctx, cloud, s.orders, order, i, server)
	})
	if mayNotAct(err) {
		s.readOnly.Store(server.ProjectID, true)
	}
	return err
}

// mayAdopt says whether the server is the instance's: of one that the instance is about to get, whether no older one carries the
// tag of the same create call. An older one may be on another page.
func (s *service) mayAdopt(ctx context.Context, i domain.Instance, server domain.Server) bool {
	if i.CallID == uuid.Nil {
		return true
	}
	var oldest bool
	err := s.cloud.use(ctx, i.ProjectID, func(cloud session) (err error) {
		oldest, err = ordering.IsOldest(ctx, cloud, i.CallID, server)
		return err
	})
	if mayNotAct(err) { // an account that reads the whole cloud need not have a role in the project
		return true
	}
	if err != nil {
		slog.WarnContext(ctx, "it is not known whether the server is the instance's: it is checked again later", "project_id", i.ProjectID, "instance_id", i.ID, "server_id", server.ID, "error", err)
	}
	return err == nil && oldest
}
