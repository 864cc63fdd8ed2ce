package pollinstances

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"time"

	"github.com/google/uuid"
	"golang.org/x/sync/errgroup"

	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/orders"
)

// stepsClaim is for how long an order's steps are this replica's alone. They are a few short calls for each instance.
const stepsClaim = time.Minute

func (s *service) engine() orders.Engine {
	return orders.Engine{Orders: s.orders, Instances: s.instances, Wake: s.wake, Fence: stepsClaim}
}

const (
	parallelProjects = 8
	passFor          = 20 * time.Second
	ordersPerPage    = 1000 // are read by one statement
)

// reconcileOrders writes the status that follows from the instances of each order that is still running, and does what
// the order requests beyond its servers: to stop them once they run, or to delete them all when it is rolled back.
func (s *service) reconcileOrders(ctx context.Context) error {
	return retryable(eachOrder(ctx, s.polls.ListRunningOrders, func(o domain.RunningOrder) error {
		err := s.reconcileOrder(ctx, o)
		if err != nil {
			slog.WarnContext(ctx, "order reconcile failed", "project_id", o.ProjectID, "order_id", o.ID, "error", err)
		}
		return err
	}))
}

// eachOrder calls do once for all running orders, a page after the other. Each attempt moves an order to the end of the
// list, so a page of orders that were attempted is the end. After passFor it begins no more orders; the next
// pass begins with those, because they are the ones that were claimed longest ago.
func eachOrder(
	ctx context.Context, list func(context.Context, domain.RunningOrder, int) ([]domain.RunningOrder, error),
	do func(domain.RunningOrder) error,
) (errs []error) {
	ctx, cancel := context.WithTimeout(ctx, passFor)
	defer cancel()
	type key struct {
		projectID string
		id        uuid.UUID
	}
	attempted := map[key]bool{}
	for after := (domain.RunningOrder{}); ctx.Err() == nil; {
		page, err := list(ctx, after, ordersPerPage)
		if errors.Is(ctx.Err(), context.DeadlineExceeded) {
			return errs
		}
		if errs = append(errs, err); err != nil || len(page) == 0 {
			return errs
		}
		var fresh []domain.RunningOrder
		for _, o := range page {
			if k := (key{o.ProjectID, o.ID}); !attempted[k] {
				attempted[k] = true
				fresh = append(fresh, o)
			}
		}
		errs = append(errs, eachOfPage(ctx, fresh, do)...)
		if len(page) < ordersPerPage || len(fresh) == 0 {
			return errs
		}
		after = page[len(page)-1]
	}
	return errs
}

// eachOfPage calls do for the orders of several projects concurrently, and for those of one project one after the
// other: a Nova that hangs over one project's orders delays no other project.
func eachOfPage(ctx context.Context, list []domain.RunningOrder, do func(domain.RunningOrder) error) []error {
	errs := make([]error, len(list))
	var projects []string
	orders := map[string][]int{}
	for n, o := range list {
		if orders[o.ProjectID] == nil {
			projects = append(projects, o.ProjectID)
		}
		orders[o.ProjectID] = append(orders[o.ProjectID], n)
	}
	var group errgroup.Group
	group.SetLimit(parallelProjects)
	for _, project := range projects {
		group.Go(func() error {
			for _, n := range orders[project] {
				if ctx.Err() == nil {
					errs[n] = do(list[n])
				}
			}
			return nil
		})
	}
	_ = group.Wait() // the functions above never fail
	return errs
}

func (s *service) reconcileOrder(ctx context.Context, key domain.RunningOrder) error {
	order, err := s.orders.Get(ctx, key.ProjectID, key.ID)
	if err != nil {
		return err
	}
	isReadOnly := s.readOnly.has(key.ProjectID)
	if !isReadOnly && slices.ContainsFunc(order.Next(), ours) {
		if err := s.advance(ctx, order); err != nil {
			return err
		}
		if order, err = s.orders.Get(ctx, key.ProjectID, key.ID); err != nil {
			return err
		}
	}
	_, err = s.engine().Finalize(ctx, nil, order) // its key pair only its owner can delete
	return err
}

