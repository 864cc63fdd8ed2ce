package pollinstances

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/postgres"
	"github.com/cloudfn/cloudfn/shared/testkit"
)

// pagedCloud is a session that may list the whole cloud, in pages of two servers, and that records its calls: no
// sandbox has projects that no one read for weeks.
type pagedCloud struct {
	session
	servers []domain.Server
	hangs   string // the list after this server gets no answer

	mu       sync.Mutex
	requests []string
	since    time.Time // the earliest since that a list of changes was requested with
}

func (c *pagedCloud) called(what string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.requests = append(c.requests, what)
}

func (c *pagedCloud) ChangedServers(
	_ context.Context, _ string, since time.Time, _ string,
) ([]domain.Server, string, error) {
	c.called("changes")
	if c.since.IsZero() || since.Before(c.since) {
		c.since = since
	}
	return nil, "", nil
}

func (c *pagedCloud) AllServers(ctx context.Context, _, marker string) ([]domain.Server, string, error) {
	c.called("all after " + marker)
	if marker != "" && marker == c.hangs {
		<-ctx.Done()
		return nil, "", apperr.Wrap(apperr.Timeout, ctx.Err(), "nova did not answer in time")
	}
	begin := 1 + slices.IndexFunc(c.servers, func(s domain.Server) bool { return s.ID == marker })
	page := slices.Clone(c.servers[begin:min(begin+2, len(c.servers))])
	if begin+2 >= len(c.servers) {
		return page, "", nil
	}
	return page, page[1].ID, nil
}

func (c *pagedCloud) Actions(context.Context, string) ([]domain.LoggedAction, error) { return nil, nil }

func (c *pagedCloud) CellsUp(context.Context, string) error { return nil }

func (c *pagedCloud) Server(_ context.Context, id string) (domain.Server, error) {
	c.called("server " + id)
	return domain.Server{}, apperr.New(apperr.NotFound, "no")
}

// poll has a service handle one event, and returns the calls to the cloud.
func (c *pagedCloud) poll(t *testing.T, s *service) []string {
	t.Helper()
	c.requests, c.since = nil, time.Time{}
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
	defer cancel()
	if err := s.Poll(ctx); err != nil {
		t.Fatal(err)
	}
	return c.requests
}

func (c *pagedCloud) service(t *testing.T, url string) *service {
	t.Helper()
	s := newSlowCloud(0).service(t, url)
	s.cloud = newSessions(func(context.Context) (session, error) { return c, nil })
	s.full = 10 * time.Minute
	return s
}

// TestStaleProjects: after weeks without a poll, a project's servers are all read instead of weeks of changes.
func TestStaleProjects(t *testing.T) {
	t.Parallel()
	url := testkit.Database(t)
	trackedProjects(t, url, 2)
	exec := func(sql string) {
		if _, err := testkit.Pool(t, url).Exec(t.Context(), sql); err != nil {
			t.Fatal(err)
		}
	}
	c := &pagedCloud{}
	s := c.service(t, url)
	exec(`insert into polls (project_id, since, full_at) values ('p1', now(), now()), ('p2', now() - interval '3 weeks',
  now() - interval '3 weeks'), ('old', now(), now())`)
	got := c.poll(t, s)
	if len(got) < 2 || got[0] != "changes" || got[1] != "all after " || c.since.Before(time.Now().Add(-5*time.Minute)) {
		t.Errorf("read %q since %s", got, c.since)
	}
	conn := testkit.Connect(t, url)
	if n := testkit.Scalar[int](t, conn,
		"select count(*)::int from polls where project_id <> '' and since > now() - interval '1 minute'"); n != 2 {
		t.Errorf("%d projects are read up to now, want 2", n)
	}
	if n := testkit.Scalar[int](t, conn, "select count(*)::int from polls where project_id = 'old'"); n != 0 {
		t.Error("the row of a project without instances stays")
	}
	exec("update polls set since = now() - interval '3 weeks'")
	if got = c.poll(t, s); !c.since.IsZero() || got[0] != "all after " {
		t.Errorf("read %q since %s", got, c.since)
	}
}

// TestScanResumes where the previous scan stopped: the servers that it had read are not read again, neither by page
// nor by id.
func TestScanResumes(t *testing.T) {
	t.Parallel()
	url := testkit.Database(t)
	c := &pagedCloud{hangs: "s4"}
	for n := range 7 {
		c.servers = append(c.servers, domain.Server{
			ID: fmt.Sprint("s", n+1), ProjectID: "p1", Name: "x", Status: "ACTIVE",
			Addresses: []domain.Address{},
		})
	}
	_, err := testkit.Pool(t, url).Exec(t.Context(), `
insert into instances (project_id, id, position, name, server_id, state, raw_status, origin, created_at)
select 'p1', gen_random_uuid(), 0, 'x', 's' || n, 'active', 'ACTIVE', 'connected', now() - interval '1 hour'
  from generate_series(1, 8) n`)
	if err != nil {
		t.Fatal(err)
	}
	s := c.service(t, url)
	first := c.poll(t, s)
	c.hangs = ""
	second := c.poll(t, c.service(t, url)) // of another replica
	third := c.poll(t, s)
	for n, want := range [][]string{
		{"all after ", "all after s2", "all after s4"},
		{"all after s4", "all after s6", "server s8"},
		{"changes", "server s8"},
	} {
		if diff := cmp.Diff(want, [][]string{first, second, third}[n]); diff != "" {
			t.Errorf("event %d: %s", n+1, diff)
		}
	}
}

