package testkit

import (
	"context"
	"fmt"
	"maps"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"github.com/google/uuid"
	"github.com/gophercloud/gophercloud/v2/openstack/identity/v3/tokens"
	"github.com/sethvargo/go-envconfig"

	"github.com/cloudfn/cloudfn/shared/postgres"
	"github.com/cloudfn/cloudfn/shared/run"
)

// Env returns the environment of a process under test: the sandbox cloud's service account, and a database. Keys of
// more override it; a value of "" removes a key.
func Env(t testing.TB, databaseURL string, more map[string]string) map[string]string {
	t.Helper()
	env := map[string]string{
		"DATABASE_URL": databaseURL, "OS_CLIENT_CONFIG_FILE": CloudsYAML(t), "OS_CLOUD": "collector",
		"HOST": "127.0.0.1", "EVENT_KEY": EventKey,
		"RESOURCE_TIMEOUT": "50s", // the sandbox is slow when many tests run
		"SEAL_PUBLIC_KEY":  SealPublicKey, "SEAL_PRIVATE_KEY": SealPrivateKey, "CALLBACK_ALLOW": "127.0.0.0/8,::1",
		"CONNECTION_PUBLIC_KEY": ConnectionPublicKey, "CONNECTION_PRIVATE_KEY": ConnectionPrivateKey,
		"MANAGED_PUBLIC_KEY": ManagedPublicKey, "MANAGED_PRIVATE_KEY": ManagedPrivateKey,
		"TRUSTEE_USER_ID": Trustee(t), "AGENT_URL": "http://agents.invalid",
		"LEASES_OS_CLOUD": "leases", "LEASES_OS_CLIENT_CONFIG_FILE": CloudsYAML(t),
		"NODES_OS_CLOUD": "leases",
		// All tests come from one address, and some send more than any client does.
		"ADDRESS_RATE_LIMIT": "10000", "PROJECT_RATE_LIMIT": "10000",
		"SIGN_IN_RATE_LIMIT": "10000", "LAUNCH_RATE_LIMIT": "100000", "CALLBACK_TEST_RATE_LIMIT": "10000",
		"CHANGE_RATE_LIMIT": "10000", "DECLARATION_RATE_LIMIT": "100000", "EVENT_RATE_LIMIT": "100000",
	}
	maps.Copy(env, more)
	return env
}

// DaemonEnv returns the environment of a daemon whose own ticks count one project only, to spare the sandbox.
func DaemonEnv(t testing.TB, databaseURL string) map[string]string {
	t.Helper()
	return Env(t, databaseURL, map[string]string{"OS_CLOUD": "demo", "STATS_BACKFILL": "1h"})
}

// EventKey is the key of events to processes under test.
const EventKey = "test-event-key"

// The key pair for secrets of callbacks in processes under test.
const (
	SealPublicKey  = "sealpub_PJgIja4HMTeNZpv1S9F7kPmi6RY_mwq1UapCnFDyzjA"
	SealPrivateKey = "sealkey_UJetRWiZuBNDBaI4ZPonx22-9LUuFDyXUHdtPy3TnnQ"
)

// The key pair for delegated credentials, which only run-connections decrypts.
const (
	ConnectionPublicKey  = "sealpub_8nvsuXTk8b3VLy6LzQkH09jNzrPa6d_E83AnEFGkiR4"
	ConnectionPrivateKey = "sealkey_oPDYyuUMa2PCc-ZxBgoh2_Z39InbLR1irH9oFfndn0I"
)

// The key pair for secrets of managed resources, which only reconcile-managed decrypts.
const (
	ManagedPublicKey  = "sealpub_J5swBbwHdScKr3fRzDqNMNTJdKQG9I5DjE0hUmVS5zE"
	ManagedPrivateKey = "sealkey_6LZJDJ4JhW-h5yEhzjZa4HND0CsnQy4tWG-QhTnMFWw"
)

var trustee struct {
	sync.Mutex
	id string
}

// Trustee returns the id of the service account, the trustee of all trusts.
func Trustee(t testing.TB) string {
	t.Helper()
	trustee.Lock()
	defer trustee.Unlock()
	if trustee.id == "" {
		user := must(Login(t, "collector").GetAuthResult().(tokens.CreateResult).ExtractUser())(t)
		trustee.id = user.ID
	}
	return trustee.id
}

// texts returns the API description that the binary embeds.
func texts(t testing.TB) run.Texts {
	t.Helper()
	text := must(os.ReadFile(filepath.Join(Root(), "functions", "openapi.yaml")))(t)
	return run.Texts{OpenAPI: text}
}

// Start serves the functions in this process, and returns a client for them. Their database role has the rights that
// they declare, and no others.
func Start(t testing.TB, env map[string]string, functions ...run.Function) *Client {
	t.Helper()
	ctx := context.Background()
	env = maps.Clone(env)
	env["DATABASE_URL"] = As(t, env["DATABASE_URL"], functions...)
	p := must(run.New(ctx, envconfig.MapLookuper(env), texts(t), logs(), functions...))(t)
	server := httptest.NewServer(p.Handler())
	t.Cleanup(func() {
		server.Close()
		p.Close(ctx)
		inProcess.noSecrets(t)
	})
	return &Client{URL: server.URL, Key: env["EVENT_KEY"]}
}

// As returns the URL of the database for a new role with the rights that the functions declare. It returns the URL as
// it is for a database that is not a local one.
func As(t testing.TB, database string, functions ...run.Function) string {
	t.Helper()
	u, err := url.Parse(database)
	if err != nil || u.Query().Get("host") == "" {
		return database
	}
	var rights []map[string]string
	for _, f := range functions {
		rights = append(rights, run.Describe(f).Rights())
	}
	role := fmt.Sprintf("fn_%x", uuid.New().ID())
	conn := Connect(t, database)
	must(conn.Exec(t.Context(), "create role "+role+";"+postgres.Grants(role, rights...)))(t)
	t.Cleanup(func() {
		if _, err := conn.Exec(context.Background(), "drop owned by "+role+"; drop role "+role); err != nil {
			t.Error(err)
		}
	})
	query := u.Query()
	query.Set("role", role)
	u.RawQuery = query.Encode()
	return u.String()
}
