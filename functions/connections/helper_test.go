package connections

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/cloudfn/cloudfn/shared/delegation"
	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/testkit"
)

func TestMain(m *testing.M) {
	code := m.Run()
	testkit.RemoveBinary()
	os.Exit(code)
}

// soon is a time as requests have it.
func soon(d time.Duration) string { return time.Now().Add(d).UTC().Format(time.RFC3339Nano) }

// asking is a request's body: the required fields, and more.
func asking(kind, more string) string {
	return fmt.Sprintf(`{"kind": %q, "actions": ["allocate", "start"], "expires_at": %q%s}`, kind, soon(time.Hour), more)
}

func create(t *testing.T, app *testkit.Client, body string) Connection {
	t.Helper()
	a := app.Post(t, "/v1/connections", body)
	if a.Status != 201 {
		t.Fatalf("%s: got %d %s", body, a.Status, a.Body)
	}
	var c Connection
	a.JSON(t, &c)
	if a.Header.Get("Location") != "/v1/connections/"+c.ID.String() {
		t.Errorf("Location is %q", a.Header.Get("Location"))
	}
	return c
}

// started is a replica with a database of its own, and what it wakes.
func started(
	t *testing.T, more map[string]string,
) (app *testkit.Client, conn *pgx.Conn, database string, woken *testkit.Wakes) {
	t.Helper()
	database, woken = testkit.Database(t), testkit.NewWakes(t)
	env := testkit.Env(t, database, more)
	env["WAKE_URL"] = woken.URL
	return testkit.Start(t, env, Function), testkit.Connect(t, database), database, woken
}

func handing(id, secret, more string) string {
	return asking("application_credential", fmt.Sprintf(`, "id": %q, "secret": %q%s`, id, secret, more))
}

// wrong is another secret: of the long ones that Keystone makes it only looks at the first 72 bytes.
func wrong(secret string) string { return "x" + secret }

// limited is the body of a request with an application credential that has rules.
func limited(t *testing.T, p *testkit.Project, of ...domain.AccessRule) string {
	t.Helper()
	id, secret := p.AppCredential(t, rules(of)...)
	return handing(id, secret, "")
}

// credential makes an application credential as any client does.
func credential(t *testing.T, p *testkit.Project, with object) (id, secret string) {
	t.Helper()
	var made struct {
		Credential struct{ ID, Secret string } `json:"application_credential"`
	}
	with["name"] = uuid.NewString()
	if status, _ := keystone(t, p.Token(t), "POST", "/v3/users/"+p.UserID+"/application_credentials",
		object{"application_credential": with}, &made); status != 201 {
		t.Fatalf("Keystone made none: %d", status)
	}
	return made.Credential.ID, testkit.Canary(made.Credential.Secret)
}

// keystone calls the real Keystone as any client does, and gives the status, a new token if there is one, and the body.
func keystone(t *testing.T, token, method, path string, body, into any) (status int, subject string) {
	t.Helper()
	var text []byte
	if body != nil {
		text, _ = json.Marshal(body)
	}
	req, err := http.NewRequestWithContext(t.Context(), method, bare(testkit.Login(t, "demo").IdentityEndpoint)+path,
		bytes.NewReader(text))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("X-Auth-Token", token)
	req.Header.Set("Content-Type", "application/json")
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	data, _ := io.ReadAll(resp.Body)
	switch {
	case resp.StatusCode >= 400: // shown if the test fails
		t.Logf("Keystone: %s %s: %d %s", method, path, resp.StatusCode, data)
	case into != nil:
		if err := json.Unmarshal(data, into); err != nil {
			t.Fatalf("%v in %s", err, data)
		}
	}
	return resp.StatusCode, resp.Header.Get("X-Subject-Token")
}

type object = map[string]any

// in is a token of the user of another one, in a project.
func in(t *testing.T, token, projectID string) string {
	t.Helper()
	auth := object{
		"identity": object{"methods": []string{"token"}, "token": object{"id": token}},
		"scope":    object{"project": object{"id": projectID}},
	}
	status, subject := keystone(t, "", "POST", "/v3/auth/tokens", object{"auth": auth}, nil)
	if status != 201 {
		t.Fatalf("a token of another project: %d", status)
	}
	return testkit.Canary(subject)
}

// colleague is a token of another user in the project, with a role there.
func colleague(t *testing.T, p *testkit.Project, role string) (token string) {
	t.Helper()
	other := testkit.BorrowProject(t)
	p.Grant(t, other.UserID, role)
	return in(t, other.Token(t), p.ID)
}

// trust is a trust as Keystone shows it.
type trust struct {
	ID        string `json:"id"`
	Trustor   string `json:"trustor_user_id"`
	Trustee   string `json:"trustee_user_id"`
	ProjectID string `json:"project_id"`
	ExpiresAt string `json:"expires_at"`
	Acts      bool   `json:"impersonation"`
	Uses      *int   `json:"remaining_uses"`
	Roles     []struct {
		Name string `json:"name"`
	} `json:"roles"`
}

