package pollinstances

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"time"

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
	cloud *slowCloud
}

func (s slowSession) In(context.Context, string) (session, error) { return s, nil }

func (s slowSession) ChangedServers(
	ctx context.Context, projectID string, _ time.Time, _ string,
) ([]domain.Server, string, error) {
	if projectID == "" && !s.cloud.wide.Load() {
		return nil, "", apperr.New(apperr.Forbidden, "no")
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

// at is a service with a session at the cloud.
func (c *slowCloud) service(t *testing.T, url string) *service {
	t.Helper()
	db, err := postgres.Open(postgres.Config{URL: domain.Secret(url), MaxConns: 2}, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(db.Close)
	s := newService(db, func(context.Context) (session, error) { return slowSession{cloud: c}, nil }, func() {})
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

// TestLongUnreadProjectIsNotUnreachable: one event can read only some of 5000 projects, as if each call took 150 ms.
// Each is read after some events, and none of the instances was unknown meanwhile, although that takes longer than
// POLL_UNKNOWN_AFTER.
func TestLongUnreadProjectIsNotUnreachable(t *testing.T) {
	t.Parallel()
	const projects = 5000
	cloud, url := newSlowCloud(500*time.Microsecond), testkit.Database(t)
	trackedProjects(t, url, projects)
	s := cloud.service(t, url)
	s.unknownAfter = 100 * time.Millisecond
	events := 0
	for read := 0; read < projects && events < 100; events++ {
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
		_ = s.Poll(ctx)
		cancel()
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

// TestLongReplicasShareProjects the projects: both together take half of the time, no project is read twice at once,
// and what one has claimed that dies is read by the other one.
func TestLongReplicasShareProjects(t *testing.T) {
	t.Parallel()
	const projects = 320
	url := testkit.Database(t)
	trackedProjects(t, url, projects)
	round := func(replicas int) time.Duration {
		cloud := newSlowCloud(50 * time.Millisecond)
		began := time.Now()
		var all sync.WaitGroup
		for range replicas {
			s := cloud.service(t, url)
			s.each.Store("", true) // as after its first event
			all.Go(func() {
				if err := s.Poll(t.Context()); err != nil {
					t.Error(err)
				}
			})
		}
		all.Wait()
		took := time.Since(began)
		if read, calls := cloud.count(); read != projects || calls != projects || cloud.twice > 0 {
			t.Errorf("%d replicas read %d projects by %d calls, %d at the same time",
				replicas, read, calls, cloud.twice)
		}
		return took
	}
	one, two := round(1), round(2)
	if t.Logf("one replica takes %s, two take %s", one, two); two > one*7/10 {
		t.Errorf("two replicas take %s, one takes %s", two, one)
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
	claimed, err := other.polls.ClaimDue(t.Context(), dead, claimFor, time.Now().Add(time.Hour), shardSize)
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