// TestWholeCloudIsTriedLater: an account that may not list the whole cloud tries it again some minutes later.
func TestWholeCloudIsTriedLater(t *testing.T) {
	t.Parallel()
	cloud, url := newSlowCloud(0), testkit.Database(t)
	trackedProjects(t, url, 3)
	s := cloud.service(t, url)
	now := time.Now()
	s.each.now = func() time.Time { return now }
	read := func() (whole, single int) {
		t.Helper()
		before := cloud.read[""]
		_, all := cloud.count()
		if err := s.Poll(t.Context()); err != nil {
			t.Fatal(err)
		}
		_, after := cloud.count()
		return cloud.read[""] - before, after - all - (cloud.read[""] - before)
	}
	expect := func(wantWhole, wantSingle int) {
		t.Helper()
		if whole, single := read(); whole != wantWhole || single != wantSingle {
			t.Errorf("the cloud was read %d times, and %d projects, want %d and %d",
				whole, single, wantWhole, wantSingle)
		}
	}
	expect(0, 3)
	cloud.wide.Store(true) // it was given the role
	expect(0, 3)
	now = now.Add(refusedFor)
	expect(1, 0)
}

// connected makes a connection, through which the project's order was placed.
func (w *world) connected(t *testing.T) uuid.UUID {
	t.Helper()
	db, err := postgres.Open(postgres.Config{URL: domain.Secret(w.database), MaxConns: 1}, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(db.Close)
	connection, err := postgres.Connections{DB: db}.Create(t.Context(), domain.Connection{
		ID: uuid.Must(uuid.NewV7()), ProjectID: w.ID, DomainID: w.DomainID, UserID: w.UserID,
		Kind: domain.TrustConnection, DelegationID: "t",
		Actions: []domain.Permission{domain.MayAllocate}, UsableBy: []string{}, Flavors: []domain.Flavor{},
		ExpiresAt: time.Now().Add(time.Hour),
	})
	if err != nil {
		t.Fatal(err)
	}
	id := connection.ID.String()
	w.exec(t, "update orders set connection_id = '"+id+"'")
	w.exec(t, "update instances set state = 'building', raw_status = 'BUILD', connection_id = '"+id+"'")
	return connection.ID
}

// rows are the instances besides the order's, as they are stored.
func (w *world) rows(t *testing.T) []string {
	t.Helper()
	rows, _ := testkit.Pool(t, w.database).Query(context.Background(),
		"select i::text from instances i where order_id is null order by id")
	found, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		t.Fatal(err)
	}
	return found
}

// TestLongRemoteInstancesAreSkipped: instances in another cloud and disconnected ones stay as they are. A disconnected
// instance of a connection still changes its state, but no event reports it. An order through a connection stays
// running: run-connections finalizes it.
func TestLongRemoteInstancesAreSkipped(t *testing.T) {
	t.Parallel()
	w := launched(t, 2)
	connection := w.connected(t)
	// Servers that this cloud's Nova does not know.
	w.exec(t, `insert into instances (project_id, id, position, name, state, raw_status, origin, server_id,
  connection_id, remote, disconnected_at, created_at)
		select '`+w.ID+`', gen_random_uuid(), 0, 'x', state, 'X', 'launched', gen_random_uuid()::text, connection, remote, gone, now() - interval '1 hour'
		from (values ('building', '`+connection.String()+`'::uuid, true, null::timestamptz),
			('unknown', '`+connection.String()+`', true, null),
			('building', null, false, now()),
			('active', '`+connection.String()+`', true, now())) x (state, connection, remote, gone)`)
	w.exec(t, "update instances set disconnected_at = now() where id = '"+w.instances[0]+"'")
	testkit.OpenStack(t, "admin", "server", "delete", "--wait", w.servers[0])
	skipped, reported := w.rows(t), w.states(t, w.instances[0])
	p := w.poller(t, nil, 0)
	for range 2 { // the second reads all servers
		tick(t, p, 204)
		w.exec(t, "update polls set full_at = full_at - interval '1 hour'")
	}
	if diff := cmp.Diff(skipped, w.rows(t)); len(skipped) != 4 || diff != "" {
		t.Error(diff)
	}
	conn := testkit.Connect(t, w.database)
	if state := testkit.Scalar[string](t, conn, "select state from instances where id = $1",
		w.instances[0]); state != "deleted" || w.states(t, w.instances[0]) != reported {
		t.Errorf("the disconnected instance is %s, and its events report %q", state, w.states(t, w.instances[0]))
	}
	w.ends(t, w.instances[1], "active/ACTIVE")
	if n := testkit.Scalar[int](t, conn, "select count(*)::int from events where subject = $1 and connection_id = $2",
		w.instances[1], connection); n != 1 {
		t.Errorf("%d events of the instance are the connection's", n)
	}
	if status := testkit.Scalar[string](t, conn, "select status from orders"); status != "running" {
		t.Errorf("the order through a connection is %s", status)
	}
	w.exec(t, "update orders set connection_id = null")
	tick(t, p, 204)
	if status := testkit.Scalar[string](t, conn, "select status from orders"); status != "done" {
		t.Errorf("an order of its caller's own is %s", status)
	}
}
