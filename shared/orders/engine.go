// Package orders makes Nova's servers what orders request: it requests them so that none is lost or made twice,
// observes them, and stops, starts or deletes them. It works with any session: the caller's own, a connection's, or the
// service account's.
package orders

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
	"golang.org/x/sync/errgroup"

	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/due"
	"github.com/cloudfn/cloudfn/shared/flow"
	"github.com/cloudfn/cloudfn/shared/lookup"
)

// Cloud is the part of OpenStack that orders need.
type Cloud interface {
	lookup.Lister
	lookup.ServerReader
	Quota(context.Context) (domain.Quota, error)
	CreateServer(
		ctx context.Context, spec domain.LaunchSpec, name string, userData domain.Secret, tags []string,
	) (string, error)
	StartServer(ctx context.Context, id string) error
	StopServer(ctx context.Context, id string) error
	DeleteServer(ctx context.Context, id string) error
	SetVolumes(ctx context.Context, serverID string, volumes []domain.ServerVolume) error
	SetNetworkGroups(ctx context.Context, serverID string, attachments []domain.Attachment) (areFound bool, err error)
	FloatingIPs
}

// KeyPairs deletes the key pair of an order, which only its owner can do.
type KeyPairs interface {
	DeleteKeyPair(ctx context.Context, name string) error
}

// Store is the part of the database that orders need.
type Store interface {
	Place(ctx context.Context, order domain.Order, claimFor time.Duration) (domain.Claim, error)
	Claim(ctx context.Context, order domain.Order, claimFor time.Duration) (domain.Claim, error)
	Renew(ctx context.Context, order domain.Order, claim domain.Claim, claimFor time.Duration) error
	Release(ctx context.Context, order domain.Order, claim domain.Claim) error
	BeginCall(
		ctx context.Context, order domain.Order, claim domain.Claim, call domain.CreateCall,
		claimFor, fence time.Duration,
	) error
	EndCall(ctx context.Context, order domain.Order, call domain.CreateCall) error
	Decide(ctx context.Context, claim domain.Claim, i domain.Instance) error
	RecordVolumes(ctx context.Context, order domain.Order, claim domain.Claim, instance uuid.UUID) error
	RecordGroups(
		ctx context.Context, order domain.Order, claim domain.Claim, instance uuid.UUID, g domain.PortGroups,
	) error
	RecordFloatingIP(
		ctx context.Context, order domain.Order, claim domain.Claim, instance uuid.UUID, f domain.InstanceFloatingIP,
	) error
	MarkDuplicate(ctx context.Context, order domain.Order, call domain.CreateCall, serverID string) (bool, error)
	PublishUnexpected(ctx context.Context, i domain.Instance, s domain.Server) (published bool, err error)
	Finalize(ctx context.Context, order domain.Order) error
	Get(ctx context.Context, projectID string, id uuid.UUID) (domain.Order, error)
	Now(context.Context) (time.Time, error)
}

// Instances stores the states of instances.
type Instances interface {
	Change(ctx context.Context, known []domain.Instance) (published int, err error)
	domain.DeleteCounter
}

// Engine works on orders.
type Engine struct {
	Orders    Store
	Instances Instances
	Wake      func() // wakes the functions that have work after a change
	// Fence is how long an unanswered create call delays the next one; the call may take two thirds of it.
	Fence time.Duration
}

// Session is what one run works with.
type Session struct {
	Cloud    Cloud           // nil when only run-connections can decrypt the delegation
	Keys     KeyPairs        // nil leaves the order's key pair to its owner
	UserID   string          // whose Cloud and Keys are; "" = those of the order's user
	UserData []domain.Secret // of each instance, in their order; nil: the run requests no servers
	// Prepare is called before servers are requested, and returns the order to request; nil changes nothing.
	Prepare func(context.Context, domain.Order, domain.Claim) (domain.Order, error)
	// IsFatal reports the errors that end the run immediately, because the session may be at fault; nil = none.
	IsFatal func(error) bool
	Follows bool // the run continues until the order is settled, whatever it requests: no one else observes it
}

