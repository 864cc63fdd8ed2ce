package collectstats

import (
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/cloudfn/cloudfn/shared/testkit"
)

// novaServer is a row of Nova's database.
type novaServer struct {
	Project, State string // "" = it is deleted
	Written        int64  // Nova's own time of its last change, Unix
}

// novaAt waits until a moment, and reads the projects' servers, with those that were just deleted, from the database of
// Nova's cell, by id. The database itself waits, so this is exact to some milliseconds.
func novaAt(t testing.TB, moment time.Time, projects ...string) map[string]novaServer {
	t.Helper()
	rows := testkit.NovaSQL(t, fmt.Sprintf(`do sleep(greatest(0, %d.%06d - unix_timestamp(sysdate(6))));
		select concat_ws('/', uuid, project_id, if(deleted = 0, coalesce(vm_state, ''), ''),
			timestampdiff(second, '1970-01-01', greatest(created_at, coalesce(updated_at, 0), coalesce(deleted_at, 0))))
		from nova.instances where (deleted = 0 or deleted_at > utc_timestamp() - interval 1 minute)
			and project_id in ('%s')`,
		moment.Unix(), moment.Nanosecond()/1000, strings.Join(projects, "', '")))
	found := map[string]novaServer{}
	for line := range strings.FieldsSeq(rows) {
		part := strings.Split(line, "/")
		written, err := strconv.ParseInt(part[3], 10, 64)
		if err != nil {
			t.Fatal(err)
		}
		found[part[0]] = novaServer{Project: part[1], State: part[2], Written: written}
	}
	return found
}
