package nodes

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/domain"
)

// fakeNova is a cloud for faults that a real one cannot be made to have. test/process drains real hosts.
type fakeNova struct {
	sync.Mutex

	host      domain.ComputeHost
	servers   map[string]domain.Server
	migration map[string]domain.Migration
	fault     string
	fails     map[string]error // by the name of the call
	calls     []string
}

func (f *fakeNova) call(name, id string) error {
	f.Lock()
	defer f.Unlock()
	f.calls = append(f.calls, name+" "+id)
	if err := f.fails[name+" "+id]; err != nil {
		return err
	}
	return f.fails[name]
}

func (f *fakeNova) ComputeService(context.Context, string) (domain.ComputeHost, error) {
	return f.host, f.fails["service"]
}

func (f *fakeNova) HostServers(_ context.Context, host string) (found []domain.Server, err error) {
	for _, id := range slices.Sorted(maps.Keys(f.servers)) {
		s := f.servers[id]
		if s.Host == host {
			found = append(found, s)
		}
	}
	return found, f.fails["list"]
}

func (f *fakeNova) Server(_ context.Context, id string) (domain.Server, error) {
	f.Lock()
	defer f.Unlock()
	found, ok := f.servers[id]
	if !ok {
		return found, apperr.New(apperr.NotFound, "no server")
	}
	return found, cmp.Or(f.fails["server "+id], f.fails["server"])
}

func (f *fakeNova) LiveMigrate(_ context.Context, id string) error { return f.call("live", id) }

func (f *fakeNova) ColdMigrate(_ context.Context, id string) error { return f.call("cold", id) }

func (f *fakeNova) ConfirmMigration(_ context.Context, id string) error { return f.call("confirm", id) }

func (f *fakeNova) LastMigration(_ context.Context, id, _ string) (domain.Migration, bool, error) {
	f.Lock()
	defer f.Unlock()
	m, found := f.migration[id]
	return m, found, f.fails["migration "+id]
}

func (f *fakeNova) MigrationFault(context.Context, string) (string, error) {
	return f.fault, f.fails["fault"]
}

// fakeDrains keeps one drain.
type fakeDrains struct {
	sync.Mutex

	saved   domain.Drain
	servers map[string]domain.DrainServer
	fenced  bool
	starts  int // servers that may start before the drain is cancelled; 0 = all
	started int
	onStart func(domain.DrainServer)
}

func (f *fakeDrains) SetServers(
	_ context.Context, _ domain.Claim, _ domain.Drain, servers ...domain.DrainServer,
) error {
	f.Lock()
	defer f.Unlock()
	return f.set(servers...)
}

func (f *fakeDrains) set(servers ...domain.DrainServer) error {
	if f.fenced {
		return domain.ErrFenced
	}
	for _, s := range servers {
		f.servers[s.ServerID] = s
	}
	return nil
}

func (f *fakeDrains) StartServer(
	_ context.Context, _ domain.Claim, _ domain.Drain, server domain.DrainServer,
) (bool, error) {
	f.Lock()
	defer f.Unlock()
	if f.started++; f.starts > 0 && f.started > f.starts {
		return false, nil
	}
	if f.onStart != nil {
		f.onStart(server)
	}
	return true, f.set(server)
}

func (f *fakeDrains) Save(_ context.Context, _ domain.Claim, drain *domain.Drain, _ time.Duration) error {
	f.saved = *drain
	return nil
}

var epoch = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

// oneServer is a host a with a server, and a drain of it with the server as it is stored.
func oneServer(status string, stored domain.DrainServer) (*fakeNova, *fakeDrains, domain.Drain) {
	nova := &fakeNova{
		host:    domain.ComputeHost{Name: "a", IsUp: true},
		servers: map[string]domain.Server{"1": {ID: "1", Name: "one", Status: status, Host: "a"}},
		fails:   map[string]error{}, migration: map[string]domain.Migration{},
	}
	drain := domain.Drain{
		ID: uuid.New(), Node: "a", Status: domain.DrainRunning, Parallel: 2, ServerTimeout: time.Minute, DueAt: epoch,
	}
	if stored.ServerID != "" {
		drain.Servers = []domain.DrainServer{stored}
	}
	return nova, &fakeDrains{servers: map[string]domain.DrainServer{}}, drain
}

func run(t *testing.T, nova *fakeNova, drains *fakeDrains, drain domain.Drain, now time.Time) error {
	t.Helper()
	status := domain.NodeUp
	if !nova.host.IsUp {
		status = domain.NodeDown
	}
	return Engine{
		Drains: drains,
		Node: func(context.Context, string) (domain.Node, error) {
			return domain.Node{Status: status}, nil
		},
		Cloud: func(context.Context) (DrainCloud, error) { return nova, nova.fails["login"] },
		Wake:  func(...string) {}, Parallel: 2, ServerTimeout: time.Hour,
	}.Run(t.Context(), domain.NewClaim(), drain, now)
}

func moving(method string, attempts int) domain.DrainServer {
	return domain.DrainServer{
		ServerID: "1", Method: method, Status: domain.DrainMigrating, Attempts: attempts, BegunAt: epoch,
	}
}
