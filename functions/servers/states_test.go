package servers

import (
	"net/http"
	"strings"
	"testing"

	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/testkit"
)

// TestActionsInEveryState brings servers into each state that a client can. What we refuse, Nova would; what we do not, it
// takes, or refuses in its own words.
func TestActionsInEveryState(t *testing.T) {
	t.Parallel()
	testkit.Heavy(t)
	p := testkit.NewProject(t)
	made := p.Boot(t, "state", 7)
	app := testkit.Start(t, testkit.Env(t, testkit.Database(t), nil), Function).As(p.Token(t))
	for i, tc := range []struct {
		status  string
		enter   string   // as testkit.Tell knows it
		allowed []string // by the state
		idle    string   // what is left out: what is so already, or what would do, too
		locked  bool     // so that Nova refuses all the same
		last    string   // what Nova takes
		after   domain.InstanceState
		leave   string // the status that it ends in
	}{
		{
			status: "SHELVED_OFFLOADED", enter: "shelve",
			allowed: []string{"start", "deploy", "delete"}, last: "start", after: domain.InstanceUpdating, leave: "ACTIVE",
		},
		{
			status: "PAUSED", enter: "pause",
			allowed: []string{"reboot", "delete"}, last: "hard", after: domain.InstanceRebooting, leave: "ACTIVE",
		},
		{
			status: "SUSPENDED", enter: "suspend",
			allowed: []string{"reboot", "delete"}, last: "hard", after: domain.InstanceRebooting, leave: "ACTIVE",
		},
		{
			status: "ERROR", enter: "break",
			allowed: []string{"stop", "reboot", "deploy", "delete"}, idle: "hard", last: "stop", after: domain.InstanceUpdating, leave: "SHUTOFF",
		},
		{
			status: "RESCUE", enter: "rescue",
			allowed: []string{"delete"}, last: "delete", after: domain.InstanceDeleting, leave: "DELETED",
		},
		{
			status: "VERIFY_RESIZE", enter: "resize",
			allowed: []string{"delete"}, last: "delete", after: domain.InstanceDeleting, leave: "DELETED",
		},
		{
			status: "ACTIVE", enter: "lock",
			locked: true, idle: "start",
		},
	} {
		t.Run(tc.status, func(t *testing.T) {
			id := made[i].ID
			if status := p.Tell(t, id, tc.enter); status != http.StatusAccepted {
				t.Fatalf("%s: Nova answers %d", tc.enter, status)
			}
			p.Await(t, id, tc.status)
			for _, action := range []string{"start", "stop", "reboot", "hard"} {
				if action == tc.last || action == tc.idle {
					continue
				}
				if status := p.Tell(t, id, action); status != http.StatusConflict {
					t.Errorf("%s: Nova answers %d", action, status)
				}
				a := tell(t, app, id, action)
				words := a.status == 409 && strings.HasPrefix(a.Detail, "nova: ") && len(a.Errors) == 0
				if tc.locked && !words || !tc.locked && !a.refused(tc.allowed...) {
					t.Errorf("%s: %+v", action, a)
				}
			}
			if tc.locked {
				a := app.Do(t, http.MethodDelete, "/v1/servers/"+id, "")
				if a.Status != 409 || !strings.Contains(string(a.Body), "is locked") {
					t.Errorf("DELETE: %d %s", a.Status, a.Body)
				}
				return
			}
			if a := tell(t, app, id, tc.last); !a.did(tc.after) {
				t.Errorf("%s: %+v", tc.last, a)
			}
			p.Await(t, id, tc.leave)
		})
	}
}
