package runconnections

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/google/uuid"

	"github.com/cloudfn/cloudfn/shared/actions"
	"github.com/cloudfn/cloudfn/shared/domain"
)

// The parts of the database that this function needs.
type (
	clock interface {
		Now(ctx context.Context) (time.Time, error)
	}
	jobStore interface {
		Claim(ctx context.Context, kind, key string, claimFor time.Duration) (claim uuid.UUID, held bool, err error)
	}
	connectionStore interface {
		Lose(ctx context.Context, lost domain.Connection, reason string, revoked bool) (ended bool, err error)
		Expire(ctx context.Context, over domain.Connection, reason string, revoked bool) (ended bool, err error)
	}
	delegationStore interface {
		Ending(ctx context.Context, limit int) ([]domain.Connection, error)
		Work(ctx context.Context, limit int) ([]domain.Connection, error)
		MarkRevoked(ctx context.Context, c domain.Connection) (notified bool, err error)
		MarkRevocationPending(ctx context.Context, c domain.Connection, reason string, first, longest time.Duration) (notified bool, err error)
		OldTrusts(ctx context.Context, limit int) ([]domain.OldTrust, error)
		TakeTrust(ctx context.Context, t domain.OldTrust) (isOurs bool, err error)
		MarkTrustGone(ctx context.Context, t domain.OldTrust) (notified bool, err error)
		MarkTrustPending(ctx context.Context, t domain.OldTrust, reason string, first, longest time.Duration) (notified bool, err error)
		PendingRevocations(ctx context.Context) (int64, error)
		MarkSeen(ctx context.Context, projectID string, id uuid.UUID, took time.Duration, seen domain.SeenResources) error
		MarkReachable(ctx context.Context, projectID string, id uuid.UUID, flavors []domain.Flavor) error
		CheckClouds(ctx context.Context) ([]domain.RemoteCloud, error)
		ClaimCheck(ctx context.Context, cloud domain.RemoteCloud, claimFor time.Duration) (c domain.Connection, found bool, err error)
		MarkChecked(ctx context.Context, projectID string, id uuid.UUID, took time.Duration, roles []string) error
		MarkUnchecked(ctx context.Context, projectID string, id uuid.UUID, took time.Duration, why string) error
		Postpone(ctx context.Context, projectID string, order uuid.UUID, pause time.Duration) error
		Status(ctx context.Context, projectID string, id uuid.UUID) (status domain.ConnectionStatus, reason string, err error)
		MarkUnreachable(ctx context.Context, projectID string, id uuid.UUID, first, longest time.Duration) error
		Orders(ctx context.Context, projectID string, connection uuid.UUID, limit int) ([]uuid.UUID, error)
		Busy(ctx context.Context, within time.Duration) (bool, error)
		Retire(ctx context.Context, age, connectionAge time.Duration) error
	}
	// remoteStore is how the servers of connections to other clouds are read.
	remoteStore interface {
		RemoteClouds(ctx context.Context, pace domain.RemotePace) ([]domain.RemoteCloud, error)
		ClaimRead(ctx context.Context, cloud domain.RemoteCloud, pace domain.RemotePace, claimFor time.Duration) (read domain.RemoteRead, found bool, err error)
		DoneRead(ctx context.Context, read domain.RemoteRead, swept bool) error
		ReleaseRead(ctx context.Context, read domain.RemoteRead) error
		Instances(ctx context.Context, projectID string, connection uuid.UUID) ([]domain.Instance, error)
		ListStale(ctx context.Context, after time.Duration, limit int) ([]domain.Instance, error)
	}
	instanceStore interface {
		actions.Instances
		Find(ctx context.Context, filter domain.Filter, ids []string) ([]domain.Instance, error)
	}
)

type service struct {
	cloud       *sessions
	clock       clock
	jobs        jobStore
	connections connectionStore
	delegations delegationStore
	remote      remoteStore
	orders      orderStore
	actions     actionStore
	instances   instanceStore
	requests    requestStore
	seal        opener
	wake        func(functions ...string)
	region      string                                       // of this cloud; "" = its only one
	seeing      bool                                         // what can be ordered through a connection is read with each check
	pending     func(ctx context.Context, revocations int64) // for the operator

	workers *workers
	running chan struct{} // holds one while an event begins tasks in this process
	waiting chan struct{} // and one while another event waits for that
}

const (
	jobKind = "run-connections"
	// followFor is for how long one event begins new work while there is some. What it has begun it ends.
	followFor = 45 * time.Second
	soon      = time.Second     // between two polls while this replica works
	later     = 2 * time.Second // while another one is
	// claimFor is for how long a replica that may have died keeps its work. Two thirds of it may go to one create call.
	claimFor = 45 * time.Second

	listed = 50 // connections, and orders of each, at one look

	// A cloud that gives no answer, or a delegation that cannot be opened by our own fault, is left alone for a pause
	// that grows.
	firstPause   = 10 * time.Second
	longestPause = 10 * time.Minute

	retireEvery = time.Hour
	retireAfter = 7 * 24 * time.Hour
	// Connections that ended, and requests for them, are shown to their projects for this long.
	retireConnectionsAfter = 90 * 24 * time.Hour
)

// Run does what waits, and goes on looking while there is work in progress. In one process one event at a time begins
// tasks, and one waits for its turn; a third has nothing to add, because the one that waits will look later than now.
// An event whose time is over, or that waits for nothing but a slow cloud, lets the next one begin; it is answered when
// its own tasks have ended.
func (s *service) Run(ctx context.Context) error {
	select {
	case s.waiting <- struct{}{}:
	default:
		return nil
	}
	select {
	case s.running <- struct{}{}:
		<-s.waiting
	case <-ctx.Done():
		<-s.waiting
		return ctx.Err()
	}
	b := s.workers.batch()
	defer b.all.Wait()
	defer func() { <-s.running }()
	return s.run(ctx, b)
}

