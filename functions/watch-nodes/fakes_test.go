package watchnodes

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/nodes"
	"github.com/cloudfn/cloudfn/shared/postgres"
	"github.com/cloudfn/cloudfn/shared/run"
	"github.com/cloudfn/cloudfn/shared/testkit"
)

// fakeNova is a cloud of hosts that stop reporting when a test says so: a real one takes minutes for that.
type fakeNova struct {
	nodes.DrainCloud // nothing is moved

	mu       sync.Mutex
	hosts    []domain.ComputeHost
	read     func(*fakeNova) // before each read
	reads    int             // polls
	isAgain  bool            // the poll has read the reports, and reads the services, too
	disabled int
}

func (f *fakeNova) ComputeServices(context.Context) ([]domain.ComputeHost, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if !f.isAgain {
		f.reads++
		if f.read != nil {
			f.read(f)
		}
	}
	f.isAgain = false
	return append([]domain.ComputeHost{}, f.hosts...), nil
}

func (f *fakeNova) HostReports(ctx context.Context) (reports []domain.ComputeHost, err error) {
	all, err := f.ComputeServices(ctx)
	for _, h := range all {
		if h.IsEnabled {
			reports = append(reports, h)
			f.isAgain = f.isAgain || !h.IsUp
		}
	}
	return reports, err
}

func (f *fakeNova) ComputeService(ctx context.Context, name string) (domain.ComputeHost, error) {
	all, err := f.ComputeServices(ctx)
	for _, h := range all {
		if h.Name == name {
			return h, err
		}
	}
	return domain.ComputeHost{}, apperr.New(apperr.NotFound, "no host")
}

func (*fakeNova) DescribeHosts(context.Context, []domain.ComputeHost, string) (string, error) {
	return "", nil
}

func (f *fakeNova) DisableService(_ context.Context, id, reason string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.disabled++
	for i := range f.hosts {
		if f.hosts[i].ServiceID == id {
			f.hosts[i].IsEnabled, f.hosts[i].DisabledReason = false, reason
		}
	}
	return nil
}

// reported sets when all hosts have reported last.
func (f *fakeNova) reported(ago time.Duration) {
	for i := range f.hosts {
		f.hosts[i].SeenAt, f.hosts[i].IsUp = time.Now().Add(-ago), ago < time.Minute
	}
}

func (f *fakeNova) Session(context.Context) (session, error) { return f, nil }

func (*fakeNova) Forget(error) {}

// newFakeNova is a cloud with these hosts, which have just reported.
func newFakeNova(names ...string) *fakeNova {
	f := &fakeNova{}
	for _, name := range names {
		f.hosts = append(f.hosts, domain.ComputeHost{
			Name: name, Zone: "nova", ServiceID: "id-" + name, IsEnabled: true,
		})
	}
	f.reported(0)
	return f
}

// watching is a service that watches a fake cloud, with a real database.
type watching struct {
	*service
	*testing.T

	nova *fakeNova
	conn *pgx.Conn
}

func watch(t *testing.T, hosts ...string) watching {
	t.Helper()
	database := testkit.Database(t)
	db, err := postgres.Open(postgres.Config{URL: domain.Secret(database), MaxConns: 4}, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(db.Close)
	nova := newFakeNova(hosts...)
	s := newService(run.Deps{DB: db, Wake: func(...string) {}})
	s.nodes, s.drains = postgres.Nodes{DB: db, EventProject: "ops"}, postgres.Drains{DB: db, EventProject: "ops"}
	s.account, s.againAfter = nova, time.Millisecond
	s.watcher = nodes.Watcher{
		Nodes: s.nodes, Drains: s.drains, Now: db.Now, Suspect: 75 * time.Second, Down: 180 * time.Second, Parallel: 2,
		ServerTimeout: time.Minute, Share: 20,
	}
	return watching{s, t, nova, testkit.Connect(t, database)}
}

// tick does what a tick does before it waits for drains.
func (w watching) tick() {
	w.Helper()
	w.watch(w.Context())
}

// text is what a statement returns.
func (w watching) text(sql string, args ...any) string {
	w.Helper()
	return testkit.Scalar[string](w, w.conn, sql, args...)
}

func (w watching) exec(sql string) {
	w.Helper()
	if _, err := w.conn.Exec(w.Context(), sql); err != nil {
		w.Fatal(err)
	}
}

// events are those of a type, in their order.
func (w watching) events(kind string) string {
	w.Helper()
	return w.text(`
select coalesce(string_agg(concat_ws('>', data->>'previous_status', data->>'status'), ' ' order by at, seq), '')
from events where type = $1`, kind)
}
