package leases

import (
	"net/http"
	"strings"
	"testing"

	"github.com/cloudfn/cloudfn/shared/testkit"
)

// TestHeal: what happens when a host fails can be chosen and changed, with an event; a dry run shows it.
func TestHeal(t *testing.T) {
	t.Parallel()
	f := start(t, nil)
	f.hosts(t, 3)
	two := `, "heal": "manual"}, {"type": "host", "max": 2`
	var dry Lease
	f.Post(t, "/v1/leases?dry_run=true", ofHosts("now", "PT2H", two)).JSON(t, &dry)
	made := f.make(t, ofHosts("now", "PT2H", two))
	f.begin(t, made)
	shown := func(l Lease) string {
		var heals []string
		for _, r := range l.Reservations {
			heals = append(heals, string(r.Heal))
		}
		return strings.Join(heals, " ")
	}
	if a, b := shown(dry), shown(made); a != "manual auto" || a != b {
		t.Errorf("the dry run has %s, the lease %s", a, b)
	}
	for _, heal := range []string{"auto", "auto", "manual"} {
		if got := shown(f.changes(t, made, `{"heal": "`+heal+`"}`)); got != heal+" "+heal {
			t.Errorf("with %s it is %s", heal, got)
		}
	}
	for body, field := range map[string]string{`{"heal": "never"}`: "heal", `{"heal": null}`: "heal"} {
		refused(t, patch(t, f.Client, path(made), body), http.StatusBadRequest, field)
	}
	other := f.make(t, ofInstance(f.instance(t, f.project.ID, "active"), ""))
	refused(t, patch(t, f.Client, path(other), `{"heal": "auto"}`), http.StatusBadRequest, "heal")
	if got := testkit.Scalar[string](t, f.conn, `select string_agg(data->>'fields', ' ' order by seq) from events
		where subject = $1::text and type = 'cloudfn.lease.changed.v1'`, made.ID); got != `["heal"] ["heal"]` {
		t.Errorf("the events name %s", got)
	}
}