// keysOf returns what deletes the order's key pair. A pair is a user's, so one of its name that another user has is not
// the order's.
func (s Session) keysOf(order domain.Order) KeyPairs {
	if s.UserID != "" && s.UserID != order.UserID {
		return nil
	}
	return s.Keys
}

// claimFor is how long a claim lasts without being renewed. After that another replica may work on the order.
func (e Engine) claimFor() time.Duration { return min(e.Fence, longestClaim) }

// Claim claims a stored order, if it has work left that no replica does.
func (e Engine) Claim(ctx context.Context, order domain.Order) (domain.Claim, error) {
	return e.Orders.Claim(ctx, order, e.claimFor())
}

// Submitted is the outcome of Submit.
type Submitted struct {
	Order      domain.Order // as it is stored
	IsFresh    bool         // it was not stored before
	WasWorked  bool         // this call has worked on it
	Unfinished error        // why that work stopped before its end
}

// Submit stores a new order and works on it. One that is stored already is resumed: what a replica that died has left
// undone is finished. Without a cloud the order is left to run-connections.
func (e Engine) Submit(ctx context.Context, s Session, order domain.Order) (out Submitted, err error) {
	claimFor := e.claimFor()
	if s.Cloud == nil {
		claimFor = 0
	}
	claim, err := e.Orders.Place(ctx, order, claimFor)
	if err != nil {
		return out, err
	}
	ctx = domain.Accepted(ctx)
	out.IsFresh, out.WasWorked = claim.Fresh, claim.Acquired
	switch {
	case claim.Acquired:
		e.Wake()
		if claim.Fresh { // as the database has it
			order.Status, order.CreatedAt, order.ReadAt = domain.OrderRunning, claim.At, claim.At
		}
		out.Order, out.Unfinished, err = e.Run(ctx, s, order, claim)
	case s.Cloud == nil:
		out.Order, err = e.Orders.Get(ctx, order.ProjectID, order.ID)
		if err == nil && out.Order.Status == domain.OrderRunning {
			e.Wake()
		}
	default:
		out.Order, err = e.settle(ctx, s, order)
	}
	return out, err
}

const (
	// Parallel is the number of simultaneous calls to OpenStack for one order.
	Parallel = 4
	// A quarter of the time, up to this much, is reserved for storing results.
	longestFinish = 10 * time.Second
	observePause  = 1500 * time.Millisecond // between two observations of an order
	longestClaim  = 15 * time.Second
)

// Run works on the order under a claim until ctx's deadline, which is required, finalizes it, and returns it as stored.
// unfinished is why the work stopped before its end: the next run continues it.
func (e Engine) Run(
	ctx context.Context, s Session, order domain.Order, claim domain.Claim,
) (stored domain.Order, unfinished, err error) {
	unfinished = e.work(ctx, s, order, claim)
	end, cancel := domain.Detached(ctx)
	defer cancel()
	stored, err = e.settle(end, s, order)
	return stored, unfinished, err
}

// work takes the order's steps. The error is why it stopped before its end.
func (e Engine) work(ctx context.Context, s Session, order domain.Order, claim domain.Claim) (err error) {
	deadline, _ := ctx.Deadline()
	finishing := min(longestFinish, time.Until(deadline)/4)
	working, cancel := context.WithDeadline(ctx, deadline.Add(-finishing))
	defer cancel()
	working, stop := e.keepClaim(working, order, claim)
	defer stop()
	if !claim.Fresh {
		var stored domain.Order
		if stored, err = e.resume(working, s.Cloud, order); err == nil { // else its claim is still released
			order = stored
		}
	}
	if err == nil && s.UserData != nil && !order.RollingBack() {
		err = e.launch(working, s, order, claim)
	}
	isFollowed := s.Follows || order.Spec.NeedsReconcile()
	if isFollowed && !errors.Is(err, ErrOpen) && !errors.Is(err, domain.ErrFenced) && !s.stops(err) {
		err = errors.Join(err, e.follow(working, s, order, claim))
	}
	if errors.Is(context.Cause(working), domain.ErrFenced) {
		return errors.Join(domain.ErrFenced, err)
	}
	stop() // an unanswered create call is fenced automatically
	end, cancel := domain.Detached(ctx)
	defer cancel()
	return errors.Join(err, e.Orders.Release(end, order, claim))
}

