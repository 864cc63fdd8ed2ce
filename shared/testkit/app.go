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

// Env is the environment of a process under test: the sandbox cloud as the service account sees it, and a
// database. Keys of more replace it; a value of "" removes a key.
func Env(t testing.TB, databaseURL string, more map[string]string) map[string]string {
	t.Helper()
	env := map[string]string{
		"DATABASE_URL": databaseURL, "OS_CLIENT_CONFIG_FILE": CloudsYAML(t), "OS_CLOUD": "collector",
		"HOST": "127.0.0.1", "EVENT_KEY": EventKey, "RESOURCE_TIMEOUT": "50s", // the sandbox is slow when many tests run
		"SEAL_PUBLIC_KEY": SealPublicKey, "SEAL_PRIVATE_KEY": SealPrivateKey, "CALLBACK_ALLOW": "127.0.0.0/8,::1",
		"CONNECTION_PUBLIC_KEY": ConnectionPublicKey, "CONNECTION_PRIVATE_KEY": ConnectionPrivateKey,
		"TRUSTEE_USER_ID": Trustee(t), "AGENT_URL": "http://agents.invalid",
	}
	maps.Copy(env, more)
	return env
}

// DaemonEnv is a daemon whose own ticks only count one project, so that they do not keep the sandbox busy.
func DaemonEnv(t testing.TB, databaseURL string) map[string]string {
	t.Helper()
	return Env(t, databaseURL, map[string]string{"OS_CLOUD": "demo", "STATS_BACKFILL": "1h"})
}

// EventKey is what events must carry in processes under test.
const EventKey = "test-event-key"

// The keys that secrets are sealed to and opened with in processes under test.
const (
	SealPublicKey  = "sealpub_PJgIja4HMTeNZpv1S9F7kPmi6RY_mwq1UapCnFDyzjA"
	SealPrivateKey = "sealkey_UJetRWiZuBNDBaI4ZPonx22-9LUuFDyXUHdtPy3TnnQ"
)

// The same for what only run-connections may read.
const (
	ConnectionPublicKey  = "sealpub_8nvsuXTk8b3VLy6LzQkH09jNzrPa6d_E83AnEFGkiR4"
	ConnectionPrivateKey = "sealkey_oPDYyuUMa2PCc-ZxBgoh2_Z39InbLR1irH9oFfndn0I"
)

var trustee struct {
	sync.Mutex
	id string
}

// Trustee is the id of the service account, to which trusts are made.
func Trustee(t testing.TB) string {
	t.Helper()
	trustee.Lock()
	defer trustee.Unlock()
	if trustee.id == "" {
		user, err := Login(t, "collector").GetAuthResult().(tokens.CreateResult).ExtractUser()
		if err != nil {
			t.Fatal(err)
		}
		trustee.id = user.ID
	}
	return trustee.id
}

// texts describe the API, as the binary has them.
func texts(t testing.TB) run.Texts {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(Root(), "functions", "openapi.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	return run.Texts{OpenAPI: text}
}

// Start serves the functions in this process, and gives a client for them. In the database they may do what they declare, and
// nothing else.
func Start(t testing.TB, env map[string]string, functions ...run.Function) *Client {
	t.Helper()
	ctx := context.Background()
	env = maps.Clone(env)
	env["DATABASE_URL"] = As(t, env["DATABASE_URL"], functions...)
	p, err := run.New(ctx, envconfig.MapLookuper(env), texts(t), logs(), functions...)
	if err != nil {
		t.Fatal(err)
	}
	server := httptest.NewServer(p.Handler())
	t.Cleanup(func() {
		server.Close()
		p.Close(ctx)
		inProcess.noSecrets(t)
	})
	return &Client{URL: server.URL, Key: env["EVENT_KEY"]}
}

// As is the database for a role of its own that has the rights that the functions declare. The owner of the schema stays the
// owner. A database that is away stays as it is.
func As(t testing.TB, database string, functions ...run.Function) string {
	t.Helper()
	u, err := url.Parse(database)
	if err != nil || u.Query().Get("host") == "" {
		return database
	}
	var rights []map[string]string
	for _, f := range functions {
		d := run.Describe(f)
		if d.Role() == "" {
			return database
		}
		rights = append(rights, d.Rights())
	}
	role := fmt.Sprintf("fn_%x", uuid.New().ID())
	conn := Connect(t, database)
	if _, err := conn.Exec(t.Context(), "create role "+role+";"+postgres.Grants(role, rights...)); err != nil {
		t.Fatal(err)
	}
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
