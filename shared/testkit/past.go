package testkit

import (
	"context"
	"fmt"
	"maps"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/gophercloud/gophercloud/v2/openstack/compute/v2/servers"
)

// SetClock sets the clock of a test's database, which runs on from there. Statements call now() and clock_timestamp()
// without a schema, and the database's search_path finds the test's own first, in triggers and defaults of columns,
// too. Open connections keep the old clock.
func SetClock(t testing.TB, databaseURL string, to time.Time) {
	t.Helper()
	conn := Connect(t, databaseURL)
	offset := fmt.Sprintf("interval '%d microseconds'", time.Until(to).Microseconds())
	sql := `
create schema if not exists moved;
grant usage on schema moved to public;
create or replace function moved.clock_timestamp() returns timestamptz language sql volatile
	as $$ select pg_catalog.clock_timestamp() + ` + offset + ` $$;
create or replace function moved.now() returns timestamptz language sql stable
	as $$ select pg_catalog.now() + ` + offset + ` $$;
do $$
declare
    own regprocedure;
    one record;
begin
    execute format('alter database %I set search_path = moved, pg_catalog, public', current_database());
    for own in
        select oid from pg_proc where pronamespace = 'public'::regnamespace and proconfig::text like '%search_path=%'
    loop
        execute format('alter function %s set search_path = moved, pg_catalog, public, pg_temp', own);
    end loop;
    for one in
        select d.adrelid::regclass as of, a.attname, pg_get_expr(d.adbin, d.adrelid) as value
        from pg_attrdef d join pg_attribute a on a.attrelid = d.adrelid and a.attnum = d.adnum
        where pg_get_expr(d.adbin, d.adrelid) in ('now()', 'clock_timestamp()')
    loop
        execute format('alter table %s alter %I set default moved.%s', one.of, one.attname, one.value);
    end loop;
end $$`
	must(conn.Exec(context.Background(), sql))(t)
}

// Backdate changes the times of a real server in Nova's database: its creation, its last change, and its actions by
// name. An action takes a second.
func Backdate(t testing.TB, serverID string, made time.Time, actions map[string]time.Time) {
	t.Helper()
	last := made
	sql := []string{}
	all := map[string]time.Time{"create": made}
	maps.Copy(all, actions)
	for name, when := range all {
		if when.After(last) {
			last = when
		}
		sql = append(sql, fmt.Sprintf(
			"update instance_actions set start_time = '%[1]s', created_at = '%[1]s', updated_at = '%[2]s', "+
				"finish_time = '%[2]s' where instance_uuid = '%[3]s' and action = '%[4]s'",
			nova(when), nova(when.Add(time.Second)), serverID, name))
	}
	sql = append(sql, fmt.Sprintf(
		"update instances set created_at = '%s', launched_at = '%s', updated_at = '%s' where uuid = '%s'",
		nova(made), nova(made.Add(time.Second)), nova(last.Add(time.Second)), serverID))
	if deleted, ok := actions["delete"]; ok {
		sql = append(sql, fmt.Sprintf("update instances set terminated_at = '%s', deleted_at = '%s' where uuid = '%s'",
			nova(deleted.Add(time.Second)), nova(deleted.Add(time.Second)), serverID))
	}
	NovaSQL(t, strings.Join(sql, "; "))
}

func nova(when time.Time) string { return when.UTC().Format("2006-01-02 15:04:05") }

// NovaSQL runs statements on Nova's database and returns the rows, one a line.
func NovaSQL(t testing.TB, sql string) string {
	t.Helper()
	return sandboxSQL(t, "nova", sql)
}

// Expire moves the end of a trust or an application credential into the past, in Keystone's database. Keystone gives no
// more tokens for it; those that it gave stay valid.
func Expire(t testing.TB, delegationID string) {
	t.Helper()
	end := time.Now().Add(-time.Minute)
	sandboxSQL(t, "keystone", fmt.Sprintf("update trust set expires_at_int = %[1]d where id = '%[2]s'; "+
		"update application_credential set expires_at = %[1]d where id = '%[2]s'", end.UnixMicro(), delegationID))
}

func sandboxSQL(t testing.TB, database, sql string) string {
	t.Helper()
	socket := filepath.Join(filepath.Dir(CloudsYAML(t)), "run", "mysql.sock")
	cmd := exec.Command("mariadb", "--no-defaults", "-S", socket, "-u", "root", database, "-N", "-e", sql)
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("the database %s: %v %s", database, err, out)
	}
	return string(out)
}

// Stop stops a server without cloudfn, and waits until it is stopped.
func (p *Project) Stop(t testing.TB, serverID string) {
	t.Helper()
	check(t, servers.Stop(context.Background(), Compute(t, p.Login(t)), serverID).ExtractErr())
	p.Await(t, serverID, "SHUTOFF")
}

// Start starts a stopped server, and waits until it is active.
func (p *Project) Start(t testing.TB, serverID string) {
	t.Helper()
	check(t, servers.Start(context.Background(), Compute(t, p.Login(t)), serverID).ExtractErr())
	p.Await(t, serverID, "ACTIVE")
}

// Delete deletes a server, and waits until it is deleted.
func (p *Project) Delete(t testing.TB, serverID string) {
	t.Helper()
	check(t, servers.Delete(context.Background(), Compute(t, p.Login(t)), serverID).ExtractErr())
	p.Await(t, serverID, "DELETED")
}

// Fault puts a server into ERROR and inserts a fault in Nova's database, as a compute host does. The sandbox's fake
// hypervisor never fails.
func Fault(t testing.TB, serverID, message string) {
	t.Helper()
	nova := Compute(t, Login(t, "admin"))
	check(t, servers.ResetState(context.Background(), nova, serverID, servers.StateError).ExtractErr())
	NovaSQL(t, fmt.Sprintf("insert into instance_faults (created_at, instance_uuid, code, message, deleted) "+
		"values (now(), '%s', 500, '%s', 0)", serverID, message))
}
