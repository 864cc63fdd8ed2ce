package domain

import (
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
)

func TestStateOfUnknownStatusIsUpdating(t *testing.T) {
	t.Parallel()
	for status, want := range map[string]InstanceState{
		"ACTIVE": InstanceActive, "UNKNOWN": InstanceUnknown, "VERIFY_RESIZE": InstanceResizing,
		"SUSPENDED":   InstanceSuspended,
		"NEW_IN_2030": InstanceUpdating,
	} {
		if got := StateOf(status, ""); got != want {
			t.Errorf("%s is %s, want %s", status, got, want)
		}
	}
}

// TestFaultStays: a list that leaves Nova's reason out says nothing new of an instance in error.
func TestFaultStays(t *testing.T) {
	t.Parallel()
	i := Instance{State: InstanceBuilding}
	if i.Observe(Server{ID: "s", Status: "ERROR"}); !i.Unexplained() {
		t.Errorf("without a reason it is %+v", i.Problem)
	}
	if changed := i.Observe(Server{ID: "s", Status: "ERROR", Fault: &Fault{Message: "No valid host"}}); !changed ||
		i.Unexplained() {
		t.Errorf("with a reason it is %+v", i.Problem)
	}
	if changed := i.Observe(Server{ID: "s", Status: "ERROR"}); changed || i.Problem.Detail != "No valid host" {
		t.Errorf("after a list without: %t %+v", changed, i.Problem)
	}
	if i.Observe(Server{ID: "s", Status: "ACTIVE"}); i.Problem != nil {
		t.Errorf("once it is active: %+v", i.Problem)
	}
	if i.Observe(Server{ID: "s", Status: "ERROR"}); !i.Unexplained() {
		t.Errorf("in error again, for another reason: %+v", i.Problem)
	}
}

// TestObservedSize: the spec follows a resize once it waits for its confirmation, and when it was reverted.
func TestObservedSize(t *testing.T) {
	t.Parallel()
	small := FlavorRef{Name: "small", VCPUs: 1, RAMMB: 512, DiskGB: 10}
	large := FlavorRef{Name: "large", VCPUs: 4, RAMMB: 8192, DiskGB: 20}
	i := Instance{State: InstanceActive}
	i.Spec.Sized(Flavor{ID: "1", Name: "small", VCPUs: 1, RAMMB: 512, DiskGB: 10})
	for n, step := range []struct {
		server    Server
		isOther   bool
		want      string
		wantVCPUs int
	}{
		{Server{Status: "ACTIVE", Flavor: small}, false, "small", 1},
		{Server{Status: "RESIZE", Flavor: large}, false, "small", 1},
		{Server{Status: "VERIFY_RESIZE", Flavor: large}, true, "large", 4},
		{Server{Status: "VERIFY_RESIZE", Task: "resize_reverting", Flavor: small}, false, "large", 4},
		{Server{Status: "ACTIVE"}, false, "large", 4}, // Nova does not show it
		{Server{Status: "ACTIVE", Flavor: small}, true, "small", 1},
	} {
		step.server.ID = "s"
		changed := i.Observe(step.server)
		if i.IsOtherSize != step.isOther || step.isOther && !changed || i.Spec.FlavorName != step.want ||
			i.Spec.VCPUs != step.wantVCPUs {
			t.Errorf("%d: %t, %+v", n, i.IsOtherSize, i.Spec)
		}
	}
	i.Spec.ImageID, i.Spec.ImageRef = "i1", "debian"
	for image, isOther := range map[string]bool{"i1": false, "i2": true} {
		of := i
		of.Observe(Server{ID: "s", Status: "ACTIVE", Flavor: small, Image: &ImageRef{ID: image}})
		if of.IsOtherSize != isOther || of.Spec.ImageID != image || (of.Spec.ImageRef == "") != isOther {
			t.Errorf("rebuilt with %s: %+v", image, of.Spec)
		}
	}
	if i.Spec.FlavorID != "" {
		t.Errorf("the flavor's id is still %s", i.Spec.FlavorID)
	}
}

// TestMissed: a server that Nova does not find twice, with MissedFor in between, is deleted.
func TestMissed(t *testing.T) {
	t.Parallel()
	i := Instance{
		ServerID: "s", Name: "n", State: InstanceActive, RawStatus: "ACTIVE", Addresses: []Address{{IP: "10.0.0.1"}},
	}
	now := time.Now()
	look := func(after time.Duration, changed bool, want InstanceState) {
		t.Helper()
		if got := i.Missed(now.Add(after)); got != changed || i.State != want {
			t.Errorf("after %s: changed %t, %s", after, got, i.State)
		}
	}
	look(0, true, InstanceActive)
	look(MissedFor-1, false, InstanceActive)
	found := Server{ID: "s", Name: "n", Status: "ACTIVE", Addresses: i.Addresses}
	if !i.Found(found) || !i.MissedAt.IsZero() || i.Found(found) {
		t.Errorf("found again: %+v", i)
	}
	look(time.Hour, true, InstanceActive)
	look(time.Hour+MissedFor, true, InstanceDeleted)
	if i.Name != "n" || len(i.Addresses) != 1 || i.RawStatus != "DELETED" || !i.MissedAt.IsZero() {
		t.Errorf("got %+v", i)
	}
}

