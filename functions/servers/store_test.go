package servers

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/uuid"

	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/testkit"
)

// TestDeploymentOfAFailedAction is dropped only if the action is certainly not stored: otherwise run-connections would
// rebuild a server for an agent that no longer exists.
func TestDeploymentOfAFailedAction(t *testing.T) {
	t.Parallel()
	d := delegate(t, nil)
	id, _ := d.instance(t, domain.InstanceActive, domain.OriginLaunched)
	deploy := `{"action":"deploy","image":"registry.example.com/agent:1","confirm_rebuild":true,"connection_id":%q}`
	for _, tc := range []struct {
		sqlState     string
		status, kept int
	}{{"23505", 409, 0}, {"57P01", 503, 1}} {
		d.exec(t, fmt.Sprintf(`
create or replace function fail() returns trigger language plpgsql as $$
begin raise 'failed' using errcode = '%s'; end $$;
create or replace trigger fail before insert on actions for each row execute function fail()`, tc.sqlState))
		a, _ := d.act(t, id, deploy)
		n := testkit.Scalar[int](t, d.conn, "select count(*)::int from deployments")
		if a.Status != tc.status || n != tc.kept {
			t.Errorf("%s: got %d %s, and %d deployments are stored", tc.sqlState, a.Status, a.Body, n)
		}
	}
}

// TestDeployRejectsImagesBeyondTheLimits of the connection, before anything is stored.
func TestDeployRejectsImagesBeyondTheLimits(t *testing.T) {
	t.Parallel()
	allowed, other := uuid.NewString(), uuid.NewString()
	d := delegate(t, func(c *domain.Connection) { c.Limits.Images = []string{allowed} })
	id, _ := d.instance(t, domain.InstanceStopped, domain.OriginLaunched)
	deploy := func(image string) (testkit.Answer, string) {
		return d.act(t, id, `{"action":"deploy","connection_id":%q,"image":"registry.example.com/agent:7",
"server_image":"`+image+`","confirm_rebuild":true}`)
	}
	a, _ := deploy(other)
	text := string(a.Body)
	if a.Status != 403 || !testkit.Names(t, a, "server_image") || !strings.Contains(text, other) ||
		!strings.Contains(text, "only "+allowed) {
		t.Errorf("got %d %s", a.Status, text)
	}
	const stored = "select (select count(*) from actions)::int + (select count(*) from deployments)::int"
	if n := testkit.Scalar[int](t, d.conn, stored); n != 0 {
		t.Errorf("%d rows are stored", n)
	}
	if a, action := deploy(allowed); a.Status != 202 || action == "" {
		t.Errorf("got %d %s", a.Status, a.Body)
	}
}