func (s Session) stops(err error) bool { return err != nil && s.IsFatal != nil && s.IsFatal(err) }

// resume observes an order that another replica has begun. Reading it under the claim shows all create calls.
func (e Engine) resume(ctx context.Context, cloud Cloud, order domain.Order) (domain.Order, error) {
	order, err := e.Orders.Get(ctx, order.ProjectID, order.ID)
	if err != nil {
		return order, err
	}
	return e.Observe(ctx, cloud, order)
}

// launch requests a server for every undecided instance.
func (e Engine) launch(ctx context.Context, s Session, order domain.Order, claim domain.Claim) (err error) {
	if order, err = e.awaitCalls(ctx, s.Cloud, order); err != nil || order.RollingBack() {
		return err
	}
	if s.Prepare != nil {
		if order, err = s.Prepare(ctx, order, claim); err != nil {
			return err
		}
	}
	if order.Undecided() == 0 {
		return nil
	}
	group, working := errgroup.WithContext(ctx)
	group.SetLimit(width(working, s.Cloud, order))
	var isOpen, isRejected atomic.Bool
	for n, i := range order.Instances {
		if i.Decided() {
			continue
		}
		group.Go(func() error {
			if isRejected.Load() && order.Spec.OnFailure == domain.Rollback {
				return nil // the rollback would delete it
			}
			i, err := e.create(working, s, order, claim, i, s.UserData[n])
			if i.Problem != nil {
				isRejected.Store(true)
			}
			if errors.Is(err, ErrOpen) {
				isOpen.Store(true)
			}
			return err
		})
	}
	err = group.Wait()
	e.Wake()
	if isOpen.Load() {
		return errors.Join(ErrOpen, err)
	}
	return err
}

// width is how many servers are requested concurrently: one when they do not all fit the quota. Nova checks the quota
// once more after it has made a server, so more of several simultaneous requests than necessary may end in ERROR.
func width(ctx context.Context, cloud Cloud, order domain.Order) int {
	var need domain.Need
	for _, i := range order.Instances {
		if !i.Decided() {
			need.Add(i.Spec)
		}
	}
	if need.Instances < 2 {
		return 1
	}
	quota, err := cloud.Quota(ctx)
	if err != nil || !quota.Fits(need) {
		return 1
	}
	return Parallel
}

// follow observes the order's servers, and takes the order's steps, until it is settled or the time is up. A step that
// fails is retried after the next observation.
func (e Engine) follow(ctx context.Context, s Session, order domain.Order, claim domain.Claim) error {
	order, err := e.Orders.Get(ctx, order.ProjectID, order.ID)
	for ; err == nil || apperr.Retryable(err) && !s.stops(err); flow.Sleep(ctx, observePause) {
		if untilEnd(ctx) < observePause {
			return nil
		}
		if order, err = e.Observe(ctx, s.Cloud, order); err != nil {
			continue
		}
		if order.Evaluate() != domain.OrderRunning || order.HasReplaced() {
			return nil // Prepare of the next run replaces it
		}
		hasMore, errs := e.step(ctx, s, order, claim)
		if err := denied(errs); err != nil || !hasMore {
			return err
		}
	}
	return err
}

func untilEnd(ctx context.Context) time.Duration {
	if ctx.Err() != nil {
		return 0
	}
	end, _ := ctx.Deadline()
	return time.Until(end)
}

