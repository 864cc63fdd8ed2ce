package reconcilemanaged

import (
	"encoding/json"
	"math/rand/v2"
	"os"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/postgres"
	"github.com/cloudfn/cloudfn/shared/testkit"
)

func TestMain(m *testing.M) {
	code := m.Run()
	testkit.RemoveBinary()
	os.Exit(code)
}

// world is a project whose user declares resources, and a database.
type world struct {
	*testkit.Project

	database string
	conn     *pgxpool.Pool
	db       *postgres.DB
	store    postgres.Managed
}

func newWorld(t *testing.T) *world {
	t.Helper()
	w := &world{Project: testkit.NewProject(t), database: testkit.Database(t)}
	w.conn = testkit.Pool(t, w.database)
	db, err := postgres.Open(postgres.Config{URL: domain.Secret(w.database), MaxConns: 2}, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(db.Close)
	w.db, w.store = db, postgres.Managed{DB: db}
	return w
}

// trust is a connection of the user, with a new trust to the service account for the role member, or for some roles.
func (w *world) trust(t *testing.T, roles ...string) *domain.Connection {
	t.Helper()
	if len(roles) == 0 {
		roles = []string{"member"}
	}
	// Keystone has at most one trust of the same users, project and second of its end.
	until := time.Now().Add(2*time.Hour + rand.N(10*time.Minute)).UTC()
	return &domain.Connection{
		ID: uuid.Must(uuid.NewV7()), ProjectID: w.ID, DomainID: w.DomainID, UserID: w.UserID, Name: "managed resources",
		Kind: domain.TrustConnection, Managed: true, Status: domain.ConnectionActive,
		DelegationID:   w.Trust(t, testkit.Trustee(t), true, until.Add(time.Hour), roles...),
		TrustExpiresAt: until.Add(time.Hour),
		ActsAs:         domain.ActsAs{UserID: w.UserID, ProjectID: w.ID, Roles: roles},
		Actions:        []domain.Permission{}, UsableBy: []string{}, Flavors: []domain.Flavor{}, ExpiresAt: until,
	}
}

// declare stores a declaration as the function managed does, with a delegation that lasts until then.
func (w *world) declare(
	t *testing.T, kind domain.Kind, name string, spec any, by *domain.Connection, until time.Time,
) domain.Managed {
	t.Helper()
	text, err := json.Marshal(spec)
	if err != nil {
		t.Fatal(err)
	}
	provider, _ := domain.ProviderOf(kind)
	made := domain.NewManaged{
		Managed: domain.Managed{
			ID: uuid.Must(uuid.NewV7()), ProjectID: w.ID, DomainID: w.DomainID, UserID: w.UserID, Kind: kind,
			Name: name, Provider: provider.Name, Labels: map[string]string{}, Repair: domain.RepairManual,
			MaxRevisions: 10, Actor: &domain.Actor{UserID: w.UserID, ProjectID: w.ID},
		},
		Delegation: domain.ManagedDelegation{New: by, Kinds: []domain.Kind{kind}, Until: until},
	}
	if before, err := w.store.Get(t.Context(), w.ID, kind, name); err == nil {
		made.Managed, made.Before = before, before.Version
	}
	made.Spec = text
	if kind == domain.KindSecret {
		made.Secrets = []byte("sealed")
	}
	m, _, err := w.store.Declare(t.Context(), made)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// get reads a resource.
func (w *world) get(t *testing.T, kind domain.Kind, name string) domain.Managed {
	t.Helper()
	m, err := w.store.Get(t.Context(), w.ID, kind, name)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// exec changes rows as only time does otherwise.
func (w *world) exec(t *testing.T, sql string, args ...any) {
	t.Helper()
	if _, err := w.conn.Exec(t.Context(), sql, args...); err != nil {
		t.Fatal(err)
	}
}
