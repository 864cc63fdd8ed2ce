package contract_test

import (
	"context"
	"net/url"
	"testing"

	"github.com/cloudfn/cloudfn/shared/testkit"
)

// refusedByPostgres: what may be done is taken from the role, then a lock is held, then Postgres stops.
func (e *examples) refusedByPostgres(t *testing.T) {
	t.Parallel()
	cluster := testkit.NewCluster(t)
	conn := testkit.Connect(t, cluster.URL)
	for _, sql := range []string{
		"create role writer", "grant usage on schema public to writer", "grant select on schema_versions to writer",
		"grant insert on requests to writer",
	} {
		if _, err := conn.Exec(t.Context(), sql); err != nil {
			t.Fatal(err)
		}
	}
	u, err := url.Parse(cluster.URL)
	if err != nil {
		t.Fatal(err)
	}
	query := u.Query()
	query.Set("role", "writer")
	u.RawQuery = query.Encode()
	token := adminToken(t)
	client := spawn(t, u.String(), map[string]string{"OS_CLOUD": "demo", "REQUEST_TIMEOUT": "60s"}).As(token)
	e.refuse(t, "a role that may only write the request log", client,
		refusal{status: 500, fits: func(o operation) bool {
			return !isConsole(o)
		}})
	e.consoleAway(t, 500, ask{client: client, where: "a role that may only write the request log"})
	e.send(t, "signIn", 500, ask{
		client: client, where: "a role that may only write the request log", example: "token",
		set: map[string]any{"token": token},
	})

	hurried := spawn(t, u.String(), map[string]string{"OS_CLOUD": "demo", "REQUEST_TIMEOUT": "1s"}).As(token)
	tx, err := conn.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := tx.Exec(t.Context(), "lock table schema_versions in access exclusive mode"); err != nil {
		t.Fatal(err)
	}
	e.refuse(t, "a lock in Postgres", hurried, refusal{status: 504})
	_ = tx.Rollback(context.Background())
	cluster.Stop(t)
	e.refuse(t, "Postgres is stopped", client, refusal{status: 503})
	e.consoleAway(t, 503, ask{client: client, where: "Postgres is stopped"})
}
