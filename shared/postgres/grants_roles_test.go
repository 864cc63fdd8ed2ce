package postgres_test

import (
	"errors"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/postgres"
	"github.com/cloudfn/cloudfn/shared/testkit"
)

// readers are who may read what opens something, or what users did: stated by hand, because grants.sql is generated.
var readers = map[string]string{
	"connections.secret":        "run_connections",
	"callbacks.secret":          "callbacks deliver_events",
	"deployments.bundle":        "agents run_connections servers",
	"idempotency_keys.response": "callbacks connections launch leases servers",
	"managed_revisions.secrets": "managed reconcile_managed",
	"instances.spec": "callbacks collect_stats connections deliver_events launch leases poll_instances " +
		"reconcile_managed resources run_connections run_leases servers",
	"node_tokens.*":   "nodes",
	"requests.path":   "collect_stats stats",
	"sessions.sealed": "console",
}

// TestRolesOfFunctions tries others' tables with the role of each function: what it reads, and that it owns nothing.
func TestRolesOfFunctions(t *testing.T) {
	t.Parallel()
	database := testkit.Database(t)
	conn := testkit.Connect(t, database)
	mayRead := map[string][]string{}
	for _, name := range functionRoles(t) {
		db := as(t, database, "cloudfn_"+name).Pool()
		for column := range readers {
			table, field, _ := strings.Cut(column, ".")
			_, err := db.Exec(t.Context(), "select "+field+" from "+table)
			if err == nil {
				mayRead[column] = append(mayRead[column], name)
			} else if pg, ok := errors.AsType[*pgconn.PgError](err); !ok || pg.Code != "42501" {
				t.Errorf("%s reads %s: %v", name, column, err)
			}
		}
		for _, sql := range []string{
			"create table mine (n int)", "drop table requests", "alter table orders add mine int",
			"truncate requests", "select pg_read_file('/etc/passwd')", "create role cloudfn_mine",
			"alter function fan_out() security invoker",
		} {
			_, err := db.Exec(t.Context(), sql)
			if pg, ok := errors.AsType[*pgconn.PgError](err); !ok || pg.Code != "42501" {
				t.Errorf("%s: %s: got %v", name, sql, err)
			}
		}
		_, err := db.Exec(t.Context(), "select drop_requests_month('2020-01-01Z')")
		if (err == nil) != (name == "collect_stats") {
			t.Errorf("%s drops a month of the request log: %v", name, err)
		}
	}
	for column, want := range readers {
		if got := strings.Join(mayRead[column], " "); got != want {
			t.Errorf("%s is read by %q, want %q", column, got, want)
		}
	}
	owned := testkit.Scalar[int](t, conn, "select count(*)::int from pg_class where relowner <> current_user::regrole "+
		"and relnamespace = 'public'::regnamespace")
	if owned != 0 {
		t.Errorf("functions own %d tables", owned)
	}
}

// functionRoles are the names in grants.sql, sorted, without the two that functions shared.
func functionRoles(t *testing.T) (names []string) {
	t.Helper()
	grants, err := os.ReadFile("grants.sql")
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range regexp.MustCompile(`rolname = 'cloudfn_(\w+)'`).FindAllSubmatch(grants, -1) {
		if name := string(m[1]); name != "functions" && name != "events" {
			names = append(names, name)
		}
	}
	if slices.Sort(names); len(names) < 18 {
		t.Fatalf("roles are %v", names)
	}
	return names
}

// TestAgentsReachesNoSubscriber: guests call agents, so it cannot read who is notified, nor the request log or what is
// delegated. Its events reach subscribers all the same.
func TestAgentsReachesNoSubscriber(t *testing.T) {
	t.Parallel()
	database := testkit.Database(t)
	conn, agents := testkit.Connect(t, database), as(t, database, "cloudfn_agents")
	testkit.AddCallback(t, conn, "p1", "https://a.example", domain.CallbackVerified, "whsec_x", "")
	instance := addInstance(t, conn)
	d := domain.Deployment{
		ID: uuid.New(), ProjectID: "p1", InstanceID: instance, Image: "a:1", TokenHash: []byte("h"),
		Bundle: []byte("b"),
	}
	if err := (postgres.Deployments{DB: open(t, database)}).Create(t.Context(), d, time.Hour); err != nil {
		t.Fatal(err)
	}
	deployments := postgres.Deployments{DB: agents}
	if _, err := deployments.Fetch(t.Context(), d.ID, d.TokenHash); err != nil {
		t.Error(err)
	}
	before := testkit.Scalar[int](t, conn, "select count(*)::int from deliveries")
	if err := deployments.Ready(t.Context(), d.ID, d.TokenHash); err != nil {
		t.Error(err)
	}
	if after := testkit.Scalar[int](t, conn, "select count(*)::int from deliveries"); after != before+1 {
		t.Errorf("the subscriber got %d deliveries, want one", after-before)
	}
	insert(t, postgres.Requests{DB: agents}, request("/v1/agents/x"))
	for _, table := range []string{
		"callbacks", "deliveries", "streams", "connections", "requests", "orders", "sessions",
	} {
		for _, sql := range []string{"select * from " + table, "delete from " + table} {
			isDenied(t, agents, sql)
		}
	}
	for _, sql := range []string{
		"update instances set state = 'deleted'", "update instances set server_id = null", "select spec from instances",
		"select problem from instances", "delete from instances", "update deployments set token_sha256 = 'x'",
		"update deployments set instance_id = null", "update deployments set expires_at = 'infinity'",
		"delete from deployments", "insert into deployments default values", "insert into instances default values",
	} {
		isDenied(t, agents, sql)
	}
}

// isDenied checks that a role lacks the right for a statement.
func isDenied(t *testing.T, db *postgres.DB, sql string) {
	t.Helper()
	_, err := db.Pool().Exec(t.Context(), sql)
	if pg, ok := errors.AsType[*pgconn.PgError](err); !ok || pg.Code != "42501" {
		t.Errorf("%s: got %v", sql, err)
	}
}
