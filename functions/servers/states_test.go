package servers

import (
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/testkit"
)

// TestLongActionsInEveryState that a client can bring a server into: we reject only what Nova rejects. It accepts the
// others, or rejects them with its own message.
func TestLongActionsInEveryState(t *testing.T) {
	t.Parallel()
	testkit.Heavy(t)
	p := testkit.BorrowProject(t)
	made := p.Boot(t, "state", 7)
	app := testkit.Start(t, testkit.Env(t, testkit.Database(t), nil), Function).As(p.Token(t))
	for i, tc := range []struct {
		status  string
		enter   string   // as testkit.Project.Act knows it
		allowed []string // by the state
		idle    []string // are not tried: there is nothing to do, or Nova would accept it
		locked  bool     // Nova rejects all actions
		last    string   // Nova accepts it
		after   domain.InstanceState
		leave   string // the status that it ends in
	}{
		{
			status: "SHELVED_OFFLOADED", enter: "shelve",
			allowed: []string{"start", "unshelve", "deploy", "delete"}, idle: []string{"shelve"}, last: "unshelve", after: domain.InstanceUpdating, leave: "ACTIVE",
		},
		{
			status: "PAUSED", enter: "pause",
			allowed: []string{"reboot", "shelve", "snapshot", "delete"}, last: "hard", after: domain.InstanceRebooting, leave: "ACTIVE",
		},
		{
			status: "SUSPENDED", enter: "suspend",
			allowed: []string{"reboot", "shelve", "snapshot", "delete"}, last: "hard", after: domain.InstanceRebooting, leave: "ACTIVE",
		},
		{
			status: "ERROR", enter: "break",
			allowed: []string{"stop", "reboot", "deploy", "delete"}, idle: []string{"hard"}, last: "stop",
			after: domain.InstanceUpdating, leave: "SHUTOFF",
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
			locked: true, idle: []string{"start", "unshelve", "snapshot"},
		},
	} {
		t.Run(tc.status, func(t *testing.T) {
			id := made[i].ID
			if status := p.Act(t, id, tc.enter); status != http.StatusAccepted {
				t.Fatalf("%s: Nova answers %d", tc.enter, status)
			}
			p.Await(t, id, tc.status)
			for _, action := range []string{"start", "stop", "reboot", "hard", "shelve", "unshelve", "snapshot"} {
				isAllowed := slices.Contains(tc.allowed, action) && action != "reboot" // which may have to be hard
				if isAllowed || action == tc.last || slices.Contains(tc.idle, action) {
					continue
				}
				if status := p.Act(t, id, action); status != http.StatusConflict {
					t.Errorf("%s: Nova answers %d", action, status)
				}
				a := sendAction(t, app, id, action)
				words := a.status == 409 && strings.HasPrefix(a.Detail, "nova: ") && len(a.Errors) == 0
				if tc.locked && !words || !tc.locked && !a.isRejected(tc.allowed...) {
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
			if a := sendAction(t, app, id, tc.last); !a.isAccepted(tc.after) {
				t.Errorf("%s: %+v", tc.last, a)
			}
			p.Await(t, id, tc.leave)
		})
	}
}
