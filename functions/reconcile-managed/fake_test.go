package reconcilemanaged

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/cloudfn/cloudfn/shared/actions"
	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/managed"
	"github.com/cloudfn/cloudfn/shared/orders"
	"github.com/cloudfn/cloudfn/shared/postgres"
	"github.com/cloudfn/cloudfn/shared/testkit"
)

// fakeWorld is a project with a deployment, a real database, whose times a test moves, and a Nova that the test
// controls.
type fakeWorld struct {
	db      *postgres.DB
	rows    *pgxpool.Pool
	store   postgres.Managed
	nova    *fakeNova
	change  func(*domain.DeploymentSpec) // of what is declared; nil = nothing
	current domain.Managed
}

func newFakeWorld(t *testing.T) *fakeWorld {
	t.Helper()
	database := testkit.Database(t)
	db, err := postgres.Open(postgres.Config{URL: domain.Secret(database), MaxConns: 4}, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(db.Close)
	return &fakeWorld{
		db: db, rows: testkit.Pool(t, database), store: postgres.Managed{DB: db}, nova: newFakeNova(time.Now),
	}
}

// declare declares the deployment web, or repeats one of its revisions.
func (w *fakeWorld) declare(t *testing.T, count int, flavor string, repeats int) {
	t.Helper()
	most := 1
	spec := domain.DeploymentSpec{
		MachineSpec: domain.MachineSpec{
			Flavor: flavor, Image: "cirros", Networks: []string{"private"}, Update: domain.UpdateReplace,
		},
		Count: count, MaxUnavailable: &most,
	}
	if w.change != nil {
		w.change(&spec)
	}
	w.current = w.declareAs(t, domain.KindDeployment, "web", spec, repeats)
}

// declareAs declares a resource.
func (w *fakeWorld) declareAs(t *testing.T, kind domain.Kind, name string, spec any, repeats int) domain.Managed {
	t.Helper()
	text, err := json.Marshal(spec)
	if err != nil {
		t.Fatal(err)
	}
	provider, _ := domain.ProviderOf(kind)
	made := domain.NewManaged{
		Managed: domain.Managed{
			ID: uuid.Must(uuid.NewV7()), ProjectID: "p", DomainID: "d", UserID: "u", Kind: kind,
			Name: name, Provider: provider.Name, Labels: map[string]string{}, Repair: domain.RepairManual,
			MaxRevisions: 10, Actor: &domain.Actor{UserID: "u", ProjectID: "p"},
		},
		Delegation: domain.ManagedDelegation{New: &domain.Connection{
			ID: uuid.Must(uuid.NewV7()), ProjectID: "p", DomainID: "d", UserID: "u", Name: "managed resources",
			Kind: domain.TrustConnection, Managed: true, Status: domain.ConnectionActive, DelegationID: "t",
			ActsAs:  domain.ActsAs{UserID: "u", ProjectID: "p", Roles: []string{"member"}},
			Actions: []domain.Permission{}, UsableBy: []string{}, Flavors: []domain.Flavor{},
			ExpiresAt: time.Now().Add(24 * time.Hour), TrustExpiresAt: time.Now().Add(24 * time.Hour),
		}},
	}
	if before, err := w.store.Get(t.Context(), "p", kind, name); err == nil {
		made.Managed, made.Before, made.Repeats = before, before.Version, repeats
		made.Delegation = domain.ManagedDelegation{ConnectionID: before.ConnectionID}
	}
	made.Spec = text
	stored, _, err := w.store.Declare(t.Context(), made)
	if err != nil {
		t.Fatal(err)
	}
	return stored
}

func (w *fakeWorld) delete(t *testing.T) {
	t.Helper()
	before := w.get(t)
	if _, err := w.store.Delete(t.Context(), before, nil); err != nil {
		t.Fatal(err)
	}
}

func (w *fakeWorld) get(t *testing.T) domain.Managed {
	t.Helper()
	m, err := w.store.Get(t.Context(), "p", domain.KindDeployment, "web")
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// trusts opens every trust to the fake Nova.
type trusts struct{ cloud managed.Cloud }

func (s trusts) Open(context.Context, domain.Connection, string) (managed.Session, error) {
	return managed.Session{Cloud: s.cloud, ProjectID: "p", DomainID: "d", UserID: "u"}, nil
}
func (trusts) Lose(context.Context, domain.Connection) {}
func (trusts) Forget(uuid.UUID)                        {}

// replica is a reconcile-managed that dies where c says.
func (w *fakeWorld) replica(c *crasher) managed.Engine {
	instances := postgres.Instances{DB: w.db}
	machines := &managed.MachineDriver{
		Orders: orders.Engine{
			Orders: crashingOrders{postgres.Orders{DB: w.db}, c}, Instances: instances, Fence: createFence,
			Wake: func() {},
		},
		Actions: actions.Engine{Instances: instances}, Instances: instances,
	}
	return managed.Engine{
		Store: crashingStore{w.store, c}, Sessions: trusts{crashingNova{w.nova, c}}, Nodes: postgres.Nodes{DB: w.db},
		Drivers: map[domain.Kind]managed.Driver{
			domain.KindDeployment: machines, domain.KindConfigmap: managed.ConfigmapDriver{},
		},
		Wake: func(...string) {},
	}
}

// pass moves all times into the past.
func (w *fakeWorld) pass(t *testing.T, d time.Duration) {
	t.Helper()
	for _, sql := range []string{
		"update managed_projects set due_at = due_at - $1::interval, scan_at = scan_at - $1::interval, " +
			"claimed_until = claimed_until - $1::interval",
		"update managed set next_at = next_at - $1::interval",
		"update managed_members set retry_at = retry_at - $1::interval, updated_at = updated_at - $1::interval, " +
			"missed_at = missed_at - $1::interval",
		"update orders set claimed_until = claimed_until - $1::interval",
		"update create_calls set until = until - $1::interval",
	} {
		w.exec(t, sql, d)
	}
}

func (w *fakeWorld) exec(t *testing.T, sql string, args ...any) {
	t.Helper()
	if _, err := w.rows.Exec(t.Context(), sql, args...); err != nil {
		t.Fatal(err)
	}
}

// tick is a minute with an event at its begin, for each replica: it works while something is due, and Nova ends what
// was begun between two rounds.
func (w *fakeWorld) tick(t *testing.T, replicas []managed.Engine) {
	t.Helper()
	const dueSQL = `
select coalesce(min(greatest(due_at, claimed_until) - now()), '1 day')::interval from managed_projects`
	left := time.Minute
	for {
		due := max(testkit.Scalar[time.Duration](t, w.rows, dueSQL), 0)
		if due >= left {
			w.pass(t, left)
			return
		}
		w.pass(t, due)
		left -= due + time.Millisecond // so that it ends
		var all sync.WaitGroup
		for _, e := range replicas {
			all.Go(func() { w.round(t, e) })
		}
		all.Wait()
		w.nova.settle()
	}
}

// round works on the project if it is due and not claimed.
func (w *fakeWorld) round(t *testing.T, e managed.Engine) {
	due, err := w.store.Queue().Claim(t.Context(), claimFor, 1, nil)
	if err != nil {
		t.Error(err)
		return
	}
	for _, row := range due.Rows {
		err := e.Run(t.Context(), due.Claim, row.Value)
		isRace := errors.Is(err, domain.ErrFenced) || errors.Is(err, domain.ErrChanged)
		if err != nil && !errors.Is(err, errCrash) && !isRace {
			t.Errorf("the round: %v", err)
		}
	}
}

// becomesQuiet ticks until all is as declared, at most three times. Replicas that have died are replaced.
func (w *fakeWorld) becomesQuiet(t *testing.T, crashers ...*crasher) {
	t.Helper()
	for range mostTicks {
		replicas := make([]managed.Engine, len(crashers))
		for n, c := range crashers {
			if c.isDead() {
				c = &crasher{}
			}
			replicas[n] = w.replica(c)
		}
		if w.tick(t, replicas); w.isQuiet(t) {
			return
		}
	}
	m, _ := w.store.Get(t.Context(), "p", domain.KindDeployment, "web")
	t.Fatalf("after %d ticks Nova has %q; %s, %s, %+v", mostTicks, w.nova.active(), m.Status, m.Reason, m.Members)
}

// isQuiet reports whether the deployment is as declared, or deleted.
func (w *fakeWorld) isQuiet(t *testing.T) bool {
	t.Helper()
	m, err := w.store.Get(t.Context(), "p", domain.KindDeployment, "web")
	if apperr.CodeOf(err) == apperr.NotFound {
		return testkit.Scalar[int](t, w.rows, "select count(*)::int from managed_projects") == 0
	}
	return err == nil && m.Status == domain.ManagedReady && m.ObservedRevision == m.Revision && m.NextAt.IsZero()
}

// check checks what is there in the end: exactly these servers, which took so many creations.
func (w *fakeWorld) check(t *testing.T, servers string, creates int) {
	t.Helper()
	if got := w.nova.active(); got != servers || w.nova.creates != creates {
		t.Errorf("Nova has %q after %d creations, want %q after %d", got, w.nova.creates, servers, creates)
	}
	count := len(w.nova.servers)
	for sql, want := range map[string]int{
		"select count(*)::int from managed_members":                                                    count,
		"select count(*)::int from managed_members where status = 'ready' and object_id <> ''":         count,
		"select count(*)::int from managed_projects where claimed_until > now() + interval '1 minute'": 0,
		"select count(*)::int from connections where status = 'active'":                                min(count, 1),
		"select count(*)::int from managed_projects":                                                   min(count, 1),
		`select count(*)::int from (select from events group by subject, seq having count(*) > 1) x`:   0,
	} {
		if got := testkit.Scalar[int](t, w.rows, sql); got != want {
			t.Errorf("%s: got %d, want %d", sql, got, want)
		}
	}
}

// fakeNova is Nova as far as servers are declared: the real one cannot be stopped between two calls, nor made to fail
// at will. A server is BUILD until settle.
type fakeNova struct {
	managed.Cloud // what it does not have

	mu      sync.Mutex
	now     func() time.Time
	servers []domain.Server
	creates int
	texts   map[string]string // the user_data of servers, by their ids
	calls   map[string]int    // by name
}

func newFakeNova(now func() time.Time) *fakeNova {
	return &fakeNova{now: now, texts: map[string]string{}, calls: map[string]int{}}
}

// call counts a call, and locks the servers until the returned function is called.
func (f *fakeNova) call(name string) (unlock func()) {
	f.mu.Lock()
	f.calls[name]++
	return f.mu.Unlock
}

func (*fakeNova) CellsUp(context.Context, string) error { return nil }

func (f *fakeNova) Flavors(context.Context) ([]domain.Flavor, error) {
	defer f.call("flavors")()
	return []domain.Flavor{
		{ID: "1", Name: "tiny", VCPUs: 1, RAMMB: 64, DiskGB: 1},
		{ID: "2", Name: "small", VCPUs: 1, RAMMB: 128, DiskGB: 1},
	}, nil
}

func (f *fakeNova) SecurityGroups(context.Context) ([]domain.SecurityGroup, error) {
	return []domain.SecurityGroup{{ID: "g1", Name: "default"}}, nil
}

func (f *fakeNova) Networks(context.Context) ([]domain.Network, error) {
	defer f.call("networks")()
	return []domain.Network{{ID: "n", Name: "private", Subnets: []domain.Subnet{{ID: "s"}}}}, nil
}

func (f *fakeNova) Images(_ context.Context, name string) ([]domain.Image, error) {
	defer f.call("images")()
	return []domain.Image{{ID: "i", Name: name, Status: "active"}}, nil
}

func (*fakeNova) Quota(context.Context) (domain.Quota, error) {
	none := domain.QuotaItem{Max: -1}
	return domain.Quota{Instances: none, VCPUs: none, RAMMB: none}, nil
}

func (*fakeNova) ServerPorts(context.Context, string, string) ([]domain.Port, error) {
	return nil, apperr.New(apperr.Forbidden, "the ports are withheld")
}

func (*fakeNova) DeleteServerGroups(context.Context, string) error { return nil }

func (f *fakeNova) MarkedServers(_ context.Context, tag string) ([]domain.Server, error) {
	defer f.call("list")()
	return f.tagged(tag), nil
}

func (f *fakeNova) Servers(_ context.Context, q domain.ServerQuery) ([]domain.Server, bool, error) {
	defer f.call("list")()
	return f.tagged(q.Tags...), false, nil
}

func (f *fakeNova) tagged(tags ...string) (found []domain.Server) {
	for _, s := range f.servers {
		if !slices.ContainsFunc(tags, func(tag string) bool { return !slices.Contains(s.Tags, tag) }) {
			s.Flavor.ID, s.Tags = "", slices.Clone(s.Tags)
			found = append(found, s)
		}
	}
	return found
}

func (f *fakeNova) Server(_ context.Context, id string) (domain.Server, error) {
	defer f.call("get")()
	for _, s := range f.servers {
		if s.ID == id {
			return s, nil
		}
	}
	return domain.Server{}, apperr.New(apperr.NotFound, "no server %s", id)
}

func (f *fakeNova) CreateServer(
	_ context.Context, spec domain.LaunchSpec, name string, userData domain.Secret, tags []string,
) (string, error) {
	defer f.call("create")()
	f.creates++
	id, now := uuid.NewString(), f.now()
	f.texts[id] = userData.Reveal()
	f.servers = append(f.servers, domain.Server{
		ID: id, Name: name, Status: "BUILD", Tags: tags, ProjectID: "p", UserID: "u", CreatedAt: now, UpdatedAt: now,
		Image: &domain.ImageRef{ID: spec.ImageID}, Metadata: spec.Metadata,
		Flavor: domain.FlavorRef{Name: map[string]string{"1": "tiny", "2": "small"}[spec.FlavorID]},
	})
	return id, nil
}

// EnsureFloatingIP is never called: managed servers have no floating IPs.
func (f *fakeNova) EnsureFloatingIP(
	context.Context, string, domain.FloatingIPAttach,
) (domain.FloatingIP, bool, error) {
	return domain.FloatingIP{}, false, errors.New("a managed server has no floating IP")
}

// ReleaseFloatingIPs is never called, as EnsureFloatingIP is not.
func (f *fakeNova) ReleaseFloatingIPs(context.Context, string, string) error {
	return errors.New("a managed server has no floating IP")
}

// SetVolumes is never called: the volumes of managed servers stay as their create call leaves them.
func (f *fakeNova) SetVolumes(context.Context, string, []domain.ServerVolume) error {
	return errors.New("a managed server needs no step for its volumes")
}

func (f *fakeNova) DeleteServer(_ context.Context, id string) error {
	defer f.call("delete")()
	for n := range f.servers {
		if f.servers[n].ID == id {
			f.servers[n].Task = "deleting"
		}
	}
	return nil
}

// settle ends what Nova has begun.
func (f *fakeNova) settle() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.servers = slices.DeleteFunc(f.servers, func(s domain.Server) bool { return s.Task == "deleting" })
	for n := range f.servers {
		f.servers[n].Status = "ACTIVE"
	}
}

// active are the names of the servers that are ACTIVE, each with its flavor, and those of others with their status.
func (f *fakeNova) active() string {
	f.mu.Lock()
	defer f.mu.Unlock()
	var all []string
	for _, s := range f.servers {
		text := s.Name + ":" + s.Flavor.Name
		if s.Status != "ACTIVE" || s.Task != "" {
			text += fmt.Sprintf("(%s %s)", s.Status, s.Task)
		}
		all = append(all, text)
	}
	slices.Sort(all)
	return strings.Join(all, " ")
}
