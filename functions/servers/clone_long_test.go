package servers

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/gophercloud/gophercloud/v2/openstack/compute/v2/quotasets"

	"github.com/cloudfn/cloudfn/shared/testkit"
)

// serverTables are the tables of Nova's cell with a row for each server; their column for its id is instance_uuid.
var serverTables = []string{"instance_extra", "instance_info_caches", "instance_system_metadata"}

// liftQuota lets the project have any number of servers.
func liftQuota(t *testing.T, p *testkit.Project) {
	t.Helper()
	all := -1
	opts := quotasets.UpdateOpts{Instances: &all, Cores: &all, RAM: &all}
	nova := testkit.Compute(t, testkit.Login(t, "admin"))
	if _, err := quotasets.Update(context.Background(), nova, p.ID, opts).Extract(); err != nil {
		t.Fatal(err)
	}
}

// cloneServer adds n clones of a server to Nova's database and returns their ids: Nova itself needs twenty minutes for
// a thousand. The clones are on no host, so no compute service checks them. Each is a second older than the one before.
func cloneServer(t *testing.T, p *testkit.Project, serverID string, n int) map[string]bool {
	t.Helper()
	clones := "project_id = '" + p.ID + "' and display_name like 'clone-%'"
	t.Cleanup(func() { removeClones(t, clones) })
	rows := fmt.Sprintf(`(select seq, concat(left(sha1(concat(seq, '%[1]s')), 8), '-c0de-4000-8000-',
		substr(sha1(concat(seq, '%[1]s')), 9, 12)) uuid from seq_1_to_%[2]d) c`, serverID, n)
	created := "date_sub(s.created_at, interval seq second)"
	sql := []string{cloneRows(t, "nova.instances", "uuid", rows, serverID, map[string]string{
		"uuid": "c.uuid", "display_name": "concat('clone-', seq)", "host": "null", "node": "null",
		"created_at": created, "launched_at": created,
	})}
	uuid := map[string]string{"instance_uuid": "c.uuid"}
	for _, table := range serverTables {
		sql = append(sql, cloneRows(t, "nova."+table, "instance_uuid", rows, serverID, uuid))
	}
	sql = append(sql, cloneRows(t, "nova_api.instance_mappings", "instance_uuid", rows, serverID, uuid))
	testkit.NovaSQL(t, strings.Join(sql, "; "))
	made := map[string]bool{}
	for id := range strings.FieldsSeq(testkit.NovaSQL(t, "select uuid from nova.instances where "+clones)) {
		made[id] = true
	}
	if len(made) != n {
		t.Fatalf("%d clones, want %d", len(made), n)
	}
	return made
}

// cloneRows returns a statement that inserts a server's row once for each clone, with the changed columns.
func cloneRows(t *testing.T, table, column, clones, serverID string, changed map[string]string) string {
	t.Helper()
	schema, name, _ := strings.Cut(table, ".")
	columns := testkit.NovaSQL(t, fmt.Sprintf("select column_name from information_schema.columns "+
		"where table_schema = '%s' and table_name = '%s' and column_name <> 'id'", schema, name))
	var names, values []string
	for name := range strings.FieldsSeq(columns) {
		value, ok := changed[name]
		if !ok {
			value = "s.`" + name + "`"
		}
		names, values = append(names, "`"+name+"`"), append(values, value)
	}
	return fmt.Sprintf("insert into %s (%s) select %s from %s s, %s where s.%s = '%s'",
		table, strings.Join(names, ", "), strings.Join(values, ", "), table, clones, column, serverID)
}

func removeClones(t *testing.T, clones string) {
	t.Helper()
	began := time.Now()
	in := " where instance_uuid in (select uuid from nova.instances where " + clones + ")"
	statements := []string{"delete from nova_api.instance_mappings" + in}
	for _, table := range serverTables {
		statements = append(statements, "delete from nova."+table+in)
	}
	statements = append(statements, "delete from nova.instances where "+clones)
	testkit.NovaSQL(t, strings.Join(statements, "; "))
	t.Logf("removed the clones in %s", time.Since(began).Round(time.Millisecond))
}