// TestMade: the tags say for what a server was made, or nothing.
func TestMade(t *testing.T) {
	t.Parallel()
	order, instance := uuid.New(), uuid.New()
	for _, c := range []struct {
		tags []string
		ok   bool
	}{
		{[]string{instance.String(), OrderTag(order)}, true},
		{[]string{"web", OrderTag(order), "cloudfn-order:web", instance.String()}, true},
		{[]string{instance.String()}, false},
		{[]string{OrderTag(order)}, false},
		{[]string{OrderTag(order), instance.String(), uuid.NewString()}, false},
		{[]string{OrderTag(order), OrderTag(uuid.New()), instance.String()}, false},
		{[]string{OrderTag(order), "{" + instance.String() + "}"}, false},
		{nil, false},
	} {
		gotOrder, gotInstance, ok := Server{Tags: c.tags}.Made()
		if ok != c.ok || ok && (gotOrder != order || gotInstance != instance) {
			t.Errorf("%v: got %s %s %t", c.tags, gotOrder, gotInstance, ok)
		}
	}
}

// TestBetween: the states that a server was in between two looks, in their order, and none that it was not in for
// certain.
func TestBetween(t *testing.T) {
	t.Parallel()
	at := func(second int) time.Time { return time.Date(2026, 1, 2, 3, 0, second, 0, time.UTC) }
	action := func(name string, start, finish int) LoggedAction {
		a := LoggedAction{Name: name, Start: at(start)}
		if finish > 0 {
			a.Finish = at(finish)
		}
		return a
	}
	stop, start := action("stop", 12, 13), action("start", 15, 16)
	failed, undone := stop, action("delete", 9, 11)
	failed.Failed, undone.Failed = true, true
	for name, tc := range map[string]struct {
		known InstanceState
		log   []LoggedAction // Nova gives the newest first
		shown string
		task  string
		want  string
	}{
		"stopped and started": {
			InstanceActive, []LoggedAction{start, stop}, "ACTIVE", "", "stopped",
		},
		"and rebooted": {
			InstanceActive,
			[]LoggedAction{action("reboot", 18, 19), start, stop},
			"ACTIVE", "",
			"stopped active rebooting",
		},
		"all in one second": {
			InstanceActive,
			[]LoggedAction{action("reboot", 12, 13), action("start", 12, 12), action("stop", 12, 12)},
			"ACTIVE", "", "stopped active rebooting",
		},
		"and still at the reboot": {
			InstanceActive,
			[]LoggedAction{action("reboot", 18, 0), start, stop},
			"REBOOT", "rebooting",
			"stopped active",
		},
		"stopping when last observed": {
			InstanceUpdating, []LoggedAction{start, stop}, "ACTIVE", "", "stopped",
		},
		"only stopped": {InstanceActive, []LoggedAction{stop}, "SHUTOFF", "", ""},
		"only rebooted": {
			InstanceActive, []LoggedAction{action("reboot", 12, 13)}, "ACTIVE", "", "rebooting",
		},
		"rebooting when last observed": {
			InstanceRebooting, []LoggedAction{action("reboot", 9, 12)}, "ACTIVE", "", "",
		},
		"observed already": {
			InstanceActive, []LoggedAction{action("start", 7, 8), action("stop", 4, 5)}, "ACTIVE", "", "",
		},
		"stopped, and then deleted": {
			InstanceActive, []LoggedAction{action("delete", 18, 19), stop}, "DELETED", "", "stopped",
		},
		"a stop that was broken off by a delete": {
			InstanceActive, []LoggedAction{action("delete", 13, 14), action("stop", 12, 0)}, "DELETED", "", "",
		},
		"a stop that failed": {InstanceActive, []LoggedAction{start, failed}, "ACTIVE", "", ""},
		"deleting when last observed, soon after it was made": {
			InstanceDeleting,
			[]LoggedAction{action("delete", 12, 0), action("create", 2, 12)},
			"ACTIVE",
			"deleting", "",
		},
		"deleting when last observed, and stopped before": {
			InstanceDeleting, []LoggedAction{action("delete", 14, 18), stop}, "DELETED", "", "",
		},
		"a deletion that failed, and a stop": {
			InstanceDeleting, []LoggedAction{action("start", 17, 18), stop, undone}, "ACTIVE", "", "stopped",
		},
		"what changes no state": {
			InstanceActive, []LoggedAction{action("lock", 15, 15), stop}, "SHUTOFF", "", "",
		},
		"an outcome that the log does not say": {
			InstanceActive, []LoggedAction{stop, action("rebuild", 11, 12)}, "SHUTOFF", "", "",
		},
		"begun after Nova was read": {
			InstanceActive, []LoggedAction{action("start", 40, 41), stop}, "SHUTOFF", "", "",
		},
	} {
		i := Instance{State: tc.known, NovaAt: at(10)}
		var got []string
		for _, p := range i.PassedStates(Server{Status: tc.shown, Task: tc.task, UpdatedAt: at(20)}, tc.log) {
			got = append(got, string(p.State))
		}
		if strings.Join(got, " ") != tc.want {
			t.Errorf("%s: got %q, want %q", name, got, tc.want)
		}
	}
}

// TestMayPass: the log is read only of what changed, and not while a server is being made.
func TestMayPass(t *testing.T) {
	t.Parallel()
	seen := time.Now()
	i := Instance{ServerID: "s", State: InstanceActive, NovaAt: seen}
	changed := Server{ID: "s", Status: "ACTIVE", UpdatedAt: seen.Add(time.Second)}
	unchanged, unknown := changed, changed
	unchanged.UpdatedAt, unknown.Status = seen, "UNKNOWN"
	building, fresh := i, i
	building.State, fresh.NovaAt = InstanceBuilding, time.Time{}
	if !i.MayHavePassed(changed) || i.MayHavePassed(unchanged) || i.MayHavePassed(unknown) ||
		building.MayHavePassed(changed) || fresh.MayHavePassed(changed) {
		t.Error("another choice was made")
	}
}