// keepClaim renews the claim until stop is called. When the claim is lost, the returned context ends with the cause
// domain.ErrFenced.
func (e Engine) keepClaim(
	ctx context.Context, order domain.Order, claim domain.Claim,
) (claimed context.Context, stop func()) {
	return due.Keep(ctx, claim, e.claimFor(), func(ctx context.Context) error {
		err := e.Orders.Renew(ctx, order, claim, e.claimFor())
		if errors.Is(err, domain.ErrFenced) {
			slog.WarnContext(ctx, "claim lost: another replica may work on the order", "order_id", order.ID)
		}
		return err
	})
}

// step takes the next step of each instance. hasMore reports whether there is anything to observe: not when all that is
// left is to request servers. errs has an error for each instance; nil if all is well.
func (e Engine) step(
	ctx context.Context, s Session, order domain.Order, claim domain.Claim,
) (hasMore bool, errs []error) {
	var all sync.WaitGroup
	errs = make([]error, len(order.Instances))
	slots := make(chan struct{}, Parallel)
	for n, step := range order.Next() {
		i := order.Instances[n]
		isIdle := step == domain.StepNone || step == domain.StepCreate
		hasMore = hasMore || !isIdle || step == domain.StepNone && i.Decided() || order.RollingBack() && !i.Decided()
		if isIdle {
			continue
		}
		all.Go(func() {
			slots <- struct{}{}
			defer func() { <-slots }()
			errs[n] = e.take(ctx, s.Cloud, order, claim, i, step)
			if errs[n] != nil {
				slog.WarnContext(ctx, "order step", "project_id", order.ProjectID, "instance_id", i.ID, "step", step,
					"error", errs[n])
			}
			if step != domain.StepDelete && apperr.CodeOf(errs[n]) == apperr.Conflict {
				errs[n] = nil // the server is locked, or its state has changed; the next observation stores it
			}
		})
	}
	all.Wait()
	return hasMore, errs
}

// denied is the first error by which Nova permits no step with this session. Any other concerns one server only.
func denied(errs []error) error {
	n := slices.IndexFunc(errs, func(err error) bool {
		code := apperr.CodeOf(err)
		return code == apperr.Unauthenticated || code == apperr.Forbidden
	})
	if n < 0 {
		return nil
	}
	return errs[n]
}

// take takes one step, and stores immediately that Nova has accepted it.
func (e Engine) take(
	ctx context.Context, cloud Cloud, order domain.Order, claim domain.Claim, i domain.Instance, step domain.Step,
) error {
	next, err := domain.InstanceUpdating, error(nil)
	switch step {
	case domain.StepSkip:
		return e.forgo(ctx, cloud, order, claim, i)
	case domain.StepGroups:
		return e.setGroups(ctx, cloud, order, claim, i)
	case domain.StepVolumes:
		if err := cloud.SetVolumes(ctx, i.ServerID, i.Spec.Volumes); err != nil {
			return err
		}
		return e.Orders.RecordVolumes(ctx, order, claim, i.ID)
	case domain.StepFloatingIP:
		return e.giveFloatingIP(ctx, cloud, order, claim, i)
	case domain.StepStop:
		err = cloud.StopServer(ctx, i.ServerID)
	case domain.StepStart:
		err = cloud.StartServer(ctx, i.ServerID)
	case domain.StepDelete:
		err = errors.Join(resetVolumes(ctx, cloud, order, i), releaseFloatingIP(ctx, cloud, order, i))
		if err != nil {
			return err
		}
		next, err = domain.InstanceDeleting, i.DeleteServer(ctx, cloud, e.Instances, order.CreatedAt)
	}
	if err != nil {
		return err
	}
	i.State, i.SeenAt = next, order.ReadAt // newer observations win
	return e.change(ctx, i)
}

// resetVolumes undoes StepVolumes before a rollback deletes the server, whether it was recorded or not: no volume that
// was made for the order stays, and none that existed before is deleted.
func resetVolumes(ctx context.Context, cloud Cloud, order domain.Order, i domain.Instance) error {
	if !order.Spec.SetsVolumes || !i.Spec.SetsVolumes() || i.State == domain.InstanceBuilding {
		return nil
	}
	err := cloud.SetVolumes(ctx, i.ServerID, i.Spec.CreatedVolumes())
	if apperr.CodeOf(err) == apperr.NotFound {
		return nil
	}
	return err
}