// ours reports whether a step can be done without the caller. To create a server takes what only the caller has.
func ours(step domain.Step) bool { return step != domain.StepNone && step != domain.StepCreate }

// advance takes the order's steps, in a session in its project. An account that may only read leaves them to the
// caller, whose next call takes them.
func (s *service) advance(ctx context.Context, order domain.Order) error {
	stepping, cancel := context.WithTimeout(ctx, stepsClaim*2/3) // the rest is left to Nova to end a call
	defer cancel()
	err := s.engine().Advance(stepping, order, func(do func(orders.Session) error) error {
		return s.cloud.use(stepping, order.ProjectID,
			func(cloud session) error { return do(orders.Session{Cloud: cloud}) })
	})
	if mayNotAct(err) {
		slog.WarnContext(ctx, "the service account is read-only in the project: only callers finish its orders",
			"project_id", order.ProjectID, "error", err)
		s.readOnly.add(order.ProjectID)
		return nil
	}
	return err
}

// mayNotAct reports whether the account's role in the project allows nothing, or it has none there at all.
func mayNotAct(err error) bool {
	code := apperr.CodeOf(err)
	return code == apperr.Forbidden || code == apperr.Unauthenticated
}

// removeUnwanted deals with servers that carry an order's tags and are not its own: it deletes what the order itself
// made twice, and publishes one event about any other. One that cannot be deleted now comes up again when all servers
// are read.
func (s *service) removeUnwanted(ctx context.Context, servers []domain.Server) error {
	there := slices.DeleteFunc(slices.Clone(servers), func(server domain.Server) bool {
		state := domain.StateOf(server.Status, server.Task)
		return state == domain.InstanceDeleting || state == domain.InstanceDeleted
	})
	unwanted, err := s.polls.ListUnwanted(ctx, there)
	if err != nil {
		return err
	}
	s.removeExtras(ctx, slices.DeleteFunc(there, func(server domain.Server) bool {
		return !slices.Contains(unwanted, server.ID)
	}))
	return nil
}

func (s *service) removeExtras(ctx context.Context, servers []domain.Server) {
	for _, server := range servers {
		if err := s.removeExtra(ctx, server); err != nil {
			slog.WarnContext(ctx,
				"a server that its order does not need could not be dealt with: it is tried again later",
				"project_id", server.ProjectID, "server_id", server.ID, "error", err)
		}
	}
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
		return s.engine().RemoveExtra(ctx, nil, order, i, server)
	}
	if s.readOnly.has(server.ProjectID) {
		return nil
	}
	err = s.cloud.use(ctx, server.ProjectID, func(cloud session) error {
		return s.engine().RemoveExtra(ctx, cloud, order, i, server)
	})
	if mayNotAct(err) {
		s.readOnly.add(server.ProjectID)
	}
	return err
}

// mayAdopt reports whether the server is the instance's: of one that the instance is about to get, whether no older one
// carries the tag of the same create call. An older one may be on another page.
func (s *service) mayAdopt(ctx context.Context, i domain.Instance, server domain.Server) bool {
	if i.CallID == uuid.Nil {
		return true
	}
	var oldest bool
	err := s.cloud.use(ctx, i.ProjectID, func(cloud session) (err error) {
		oldest, err = orders.IsOldest(ctx, cloud, i.CallID, server)
		return err
	})
	if mayNotAct(err) { // an account that reads the whole cloud need not have a role in the project
		return true
	}
	if err != nil {
		slog.WarnContext(ctx, "it is not known whether the server is the instance's: it is checked again later",
			"project_id", i.ProjectID, "instance_id", i.ID, "server_id", server.ID, "error", err)
	}
	return err == nil && oldest
}
