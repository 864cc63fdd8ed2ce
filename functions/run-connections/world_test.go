package runconnections

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/openstack"
	"github.com/cloudfn/cloudfn/shared/postgres"
	"github.com/cloudfn/cloudfn/shared/seal"
	"github.com/cloudfn/cloudfn/shared/testkit"
)

func TestMain(m *testing.M) {
	code := m.Run()
	testkit.RemoveBinary()
	os.Exit(code)
}

// everything is what a connection may permit.
var everything = []domain.Permission{
	domain.MayAllocate, domain.MayAttach, domain.MayConnect, domain.MayStart, domain.MayStop, domain.MayReboot,
	domain.MayDeploy, domain.MayShelve, domain.MaySnapshot, domain.MayResize, domain.MayRebuild, domain.MayRescue,
	domain.MayDeallocate,
}

// world is a project whose user delegates, and a database.
type world struct {
	*testkit.Project
	database string
	db       *postgres.DB
}

func newWorld(t *testing.T) *world {
	t.Helper()
	w := &world{Project: testkit.NewProject(t), database: testkit.Database(t)}
	db, err := postgres.Open(postgres.Config{URL: domain.Secret(w.database), MaxConns: 2}, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(db.Close)
	w.db = db
	return w
}

// sandbox is the sandbox's cloud.
func sandbox(t *testing.T) *openstack.Cloud {
	t.Helper()
	cloud, err := openstack.New(openstack.Config{Cloud: "demo", ConfigFile: testkit.CloudsYAML(t)}, openstack.Options{})
	if err != nil {
		t.Fatal(err)
	}
	return cloud
}

// member is a session of the project's member, and who that is.
func (w *world) member(t *testing.T) (*openstack.Session, domain.Identity) {
	t.Helper()
	cloud := sandbox(t)
	token := domain.Secret(w.Token(t))
	who, err := cloud.Validate(t.Context(), token)
	if err != nil {
		t.Fatal(err)
	}
	return cloud.As(token, w.ID), who
}

// connect stores a connection as the function connections does, changed by change.
func (w *world) connect(t *testing.T, change func(*domain.Connection)) domain.Connection {
	t.Helper()
	session, who := w.member(t)
	flavors, err := session.Flavors(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	id, err := uuid.NewV7()
	if err != nil {
		t.Fatal(err)
	}
	c := domain.Connection{
		ID: id, ProjectID: w.ID, DomainID: w.DomainID, UserID: w.UserID, Actions: everything, UsableBy: []string{},
		Flavors: flavors, ExpiresAt: time.Now().Add(time.Hour),
		ActsAs: domain.ActsAs{
			UserID: who.UserID, UserName: who.UserName, ProjectID: w.ID, ProjectName: who.ProjectName,
			Roles: []string{"member"},
		},
	}
	change(&c)
	if c.Kind == domain.TrustConnection && c.TrustExpiresAt.IsZero() {
		c.TrustExpiresAt = c.ExpiresAt.Add(domain.TrustMargin)
	}
	stored, err := postgres.Connections{DB: w.db}.Create(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	return stored
}

// trust delegates the role member to the service account, for an hour.
func (w *world) trust(t *testing.T) domain.Connection {
	t.Helper()
	session, who := w.member(t)
	until := time.Now().Add(time.Hour)
	made, err := session.CreateTrust(t.Context(), who, testkit.Trustee(t), []string{"member"}, until.Add(10*time.Minute),
		func(time.Time) (bool, error) { return true, nil })
	if err != nil {
		t.Fatal(err)
	}
	return w.connect(t, func(c *domain.Connection) {
		c.Kind, c.DelegationID, c.ExpiresAt, c.TrustExpiresAt = domain.TrustConnection, made.ID, until, made.ExpiresAt
	})
}

// credential delegates by an application credential, which logs in at authURL.
func (w *world) credential(t *testing.T, authURL string, rules ...testkit.AccessRule) domain.Connection {
	t.Helper()
	id, secret := w.AppCredential(t, rules...)
	return w.delegateCredential(t, id, secret, authURL)
}

// credentialUntil delegates by an application credential that ends at a moment.
func (w *world) credentialUntil(t *testing.T, end time.Time) domain.Connection {
	t.Helper()
	id, secret := w.AppCredentialUntil(t, end)
	return w.delegateCredential(t, id, secret, "")
}

func (w *world) delegateCredential(t *testing.T, id, secret, authURL string) domain.Connection {
	t.Helper()
	return w.connect(t, func(c *domain.Connection) {
		c.Kind, c.DelegationID, c.AuthURL = domain.CredentialConnection, id, authURL
		c.Secret = sealed(t, c.SealedFor(), secret)
	})
}

func sealed(t *testing.T, purpose, secret string) []byte {
	t.Helper()
	key, err := seal.ParsePublicKey(testkit.ConnectionPublicKey)
	if err != nil {
		t.Fatal(err)
	}
	text, err := key.Seal(purpose, domain.Secret(secret))
	if err != nil {
		t.Fatal(err)
	}
	return text
}

func sealedJSON(t *testing.T, purpose string, value any) []byte {
	t.Helper()
	text, err := json.Marshal(value)
	if err != nil {
		t.Fatal(err)
	}
	return sealed(t, purpose, string(text))
}

// place stores an order of n as the function launch does, with names that are to be looked up; change may change both
// halves.
func (w *world) place(
	t *testing.T, c domain.Connection, n int, change func(*domain.Order, *domain.DelegatedOrder),
) domain.Order {
	t.Helper()
	f := testkit.Sandbox(t)
	order := domain.Order{
		ID: uuid.New(), ProjectID: c.ProjectID, DomainID: c.DomainID, UserID: "caller",
		BodySHA256: []byte("x"), ConnectionID: c.ID,
	}
	var payload domain.DelegatedOrder
	for k := range n {
		i := domain.Instance{
			ID: uuid.New(), ProjectID: c.ProjectID, Name: fmt.Sprintf("delegated-%d",
				k+1), State: domain.InstanceRequested, ConnectionID: c.ID, Remote: c.Remote(),
		}
		for _, flavor := range c.Flavors {
			if flavor.ID == f.FlavorID {
				i.Spec.Sized(flavor)
			}
		}
		i.Spec.ImageRef = f.Image
		order.Instances = append(order.Instances, i)
		payload.Servers = append(payload.Servers, domain.DelegatedServer{Image: f.Image, Networks: []string{f.Network}})
	}
	if change != nil {
		change(&order, &payload)
	}
	for k, i := range order.Instances {
		if order.Spec.Reuse {
			payload.Servers[k].Name, payload.Servers[k].Spec = i.Name, &order.Instances[k].Spec
		}
	}
	order.Payload = sealedJSON(t, order.SealedFor(), payload)
	if _, err := (postgres.Orders{DB: w.db}).Place(t.Context(), order, 0); err != nil {
		t.Fatal(err)
	}
	return w.order(t, order.ID)
}

func (w *world) order(t *testing.T, id uuid.UUID) domain.Order {
	t.Helper()
	order, err := postgres.Orders{DB: w.db}.Get(t.Context(), w.ID, id)
	if err != nil {
		t.Fatal(err)
	}
	return order
}

// act stores an action as the function servers does.
func (w *world) act(
	t *testing.T, c domain.Connection, instance uuid.UUID, action domain.ActionRequest,
	change func(*domain.DelegatedAction),
) domain.DelegatedAction {
	t.Helper()
	a := domain.DelegatedAction{
		ID: uuid.New(), ProjectID: c.ProjectID, ConnectionID: c.ID, InstanceID: instance,
		UserID: "caller", Request: action,
	}
	if change != nil {
		change(&a)
	}
	stored, err := postgres.Actions{DB: w.db}.Create(t.Context(), a)
	if err != nil {
		t.Fatal(err)
	}
	return stored
}

func (w *world) action(t *testing.T, a domain.DelegatedAction) domain.DelegatedAction {
	t.Helper()
	found, err := postgres.Actions{DB: w.db}.Get(t.Context(),
		domain.Filter{ProjectID: a.ProjectID, ConnectionID: a.ConnectionID}, a.ID)
	if err != nil {
		t.Fatal(err)
	}
	return found
}

// function is run-connections alone, in this process.
func (w *world) function(t *testing.T, more map[string]string) *testkit.Client {
	t.Helper()
	return testkit.Start(t, testkit.Env(t, w.database, more), Function)
}

// ticks wakes the function until ok.
func ticks(t *testing.T, p *testkit.Client, what string, ok func() bool) {
	t.Helper()
	testkit.Eventually(t, 4*time.Minute, what, func() bool {
		if a, err := p.TryTick(t, "run-connections"); err == nil && a.Status != 204 {
			t.Fatalf("got %d %s", a.Status, a.Body)
		}
		return ok()
	})
}

// finish wakes the function until the order is no longer running, and gives it as it is then.
func (w *world) finish(t *testing.T, p *testkit.Client, id uuid.UUID) domain.Order {
	t.Helper()
	var order domain.Order
	ticks(t, p, "the order is settled", func() bool {
		order = w.order(t, id)
		return order.Status != domain.OrderRunning
	})
	return order
}

// done wakes the function until the action has ended, and gives it as it is then.
func (w *world) done(t *testing.T, p *testkit.Client, a domain.DelegatedAction) domain.DelegatedAction {
	t.Helper()
	ticks(t, p, "the action has ended", func() bool {
		a = w.action(t, a)
		return a.Status != domain.ActionRunning
	})
	return a
}

// wants checks how an action has ended: "" is done, anything else is the code of its problem.
func wants(t *testing.T, a domain.DelegatedAction, code string) {
	t.Helper()
	got := ""
	if a.Problem != nil {
		got = a.Problem.Code
	}
	if got != code || a.Status == domain.ActionRunning {
		t.Errorf("%s is %s: %+v, want %q", a.Request.Action, a.Status, a.Problem, code)
	}
}

// pauseForAnHour makes the pause after each failure an hour, in a table that counts failures. A tick would wait for the
// end of a short one.
func (w *world) pauseForAnHour(t *testing.T, table string) {
	t.Helper()
	w.exec(t, `
create function pause() returns trigger language plpgsql as
  $$ begin new.not_before = clock_timestamp() + interval '1 hour'; return new; end $$;
create trigger pause before update on `+table+` for each row
  when (new.failures > old.failures) execute function pause()`)
}

func (w *world) exec(t *testing.T, sql string, args ...any) {
	t.Helper()
	if _, err := testkit.Pool(t, w.database).Exec(context.Background(), sql, args...); err != nil {
		t.Fatal(err)
	}
}

func (w *world) text(t *testing.T, sql string, args ...any) string {
	t.Helper()
	return testkit.Scalar[string](t, testkit.Pool(t, w.database), sql, args...)
}

// eventsOf returns the states or statuses of a subject's events, in their order, with spaces between them.
func (w *world) eventsOf(t *testing.T, subject uuid.UUID) string {
	t.Helper()
	return w.text(t, `select coalesce(string_agg(coalesce(data->>'state', data->>'status'), ' ' order by seq), '')
  from events
where project_id = $1 and subject = $2 and type <> 'cloudfn.connection.revocation.v1'`, w.ID, subject.String())
}

func (w *world) ends(t *testing.T, subject uuid.UUID, want string) {
	t.Helper()
	if got := w.eventsOf(t, subject); !strings.HasSuffix(got, want) {
		t.Errorf("the events are %q, which should end with %q", got, want)
	}
}

// status is the connection's.
func (w *world) status(t *testing.T, c domain.Connection) string {
	t.Helper()
	return w.text(t, "select status from connections where id = $1", c.ID)
}
