package pollinstances

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"

	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/flow"
	"github.com/cloudfn/cloudfn/shared/postgres"
	"github.com/cloudfn/cloudfn/shared/testkit"
)

// slowCloud is a Nova that takes its time for each call, and knows no servers: no sandbox has thousands of projects.
type slowCloud struct {
	latency time.Duration
	wide    atomic.Bool // it lets the account list the whole cloud

	mu      sync.Mutex
	reading map[string]int // calls that are under way, by project
	read    map[string]int // calls that have ended, by project
	twice   int            // calls that found another one of the same project under way
	ended   func()         // called after each read, if there is one
}

func newSlowCloud(latency time.Duration) *slowCloud {
	return &slowCloud{latency: latency, reading: map[string]int{}, read: map[string]int{}}
}

func (c *slowCloud) begin(project string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.reading[project]++; c.reading[project] > 1 {
		c.twice++
	}
}

func (c *slowCloud) end(project string, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.reading[project]--
	if err == nil {
		c.read[project]++
		if c.ended != nil {
			c.ended()
		}
	}
}

// count is how many projects were read.
func (c *slowCloud) count() (projects, calls int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, n := range c.read {
		calls += n
	}
	return len(c.read), calls
}

// slowSession is a session at a slowCloud.
type slowSession struct {
	session
	cloud  *slowCloud
	begins func() // called before each read, if there is one
}

func (s slowSession) In(context.Context, string) (session, error) { return s, nil }

func (s slowSession) ChangedServers(
	ctx context.Context, projectID string, _ time.Time, _ string,
) ([]domain.Server, string, error) {
	if projectID == "" && !s.cloud.wide.Load() {
		return nil, "", apperr.New(apperr.Forbidden, "no")
	}
	if s.begins != nil {
		s.begins()
	}
	s.cloud.begin(projectID)
	err := s.cloud.wait(ctx)
	s.cloud.end(projectID, err)
	return nil, "", err
}

func (s slowSession) AllServers(ctx context.Context, _, _ string) ([]domain.Server, string, error) {
	return nil, "", s.cloud.wait(ctx)
}

func (s slowSession) CellsUp(ctx context.Context, _ string) error { return s.cloud.wait(ctx) }

func (s slowSession) Server(ctx context.Context, id string) (domain.Server, error) {
	return domain.Server{ID: id, Status: "ACTIVE"}, s.cloud.wait(ctx)
}

func (c *slowCloud) wait(ctx context.Context) error {
	if !flow.Sleep(ctx, c.latency) {
		return apperr.Wrap(apperr.Timeout, ctx.Err(), "nova did not answer in time")
	}
	return nil
}

// service has a session at the cloud.
func (c *slowCloud) service(t *testing.T, url string) *service {
	t.Helper()
	return c.serviceOf(t, url, nil)
}

