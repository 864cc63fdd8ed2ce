package domain

import (
	"slices"
	"strings"
	"testing"
)

// TestAllowedActions: what each state allows, by Nova's compute/api.py.
func TestAllowedActions(t *testing.T) {
	t.Parallel()
	for state, want := range map[InstanceState]string{
		InstanceRequested: "",
		InstanceBuilding:  "lock unlock rename delete",
		InstanceActive: "stop reboot pause suspend shelve snapshot lock unlock rename resize rebuild rescue deploy " +
			"delete",
		InstanceStopped:   "start reboot shelve snapshot lock unlock rename resize rebuild rescue deploy delete",
		InstanceShelved:   "start unshelve lock unlock rename deploy delete",
		InstancePaused:    "reboot unpause shelve snapshot lock unlock rename delete",
		InstanceSuspended: "reboot resume shelve snapshot lock unlock rename delete",
		InstanceRebooting: "reboot lock unlock rename delete",
		InstanceUpdating:  "lock unlock rename delete",
		InstanceResizing:  "lock unlock rename confirm_resize revert_resize delete",
		InstanceRescued:   "lock unlock rename unrescue delete",
		InstanceError:     "stop reboot lock unlock rename rebuild rescue deploy delete",
		InstanceUnknown:   "delete",
		InstanceDeleting:  "",
		InstanceDeleted:   "",
	} {
		if got := strings.Join(AllowedActions(state), " "); got != want {
			t.Errorf("%s allows %q, want %q", state, got, want)
		}
	}
}

// TestActionsAndTheirOpposites: each is idle where the other one begins, and in the task that does it.
func TestActionsAndTheirOpposites(t *testing.T) {
	t.Parallel()
	for action, tc := range map[Action]struct {
		opposite Action
		status   string // after the action
		task     string // that does it
	}{
		Pause: {Unpause, "PAUSED", "pausing"}, Unpause: {Pause, "ACTIVE", "unpausing"},
		Suspend: {Resume, "SUSPENDED", "suspending"}, Resume: {Suspend, "ACTIVE", "resuming"},
		Rescue: {Unrescue, "RESCUE", "rescuing"}, Unrescue: {Rescue, "ACTIVE", "unrescuing"},
		Stop: {Start, "SHUTOFF", "powering-off"}, Start: {Stop, "ACTIVE", "powering-on"},
	} {
		request := ActionRequest{Action: action}
		if state := StateOf(tc.status, ""); !request.Idle(state, "") || request.Check(state) == nil ||
			(ActionRequest{Action: tc.opposite}).Check(state) != nil {
			t.Errorf("%s, or %s, of a server that is %s", action, tc.opposite, state)
		}
		state := StateOf("ACTIVE", tc.task)
		if !request.Idle(state, tc.task) || state != request.After(InstanceActive) {
			t.Errorf("%s while Nova is %s: %s", action, tc.task, state)
		}
	}
}

// TestFulfilled: a repeated action finds that the server has what it requests.
func TestFulfilled(t *testing.T) {
	t.Parallel()
	server := Server{Name: "web", Status: "ACTIVE"}
	locked, partial := server, server
	locked.Locked, partial.Partial = true, true
	for n, tc := range []struct {
		action Action
		server Server
		args   ActionArguments
		want   bool
	}{
		{Lock, server, ActionArguments{}, false},
		{Lock, locked, ActionArguments{Reason: "other"}, true},
		{Unlock, server, ActionArguments{}, true},
		{Unlock, locked, ActionArguments{}, false},
		{Unlock, partial, ActionArguments{}, false}, // it is not known
		{Rename, server, ActionArguments{Name: "web"}, true},
		{Rename, server, ActionArguments{Name: "Web"}, false},
		{Stop, server, ActionArguments{}, false},
	} {
		if got := (ActionRequest{Action: tc.action}).Fulfilled(tc.server, tc.args); got != tc.want {
			t.Errorf("%d: %s is fulfilled: %t", n, tc.action, got)
		}
	}
}

// TestActionPermissions: each action needs a permission that a connection can have.
func TestActionPermissions(t *testing.T) {
	t.Parallel()
	for _, r := range actionRules {
		if !slices.Contains(Permissions(), string(r.needs)) || len(accessFor[r.needs]) == 0 {
			t.Errorf("%s needs the permission %q", r.Action, r.needs)
		}
	}
}

// TestEndOfAResize: only a server that waits for it allows it, and says so.
func TestEndOfAResize(t *testing.T) {
	t.Parallel()
	for _, action := range []Action{ConfirmResize, RevertResize} {
		request := ActionRequest{Action: action}
		for _, server := range []Server{
			{Status: "RESIZE", Task: "resize_finish"},
			{Status: "REVERT_RESIZE", Task: "resize_reverting"},
			{Status: "ACTIVE"},
		} {
			allowed := server.Allows(StateOf(server.Status, ""))
			if request.CheckServer(server) == nil || slices.Contains(allowed, action) {
				t.Errorf("%s of a server in %s", action, server.Status)
			}
		}
		waits := Server{Status: "VERIFY_RESIZE"}
		if err := request.CheckServer(waits); err != nil || !slices.Contains(waits.Allows(InstanceResizing), action) {
			t.Errorf("%s: %v", action, err)
		}
	}
}

// TestMoving: a resize that is to be confirmed waits for its owner, not for Nova.
func TestMoving(t *testing.T) {
	t.Parallel()
	for status, want := range map[string]bool{
		"RESIZE": true, "VERIFY_RESIZE": false, "REVERT_RESIZE": true, "ACTIVE": false, "BUILD": true,
	} {
		if got := (Server{Status: status}).IsMoving(); got != want {
			t.Errorf("%s is moving: %t", status, got)
		}
	}
	if !(Server{Status: "VERIFY_RESIZE", Task: "resize_reverting"}).IsMoving() {
		t.Error("a resize that is being reverted is not moving")
	}
}
