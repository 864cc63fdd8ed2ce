package collectstats

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/cloudfn/cloudfn/shared/testkit"
)

// novaServer is a row of Nova's database.
type novaServer struct{ Project, State, Created string }

// novaAt waits until a moment, and reads the projects' servers that are not deleted from the database of Nova's cell,
// by id. The database itself waits, so this is exact to some milliseconds.
func novaAt(t testing.TB, moment time.Time, projects ...string) map[string]novaServer {
	t.Helper()
	rows := testkit.NovaSQL(t, fmt.Sprintf(`do sleep(greatest(0, %d.%06d - unix_timestamp(sysdate(6))));
		select concat_ws('/', uuid, project_id, coalesce(vm_state, ''), date_format(created_at, '%%T'))
		from nova.instances where deleted = 0 and project_id in ('%s')`,
		moment.Unix(), moment.Nanosecond()/1000, strings.Join(projects, "', '")))
	found := map[string]novaServer{}
	for line := range strings.FieldsSeq(rows) {
		part := strings.Split(line, "/")
		found[part[0]] = novaServer{Project: part[1], State: part[2], Created: part[3]}
	}
	return found
}