// onlyTrust is the one trust that the project's member has given.
func onlyTrust(t *testing.T, p *testkit.Project) trust {
	t.Helper()
	ids := p.Trusts(t)
	if len(ids) != 1 {
		t.Fatalf("Keystone has the trusts %v", ids)
	}
	var body struct {
		Trust trust `json:"trust"`
	}
	if status, _ := keystone(t, p.Token(t), "GET", "/v3/OS-TRUST/trusts/"+ids[0], nil, &body); status != 200 {
		t.Fatalf("Keystone shows the trust with %d", status)
	}
	return body.Trust
}

// rules are access rules as Keystone takes them.
func rules(from []domain.AccessRule) []testkit.AccessRule {
	out := make([]testkit.AccessRule, len(from))
	for n, r := range from {
		out[n] = testkit.AccessRule{Service: r.Service, Method: r.Method, Path: r.Path}
	}
	return out
}

// fakeCloud stands for another cloud that has several regions, and for a Keystone and a database that fail at a moment
// of the test's choice: the sandbox has one region and cannot be made to fail for one call. The tests check only the
// calls to it.
type fakeCloud struct {
	nameResolver

	flavors, login, announce, trust, untrust, store, hidden, missing error

	stored domain.Connection
	end    time.Time // of the application credential
	calls  []string
}

func (f *fakeCloud) record(call string) { f.calls = append(f.calls, call) }

func (f *fakeCloud) As(domain.Secret, string) session { return f }

func (f *fakeCloud) Region() string { return "" }

func (f *fakeCloud) Home(authURL, _ string) (sameCloud, sameRegion bool) { return authURL == "", true }

func (f *fakeCloud) Credential(context.Context, string, string, string, domain.Secret) (session, error) {
	return f, f.login
}

func (f *fakeCloud) ActsAs() domain.ActsAs { return domain.ActsAs{ProjectID: "p1"} }

func (f *fakeCloud) Flavors(context.Context) ([]domain.Flavor, error) { return nil, f.flavors }

func (f *fakeCloud) CreateTrust(
	_ context.Context, _ domain.Identity, _ string, _ []string, after time.Time, announce func(time.Time) (bool, error),
) (domain.Trust, error) {
	if _, err := announce(after); err != nil {
		return domain.Trust{}, err
	}
	f.record("trust")
	return domain.Trust{ID: "t1"}, f.trust
}

func (f *fakeCloud) CreateGranted(ctx context.Context, c domain.Connection, _ domain.Grant) (domain.Connection, error) {
	return f.Create(ctx, c)
}

func (f *fakeCloud) CredentialEnd(context.Context, string) (time.Time, error) { return f.end, f.hidden }

func (f *fakeCloud) DeleteTrust(ctx context.Context, _ string) error {
	f.record("untrust")
	return errors.Join(f.untrust, ctx.Err())
}

func (f *fakeCloud) Now(context.Context) (time.Time, error) { return time.Now(), nil }

func (f *fakeCloud) Create(_ context.Context, c domain.Connection) (domain.Connection, error) {
	f.record("store")
	return c, f.store
}

func (f *fakeCloud) Get(context.Context, domain.Identity, uuid.UUID) (domain.Connection, error) {
	return f.stored, f.missing
}

func (f *fakeCloud) End(
	ctx context.Context, _ string, _ uuid.UUID, status domain.ConnectionStatus, _ string, revoked bool,
) (bool, error) {
	f.record("end " + string(status) + map[bool]string{true: " revoked"}[revoked])
	return false, ctx.Err()
}

func (f *fakeCloud) AnnounceTrust(context.Context, domain.OldTrust) (bool, error) {
	f.record("announce")
	return f.announce == nil, f.announce
}

func (f *fakeCloud) ForgetTrust(ctx context.Context, _ string, _ uuid.UUID) error {
	f.record("forget")
	return ctx.Err()
}

func (f *fakeCloud) DropTrust(ctx context.Context, t domain.OldTrust) error {
	f.record("drop " + t.TrustID)
	return ctx.Err()
}

func (f *fakeCloud) Change(_ context.Context, _, after domain.Connection) (domain.Connection, error) {
	f.record("change")
	return after, f.store
}

func (f *fakeCloud) Seal(string, domain.Secret) ([]byte, error) { return []byte("sealed"), nil }

func (f *fakeCloud) service() service {
	return service{
		store: f, cloud: f, key: f, clouds: []string{"https://there.example/v3"}, wake: func(...string) {},
		trusts:  delegation.Trusts{Store: f, Trustee: "u2", Wake: func(...string) {}},
		changes: f,
	}
}

func (*fakeCloud) Take(context.Context, string, string) error { return nil }

// draftOf is the draft of a connection of a kind.
func draftOf(kind domain.ConnectionKind, authURL string) draft {
	return draft{Connection: domain.Connection{
		ProjectID: "p1", Kind: kind, AuthURL: authURL,
		ExpiresAt: time.Now().Add(time.Hour),
	}, roles: []string{"member"}}
}
