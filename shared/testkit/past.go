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

// SetClock moves the clock of a test's database to a moment, from where it runs on: every statement of ours
// asks for now() and clock_timestamp() by their bare names, and the database is told to look for them in a
// schema of ours first. Connections that are open already keep the old clock.
func SetClock(t testing.TB, databaseURL string, to time.Time) {
	t.Helper()
	conn := Connect(t, databaseURL)
	offset := fmt.Sprintf("interval '%d microseconds'", time.Until(to).Microseconds())
	sql := `
create schema if not exists moved;
grant usage on schema moved to public;
create or replace function moved.clock_timestamp() returns timestamptz language sql volatile as $$ select pg_catalog.clock_timestamp() + ` + offset + ` $$;
create or replace function moved.now() returns timestamptz language sql stable as $$ select pg_catalog.now() + ` + offset + ` $$;
do $$ begin execute format('alter database %I set search_path = moved, pg_catalog, public', current_database()); end $$`
	if _, err := conn.Exec(context.Background(), sql); err != nil {
		t.Fatal(err)
	}
}

// Past moves what Nova's database says of a server: when it was made and changed, and when each of its actions
// took place (by the action's name; an action takes a second). The server and its actions are real; only their
// times are not, because a test cannot wait for hours.
func Past(t testing.TB, serverID string, made time.Time, actions map[string]time.Time) {
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
			"update instance_actions set start_time = '%s', created_at = '%s', updated_at = '%s', finish_time = '%s' where instance_uuid = '%s' and action = '%s'",
			nova(when), nova(when), nova(when.Add(time.Second)), nova(when.Add(time.Second)), serverID, name))
	}
	sql = append(sql, fmt.Sprintf("update instances set created_at = '%s', launched_at = '%s', updated_at = '%s' where uuid = '%s'",
		nova(made), nova(made.Add(time.Second)), nova(last.Add(time.Second)), serverID))
	if deleted, ok := actions["delete"]; ok {
		sql = append(sql, fmt.Sprintf("update instances set terminated_at = '%s', deleted_at = '%s' where uuid = '%s'",
			nova(deleted.Add(time.Second)), nova(deleted.Add(time.Second)), serverID))
	}
	novaSQL(t, strings.Join(sql, "; "))
}

func nova(when time.Time) string { return when.UTC().Format("2006-01-02 15:04:05") }

func novaSQL(t testing.TB, sql string) {
	t.Helper()
	socket := filepath.Join(filepath.Dir(CloudsYAML(t)), "run", "mysql.sock")
	cmd := exec.Command("mariadb", "--no-defaults", "-S", socket, "-u", "root", "nova", "-e", sql)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("nova's database: %v %s", err, out)
	}
}

// Stop, Start and Delete are done by Nova itself, and waited for.
func (p *Project) Stop(t testing.TB, serverID string) {
	t.Helper()
	if err := servers.Stop(context.Background(), Compute(t, p.Login(t)), serverID).ExtractErr(); err != nil {
		t.Fatal(err)
	}
	p.Await(t, serverID, "SHUTOFF")
}

// Start starts a server that was stopped.
func (p *Project) Start(t testing.TB, serverID string) {
	t.Helper()
	if err := servers.Start(context.Background(), Compute(t, p.Login(t)), serverID).ExtractErr(); err != nil {
		t.Fatal(err)
	}
	p.Await(t, serverID, "ACTIVE")
}

// Delete deletes a server.
func (p *Project) Delete(t testing.TB, serverID string) {
	t.Helper()
	if err := servers.Delete(context.Background(), Compute(t, p.Login(t)), serverID).ExtractErr(); err != nil {
		t.Fatal(err)
	}
	p.Await(t, serverID, "DELETED")
}

// Fault puts a server into ERROR, and gives it a fault in the database of its cell, where a compute host writes one. The sandbox's fake
// hypervisor never fails.
func Fault(t testing.TB, serverID, message string) {
	t.Helper()
	if err := servers.ResetState(context.Background(), Compute(t, Login(t, "admin")), serverID, servers.StateError).ExtractErr(); err != nil {
		t.Fatal(err)
	}
	novaSQL(t, fmt.Sprintf("insert into instance_faults (created_at, instance_uuid, code, message, deleted) values (now(), '%s', 500, '%s', 0)", serverID, message))
}

// NovaServer is a server as Nova's database has it at a moment.
type NovaServer struct {
	Project, State string
	Created        string
}

// NovaAt waits until a moment, and reads the servers of the projects then from the database of Nova's cell: those that are not
// deleted, by id. Nova's database itself waits, so that this is exact to some milliseconds.
func NovaAt(t testing.TB, moment time.Time, projects ...string) map[string]NovaServer {
	t.Helper()
	all := novaRows(t, fmt.Sprintf(`do sleep(greatest(0, %d.%06d - unix_timestamp(sysdate(6))));
		select concat_ws('/', uuid, project_id, coalesce(vm_state, ''), date_format(created_at, '%%T')) from nova.instances where deleted = 0 and project_id in ('%s')`,
		moment.Unix(), moment.Nanosecond()/1000, strings.Join(projects, "', '")))
	found := map[string]NovaServer{}
	for line := range strings.FieldsSeq(all) {
		part := strings.Split(line, "/")
		found[part[0]] = NovaServer{Project: part[1], State: part[2], Created: part[3]}
	}
	return found
}