func (s *service) run(ctx context.Context, b *batch) error {
	if err := errors.Join(s.retire(ctx), s.reportPending(ctx), s.expireRequests(ctx)); err != nil {
		return err
	}
	var followed time.Time
	for end := time.Now().Add(followFor); ; {
		if err := errors.Join(s.ends(ctx, b), s.work(ctx, b), s.checks(ctx, b, end)); err != nil {
			return err
		}
		if time.Since(followed) > movingPace {
			if err := errors.Join(s.follow(ctx, b, end), s.markStale(ctx)); err != nil {
				return err
			}
			followed = time.Now()
		}
		busy, err := s.delegations.Busy(ctx, movingFor)
		if err != nil || !busy && !b.working() {
			return err
		}
		if !b.rest(ctx, busy, end) {
			return nil
		}
	}
}

// rest waits until it pays to look again. It says whether that is before end. When no work is in progress that is as
// soon as the event's tasks have ended.
func (b *batch) rest(ctx context.Context, busy bool, end time.Time) bool {
	wait := later
	if b.working() {
		wait = soon
	}
	if time.Now().Add(wait).After(end) {
		return false
	}
	idle := b.idle
	if busy {
		idle = nil
	}
	timer := time.NewTimer(wait)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-idle:
		return true
	case <-ctx.Done():
		return false
	}
}

// retire forgets what is over, about once an hour.
func (s *service) retire(ctx context.Context) error {
	_, due, err := s.jobs.Claim(ctx, jobKind, "retire", retireEvery) // never released: it is due again when the claim ends
	if err != nil || !due {
		return err
	}
	return errors.Join(s.delegations.Retire(ctx, retireAfter, retireConnectionsAfter), s.requests.Retire(ctx, retireConnectionsAfter))
}

// work begins what waits and is not begun yet, as far as its cloud's pool has room.
func (s *service) work(ctx context.Context, b *batch) error {
	waiting, err := s.delegations.Work(ctx, listed)
	if err != nil {
		return err
	}
	for _, c := range waiting {
		b.begin("connection/"+c.ID.String(), "connections", cloudOf(c), func() { s.serve(ctx, b, c) })
	}
	return nil
}

// serve does what waits of one connection. Its orders take longer than its actions, so they have a pool of their own.
func (s *service) serve(ctx context.Context, b *batch, c domain.Connection) {
	if !c.Status.IsOpen() {
		s.abandon(ctx, c)
		return
	}
	if err := s.confirm(ctx, c); err != nil {
		s.unopened(ctx, c, err)
		return
	}
	ids, err := s.delegations.Orders(ctx, c.ProjectID, c.ID, listed)
	if err != nil {
		slog.WarnContext(ctx, "orders of a connection", "connection_id", c.ID, "error", err)
	}
	for _, id := range ids {
		b.begin("order/"+id.String(), orderTasks, cloudOf(c), func() { s.order(ctx, c, id) })
	}
	s.act(ctx, c)
}

// accepted notes that Keystone accepts the delegation, and with which roles.
func (s *service) accepted(ctx context.Context, c domain.Connection, in session, took time.Duration) {
	ctx, cancel := domain.Detached(ctx)
	defer cancel()
	if err := s.delegations.MarkChecked(ctx, c.ProjectID, c.ID, took, in.ActsAs().Roles); err != nil {
		slog.WarnContext(ctx, "connection not noted", "connection_id", c.ID, "error", err)
	}
}

// readFlavors notes what flavors the connection's cloud has.
func (s *service) readFlavors(ctx context.Context, c domain.Connection, in session) {
	flavors, err := in.Flavors(ctx)
	if err != nil { // they may not be among what the credential is good for
		slog.WarnContext(ctx, "flavors of a connection", "connection_id", c.ID, "error", err)
		return
	}
	ctx, cancel := domain.Detached(ctx)
	defer cancel()
	if err := s.delegations.MarkReachable(ctx, c.ProjectID, c.ID, flavors); err != nil {
		slog.WarnContext(ctx, "connection not noted", "connection_id", c.ID, "error", err)
	}
}

// unopened writes down why there is no session: the connection has ended, or is left alone for a while. That its cloud
// is away, or that we have no right key or account, says nothing of what was delegated.
func (s *service) unopened(ctx context.Context, c domain.Connection, cause error) {
	if errors.Is(ctx.Err(), context.Canceled) {
		return // this process ends
	}
	ctx, cancel := domain.Detached(ctx)
	defer cancel()
	var err error
	if errors.Is(cause, errLost) {
		slog.WarnContext(ctx, "a delegation is lost", "connection_id", c.ID, "error", cause)
		_, err = s.connections.Lose(ctx, c, domain.LostReason(c.Kind), c.Kind != domain.TrustConnection)
		s.wake("deliver-events")
	} else {
		slog.ErrorContext(ctx, "a connection cannot be used now", "connection_id", c.ID, "error", cause)
		err = s.silent(ctx, c)
	}
	if err != nil {
		slog.WarnContext(ctx, "connection not noted", "connection_id", c.ID, "error", err)
	}
}

func (s *service) silent(ctx context.Context, c domain.Connection) error {
	return s.delegations.MarkUnreachable(ctx, c.ProjectID, c.ID, firstPause, longestPause)
}

// wakeFor wakes the functions that have work after a change: deliver-events, and poll-instances for servers of this
// cloud.
func (s *service) wakeFor(c domain.Connection) {
	if c.Remote() {
		s.wake("deliver-events")
		return
	}
	s.wake("deliver-events", "poll-instances")
}