// forgo stores that an instance is not requested any more, unless it has a server after all.
func (e Engine) forgo(
	ctx context.Context, cloud Cloud, order domain.Order, claim domain.Claim, i domain.Instance,
) error {
	found, err := lookup.ServersByTag(ctx, cloud, i.ID.String())
	if err != nil {
		return err
	}
	i.SeenAt = order.ReadAt
	if server, adopted, ok := order.OwnServer(i, found); ok {
		adopted.Found(server)
		return e.change(ctx, adopted)
	}
	i.State, i.Problem = domain.InstanceError, domain.NotCreated()
	defer e.Wake()
	return e.Orders.Decide(ctx, claim, i)
}

// change stores the states of instances, and wakes the functions that have work after it.
func (e Engine) change(ctx context.Context, known ...domain.Instance) error {
	published, err := e.Instances.Change(ctx, known)
	if published > 0 {
		e.Wake()
	}
	return err
}

// ErrOpen means that Nova may or may not have made the server.
var ErrOpen = errors.New("it is unknown whether nova made the server")

// errLate means that a create call was not sent: Nova could not answer it before its fence ends, when the next one may
// be sent.
var errLate = apperr.New(apperr.Unavailable, "this replica was too slow, and sent nothing to nova")

// create requests one server from Nova and stores the answer, if it is final.
func (e Engine) create(
	ctx context.Context, s Session, order domain.Order, claim domain.Claim, i domain.Instance, userData domain.Secret,
) (domain.Instance, error) {
	if err := ctx.Err(); err != nil {
		return i, err // another call failed, or the time is up: nothing was sent
	}
	call := domain.CreateCall{ID: uuid.New(), InstanceID: i.ID, Name: i.Name, UserID: s.UserID}
	began := time.Now() // before the fence does
	err := e.Orders.BeginCall(ctx, order, claim, call, e.claimFor(), e.Fence)
	switch {
	case errors.Is(err, domain.ErrCallOpen):
		return i, nil // its server was found meanwhile
	case err != nil:
		return i, err
	}
	// Not canceled when another create fails: Nova would continue, and its answer would be lost.
	until := began.Add(e.Fence * 2 / 3)
	if deadline, ok := ctx.Deadline(); ok && deadline.Add(longestFinish/2).Before(until) {
		until = deadline.Add(longestFinish / 2)
	}
	calling, cancel := context.WithDeadline(context.WithoutCancel(ctx), until)
	defer cancel()
	if calling.Err() != nil {
		return i, errors.Join(errLate, e.endCall(ctx, order, call))
	}
	id, err := s.Cloud.CreateServer(calling, i.Spec, i.Name, userData, order.ServerTags(i, call))
	// What others observed meanwhile is newer than the answer, which may be stored late.
	i.CallID, i.SeenAt = call.ID, order.ReadAt
	switch {
	case err == nil:
		i.ServerID, i.State, i.RawStatus = id, domain.InstanceBuilding, "BUILD"
	case apperr.Final(err):
		i.State = domain.InstanceError
		i.Problem = domain.ProblemOf(err)
	case apperr.Rejected(err): // though not for good
		return i, errors.Join(err, e.endCall(ctx, order, call))
	default:
		slog.WarnContext(ctx, "outcome of create call unknown", "instance_id", i.ID, "error", err)
		return i, errors.Join(ErrOpen, err)
	}
	end, cancel := domain.Detached(ctx)
	defer cancel()
	return i, e.Orders.Decide(end, claim, i)
}

// endCall stores that a create call made nothing.
func (e Engine) endCall(ctx context.Context, order domain.Order, call domain.CreateCall) error {
	end, cancel := domain.Detached(ctx)
	defer cancel()
	return e.Orders.EndCall(end, order, call)
}