// serviceOf is service, and calls begins before each read.
func (c *slowCloud) serviceOf(t *testing.T, url string, begins func()) *service {
	t.Helper()
	db, err := postgres.Open(postgres.Config{URL: domain.Secret(url), MaxConns: 2}, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(db.Close)
	login := func(context.Context) (session, error) { return slowSession{cloud: c, begins: begins}, nil }
	s := newService(db, login, func() {})
	s.full, s.unknownAfter, s.pause = time.Hour, time.Minute, time.Second
	return s
}

// tracked makes as many projects with an instance each.
func trackedProjects(t *testing.T, url string, n int) {
	t.Helper()
	_, err := testkit.Pool(t, url).Exec(t.Context(), `
insert into instances (project_id, id, position, name, server_id, state, raw_status, origin, created_at)
select 'p' || n, gen_random_uuid(), 0, 'x', gen_random_uuid()::text, 'active', 'ACTIVE', 'connected',
  now() - interval '10 minutes'
from generate_series(1, $1::int) n`, n)
	if err != nil {
		t.Fatal(err)
	}
}

// deadline is a context whose time is up when the test says so.
type deadline struct {
	context.Context //nolint:containedctx // it is one
	up              chan struct{}
}

// Deadline implements context.Context.
func (d deadline) Deadline() (time.Time, bool) { return time.Now().Add(time.Hour), true }

// Done implements context.Context.
func (d deadline) Done() <-chan struct{} { return d.up }

// Err implements context.Context.
func (d deadline) Err() error {
	select {
	case <-d.up:
		return context.DeadlineExceeded
	default:
		return nil
	}
}

// TestLongUnreadProjectIsNotUnreachable: the time of an event is up when it has read 1200 of 5000 projects. Each
// project is read after some events, and none of the instances was unknown meanwhile, although unknownAfter is
// zero.
func TestLongUnreadProjectIsNotUnreachable(t *testing.T) {
	t.Parallel()
	const projects, most = 5000, 1200
	cloud, url := newSlowCloud(500*time.Microsecond), testkit.Database(t)
	trackedProjects(t, url, projects)
	s := cloud.service(t, url)
	s.unknownAfter = 0
	events := 0
	for read := 0; read < projects && events < 100; events++ {
		ctx, left := deadline{t.Context(), make(chan struct{})}, most
		cloud.ended = func() {
			if left--; left == 0 {
				close(ctx.up)
			}
		}
		_ = s.Poll(ctx)
		read, _ = cloud.count()
	}
	conn := testkit.Connect(t, url)
	unknown := testkit.Scalar[int](t, conn, "select count(*)::int from instances where state = 'unknown'")
	written := testkit.Scalar[int](t, conn, "select count(*)::int from events")
	read, calls := cloud.count()
	if unknown > 0 || written > 0 || read != projects || events < 2 {
		t.Errorf("after %d events %d projects were read by %d calls, %d instances are unknown, %d events were written",
			events, read, calls, unknown, written)
	}
}

// TestLongReplicasShareProjects: one replica reads while the other one does, and no project is read twice. The first
// read of each waits for that of the other.
func TestLongReplicasShareProjects(t *testing.T) {
	t.Parallel()
	const projects = 320
	url := testkit.Database(t)
	trackedProjects(t, url, projects)
	cloud := newSlowCloud(time.Millisecond)
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	var all sync.WaitGroup
	var reads [2]atomic.Int64
	var first atomic.Int64
	both := make(chan struct{})
	for n := range reads {
		s := cloud.serviceOf(t, url, func() {
			if reads[n].Add(1) == 1 && first.Add(1) == 2 {
				close(both)
			}
			select {
			case <-both:
			case <-ctx.Done():
			}
		})
		s.each.add("") // as after its first event
		all.Go(func() {
			if err := s.Poll(ctx); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	if read, calls := cloud.count(); read != projects || calls != projects || cloud.twice > 0 {
		t.Errorf("%d projects were read by %d calls, %d at the same time", read, calls, cloud.twice)
	}
	if one, two := reads[0].Load(), reads[1].Load(); one < shardSize || two < shardSize {
		t.Errorf("one replica read %d projects, the other %d", one, two)
	}
}

// TestLongProjectsOfDeadReplica are read by another one when its claims are over.
func TestLongProjectsOfDeadReplica(t *testing.T) {
	t.Parallel()
	const projects = 100
	url := testkit.Database(t)
	trackedProjects(t, url, projects)
	cloud, conn := newSlowCloud(time.Millisecond), testkit.Connect(t, url)
	other := cloud.service(t, url)
	if err := other.polls.Prepare(t.Context()); err != nil {
		t.Fatal(err)
	}
	dead := domain.NewClaim() // it claimed a shard, and is not heard of again
	claimed, err := other.polls.ClaimDue(t.Context(), dead, time.Hour, time.Now().Add(time.Hour), shardSize)
	if err != nil || len(claimed) != shardSize {
		t.Fatalf("%d projects were claimed: %v", len(claimed), err)
	}
	poll := func(want int) {
		t.Helper()
		if err := other.Poll(t.Context()); err != nil {
			t.Fatal(err)
		}
		if read, _ := cloud.count(); read != want {
			t.Errorf("%d projects were read, want %d", read, want)
		}
	}
	poll(projects - shardSize)
	// as time would end it
	_, err = conn.Exec(t.Context(), "update polls set claimed_until = now() where claim_id = $1", dead.ID)
	if err != nil {
		t.Fatal(err)
	}
	poll(projects)
	// Should it come back after all, it writes nothing.
	claimed[0].Since = time.Now().Add(time.Hour)
	if err := other.polls.RecordRead(t.Context(), dead, claimed[:1]); err != nil {
		t.Fatal(err)
	}
	if n := testkit.Scalar[int](t, conn,
		"select count(*)::int from polls where since > now() or claim_id is not null"); n != 0 {
		t.Errorf("%d projects were written or are claimed", n)
	}
}

// hanging fakes a Nova that hangs over the project "slow" until all servers of the other one were stopped.
type hanging struct {
	session
	project string
	left    *sync.WaitGroup
}

func (h hanging) In(_ context.Context, projectID string) (session, error) {
	h.project = projectID
	return h, nil
}

func (h hanging) StopServer(ctx context.Context, _ string) error {
	if h.project != "slow" {
		h.left.Done()
		return nil
	}
	stopped := make(chan struct{})
	go func() { h.left.Wait(); close(stopped) }()
	select {
	case <-stopped:
		return nil
	case <-ctx.Done():
		return errors.New("the other project's order waits for this one")
	}
}

// TestHangingNovaDelaysOnlyItsProject: the order of another project is worked on although all older ones hang.
func TestHangingNovaDelaysOnlyItsProject(t *testing.T) {
	t.Parallel()
	var left sync.WaitGroup
	left.Add(1)
	s, store, conn := newReconciler(t, hanging{left: &left})
	for n := range 4 {
		project := map[bool]string{true: "slow", false: "other"}[n < 3]
		order, claim := placedIn(t, store, project, domain.OrderSpec{Stopped: true}, 1)
		active := order.Instances[0]
		active.Observe(domain.Server{ID: string(rune('a' + n)), Name: "web", Status: "ACTIVE"})
		err := errors.Join(store.Decide(t.Context(), claim, active), store.Release(t.Context(), order, claim))
		if err != nil {
			t.Fatal(err)
		}
	}
	if err := s.reconcileOrders(t.Context()); err != nil {
		t.Error(err)
	}
	if n := testkit.Scalar[int](t, conn, "select count(*)::int from instances where state = 'updating'"); n != 4 {
		t.Errorf("%d of 4 servers are being stopped", n)
	}
}

// TestPassEnds: a pass begins no more orders after passFor, so that those that hang keep none waiting for long.
func TestPassEnds(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var list []domain.RunningOrder
		for range 50 {
			list = append(list, domain.RunningOrder{ProjectID: "slow", ID: uuid.New()})
		}
		list = append(list, domain.RunningOrder{ProjectID: "other", ID: uuid.New()})
		began, calls := time.Now(), map[string]int{}
		var other time.Duration
		var mu sync.Mutex
		read := func(context.Context, domain.RunningOrder, int) ([]domain.RunningOrder, error) { return list, nil }
		eachOrder(t.Context(), read, func(o domain.RunningOrder) error {
			mu.Lock()
			calls[o.ProjectID]++
			mu.Unlock()
			if o.ProjectID == "other" {
				other = time.Since(began)
				return nil
			}
			time.Sleep(stepsClaim * 2 / 3)
			return nil
		})
		if calls["slow"] != 1 || calls["other"] != 1 || other != 0 || time.Since(began) != stepsClaim*2/3 {
			t.Errorf("calls %v, the other order after %s, all after %s", calls, other, time.Since(began))
		}
	})
}

// TestPages: all running orders are read, a page at a time; the last one may be empty.
func TestPages(t *testing.T) {
	t.Parallel()
	for _, orders := range []int{0, 1, ordersPerPage, 2*ordersPerPage + 1} {
		var largest atomic.Int64
		list := func(_ context.Context, after domain.RunningOrder, limit int) (page []domain.RunningOrder, _ error) {
			next := int(after.UpdatedAt.Unix())
			if after.UpdatedAt.IsZero() {
				next = 0
			}
			for n := next + 1; n <= orders && len(page) < limit; n++ {
				page = append(page,
					domain.RunningOrder{ProjectID: "p", ID: uuid.New(), UpdatedAt: time.Unix(int64(n), 0)})
			}
			largest.Store(max(largest.Load(), int64(len(page))))
			return page, nil
		}
		var calls atomic.Int64
		errs := eachOrder(t.Context(), list, func(domain.RunningOrder) error { calls.Add(1); return nil })
		if int(calls.Load()) != orders || largest.Load() > ordersPerPage || errors.Join(errs...) != nil {
			t.Errorf("%d orders: %d calls, %d in a page, %v", orders, calls.Load(), largest.Load(), errs)
		}
	}
}

// TestAttemptedOrders: orders that a pass attempted, and which come after all others for that, are not attempted again.
func TestAttemptedOrders(t *testing.T) {
	t.Parallel()
	var orders []domain.RunningOrder
	for range ordersPerPage {
		orders = append(orders, domain.RunningOrder{ProjectID: "p", ID: uuid.New()})
	}
	pages := 0
	list := func(context.Context, domain.RunningOrder, int) ([]domain.RunningOrder, error) {
		if pages++; pages > 9 {
			return nil, nil
		}
		return orders, nil
	}
	calls := 0
	eachOrder(t.Context(), list, func(domain.RunningOrder) error { calls++; return nil })
	if calls != ordersPerPage {
		t.Errorf("%d attempts of %d orders", calls, ordersPerPage)
	}
}
