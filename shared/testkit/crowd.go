package testkit

import (
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// perServer are the tables of Nova's cell with a row for each server, and their column for the server's id.
var perServer = map[string]string{
	"instance_extra": "instance_uuid", "instance_info_caches": "instance_uuid", "instance_system_metadata": "instance_uuid",
}

// Crowd copies a server's rows in Nova's database until the project has n servers more, because Nova itself needs twenty minutes
// for a thousand. The copies are on no host, so no compute looks for them. They are a second apart, older than the server.
// At the test's end their rows go. It gives their ids.
func (p *Project) Crowd(t testing.TB, serverID string, n int) map[string]bool {
	t.Helper()
	t.Cleanup(func() { p.removeCrowd(t) })
	copies := `(select seq, concat(left(sha1(concat(seq, '` + serverID + `')), 8), '-c0de-4000-8000-', substr(sha1(concat(seq, '` + serverID + `')), 9, 12)) uuid from seq_1_to_` +
		fmt.Sprint(n) + `) c`
	created := "date_sub(s.created_at, interval seq second)"
	sql := []string{copyRows(t, "nova", "instances", "uuid", copies, serverID, map[string]string{
		"uuid": "c.uuid", "display_name": "concat('" + crowdPrefix + "', seq)", "host": "null", "node": "null", "created_at": created, "launched_at": created,
	})}
	for table, column := range perServer {
		sql = append(sql, copyRows(t, "nova", table, column, copies, serverID, map[string]string{column: "c.uuid"}))
	}
	sql = append(sql, copyRows(t, "nova_api", "instance_mappings", "instance_uuid", copies, serverID, map[string]string{"instance_uuid": "c.uuid"}))
	novaSQL(t, strings.Join(sql, "; "))
	made := map[string]bool{}
	for _, id := range strings.Fields(novaRows(t, "select uuid from nova.instances where "+p.crowd())) {
		made[id] = true
	}
	if len(made) != n {
		t.Fatalf("there are %d copies instead of %d", len(made), n)
	}
	return made
}

const crowdPrefix = "crowd-"

func (p *Project) crowd() string {
	return "project_id = '" + p.ID + "' and display_name like '" + crowdPrefix + "%'"
}

// copyRows is a statement that copies the row of a server for each copy of the server.
func copyRows(t testing.TB, database, table, column, copies, serverID string, changed map[string]string) string {
	t.Helper()
	columns := strings.Fields(novaRows(t, "select column_name from information_schema.columns where table_schema = '"+database+"' and table_name = '"+table+"' and column_name <> 'id'"))
	var names, values []string
	for _, name := range columns {
		value, ok := changed[name]
		if !ok {
			value = "s.`" + name + "`"
		}
		names, values = append(names, "`"+name+"`"), append(values, value)
	}
	return fmt.Sprintf("insert into %s.%s (%s) select %s from %s.%s s, %s where s.%s = '%s'",
		database, table, strings.Join(names, ", "), strings.Join(values, ", "), database, table, copies, column, serverID)
}

func (p *Project) removeCrowd(t testing.TB) {
	t.Helper()
	began := time.Now()
	var sql []string
	in := " in (select uuid from nova.instances where " + p.crowd() + ")"
	sql = append(sql, "delete from nova_api.instance_mappings where instance_uuid"+in)
	for table, column := range perServer {
		sql = append(sql, "delete from nova."+table+" where "+column+in)
	}
	sql = append(sql, "delete from nova.instances where "+p.crowd())
	novaSQL(t, strings.Join(sql, "; "))
	t.Logf("removed the copies in %s", time.Since(began).Round(time.Millisecond))
}

// novaRows is what Nova's database answers, a row a line.
func novaRows(t testing.TB, sql string) string {
	t.Helper()
	socket := filepath.Join(filepath.Dir(CloudsYAML(t)), "run", "mysql.sock")
	out, err := exec.Command("mariadb", "--no-defaults", "-S", socket, "-u", "root", "nova", "-N", "-e", sql).CombinedOutput()
	if err != nil {
		t.Fatalf("nova's database: %v %s", err, out)
	}
	return string(out)
}
