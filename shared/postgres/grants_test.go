package postgres_test

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/postgres"
	"github.com/cloudfn/cloudfn/shared/testkit"
)

// as opens the database as a role of its own with what grants.sql gives the role of that name.
func as(t *testing.T, database, name string) *postgres.DB {
	t.Helper()
	grants := must(os.ReadFile("grants.sql"))(t)
	role := fmt.Sprintf("%s_%x", name, uuid.New().ID())
	conn := testkit.Connect(t, database)
	for _, sql := range []string{"create role " + role, strings.ReplaceAll(string(grants), name, role)} {
		must(conn.Exec(t.Context(), sql))(t)
	}
	u := must(url.Parse(database))(t)
	query := u.Query()
	query.Set("role", role)
	u.RawQuery = query.Encode()
	db := open(t, u.String())
	t.Cleanup(func() {
		db.Close()
		_, err := conn.Exec(context.Background(), "drop owned by "+role+"; drop role "+role)
		if err != nil {
			t.Error(err)
		}
	})
	return db
}

// mayRun are the functions that may run a statement: stated by hand, because grants.sql is generated. What else a
// function may do, its own tests need: they run as a role with the rights that it declares.
var mayRun = map[string]string{
	"select secret from connections": "run_connections",
	"select secret from callbacks":   "callbacks deliver_events",
	"select bundle from deployments": "agents run_connections servers",
	"select response from idempotency_keys": "callbacks connections floating_ips launch leases resources " +
		"security_groups servers volumes",
	"select secrets from managed_revisions":     "managed reconcile_managed",
	"select * from node_tokens":                 "nodes",
	"select path from requests":                 "collect_stats stats",
	"select sealed from sessions":               "console",
	"select url from callbacks":                 "callbacks collect_stats deliver_events launch",
	"select drop_requests_month('2020-01-01Z')": "collect_stats",
	"select spec from instances": "callbacks collect_stats connections deliver_events launch leases poll_instances " +
		"reconcile_managed resources run_connections run_leases servers",
	"select data from events": "callbacks collect_stats deliver_events launch leases managed poll_instances " +
		"reconcile_managed run_connections run_leases servers watch_nodes",

	"delete from events":                       "collect_stats deliver_events",
	"delete from instances":                    "collect_stats",
	"delete from orders":                       "collect_stats",
	"delete from connections":                  "run_connections",
	"update sessions set sealed = ''":          "",
	"update connections set auth_url = ''":     "run_connections", // where its secret is sent to
	"update connections set user_id = ''":      "run_connections",
	"update deployments set token_sha256 = ''": "run_connections servers",
	"update instances set server_id = null": "collect_stats launch leases poll_instances reconcile_managed " +
		"run_connections run_leases servers",

	"create table mine (n int)":                 "",
	"drop table requests":                       "",
	"alter table orders add mine int":           "",
	"truncate requests":                         "",
	"select pg_read_file('/etc/passwd')":        "",
	"create role cloudfn_mine":                  "",
	"alter function fan_out() security invoker": "",
}

// TestNoRoleHasMoreRights than its function declares, and none owns a table.
func TestNoRoleHasMoreRights(t *testing.T) {
	t.Parallel()
	database := testkit.Database(t)
	conn := testkit.Connect(t, database)
	got := map[string][]string{}
	for _, name := range functionRoles(t) {
		db := as(t, database, "cloudfn_"+name).Pool()
		for sql := range mayRun {
			_, err := db.Exec(t.Context(), sql)
			if err == nil {
				got[sql] = append(got[sql], name)
			} else if pg, ok := errors.AsType[*pgconn.PgError](err); !ok || pg.Code != "42501" {
				t.Errorf("%s: %s: got %v", name, sql, err)
			}
		}
	}
	for sql, want := range mayRun {
		if names := strings.Join(got[sql], " "); names != want {
			t.Errorf("%s: may be run by %q, want %q", sql, names, want)
		}
	}
	owned := testkit.Scalar[int](t, conn, "select count(*)::int from pg_class where relowner <> current_user::regrole "+
		"and relnamespace = 'public'::regnamespace")
	if owned != 0 {
		t.Errorf("functions own %d tables", owned)
	}
}

// TestEventsReachSubscribers, also those of a function that may not read who they are.
func TestEventsReachSubscribers(t *testing.T) {
	t.Parallel()
	database := testkit.Database(t)
	conn, agents := testkit.Connect(t, database), as(t, database, "cloudfn_agents").Pool()
	testkit.AddCallback(t, conn, "p1", "https://a.example", domain.CallbackVerified, "whsec_x", "")
	_, err := agents.Exec(t.Context(), `insert into events (project_id, subject, seq, type, at, data)
values ('p1', 's', 1, 'cloudfn.agent.ready.v1', now(), '{}')`)
	if n := testkit.Scalar[int](t, conn, "select count(*)::int from deliveries"); err != nil || n != 1 {
		t.Errorf("%d deliveries: %v", n, err)
	}
}

// functionRoles are the names in grants.sql, sorted.
func functionRoles(t *testing.T) (names []string) {
	t.Helper()
	grants := must(os.ReadFile("grants.sql"))(t)
	for _, m := range regexp.MustCompile(`rolname = 'cloudfn_(\w+)'`).FindAllSubmatch(grants, -1) {
		names = append(names, string(m[1]))
	}
	if slices.Sort(names); len(names) < 18 {
		t.Fatalf("roles are %v", names)
	}
	return names
}
