package domain

import (
	"slices"
	"testing"
	"time"

	"github.com/google/uuid"
)

func TestOrderEvaluate(t *testing.T) {
	t.Parallel()
	made := func(s InstanceState) Instance { return Instance{ServerID: "x", State: s} }
	refused := Instance{State: InstanceError, Problem: &Problem{}}
	for name, tc := range map[string]struct {
		status    OrderStatus
		instances []Instance
		want      OrderStatus
	}{
		"nothing decided": {OrderRunning, []Instance{{State: InstanceRequested}}, OrderRunning},
		"still building": {
			OrderRunning, []Instance{made(InstanceActive), made(InstanceBuilding)}, OrderRunning,
		},
		"all there":               {OrderRunning, []Instance{made(InstanceActive), made(InstanceActive)}, OrderDone},
		"one refused":             {OrderRunning, []Instance{made(InstanceActive), refused}, OrderPartial},
		"one failed later":        {OrderRunning, []Instance{made(InstanceActive), made(InstanceError)}, OrderPartial},
		"all refused":             {OrderRunning, []Instance{refused, refused}, OrderFailed},
		"one waits, one refused":  {OrderRunning, []Instance{made(InstanceBuilding), refused}, OrderRunning},
		"deleted meanwhile":       {OrderRunning, []Instance{made(InstanceDeleted)}, OrderDone},
		"a final status is final": {OrderDone, []Instance{made(InstanceError)}, OrderDone},
		"nova does not tell":      {OrderRunning, []Instance{made(InstanceUnknown)}, OrderDone},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if got := (Order{Status: tc.status, Instances: tc.instances}).Evaluate(); got != tc.want {
				t.Errorf("got %s, want %s", got, tc.want)
			}
		})
	}
}

// TestAbandonedOrders end as their instances are: what can no longer be done is not waited for, and nothing is rolled
// back.
func TestAbandonedOrders(t *testing.T) {
	t.Parallel()
	made := func(s InstanceState) Instance { return Instance{ServerID: "x", State: s} }
	refused, requested := Instance{State: InstanceError, Problem: &Problem{}}, Instance{State: InstanceRequested}
	for name, tc := range map[string]struct {
		spec      OrderSpec
		instances []Instance
		want      OrderStatus
	}{
		"still building":  {OrderSpec{}, []Instance{made(InstanceBuilding), made(InstanceActive)}, OrderDone},
		"one was not had": {OrderSpec{}, []Instance{made(InstanceBuilding), refused}, OrderPartial},
		"none was had":    {OrderSpec{OnFailure: Rollback}, []Instance{refused, refused}, OrderFailed},
		"not stopped":     {OrderSpec{Stopped: true}, []Instance{made(InstanceActive)}, OrderDone},
		"not started":     {OrderSpec{Reuse: true}, []Instance{made(InstanceStopped)}, OrderDone},
		"volumes not set": {
			OrderSpec{SetsVolumes: true}, []Instance{{
				ServerID: "x", State: InstanceActive, Spec: LaunchSpec{Volumes: []ServerVolume{{SizeGB: 1}}},
			}}, OrderDone,
		},
		"not rolled back": {
			OrderSpec{OnFailure: Rollback}, []Instance{made(InstanceActive), made(InstanceError)}, OrderPartial,
		},
		"nothing is decided yet": {OrderSpec{}, []Instance{requested, made(InstanceActive)}, OrderRunning},
	} {
		o := Order{Spec: tc.spec, Status: OrderRunning, Instances: tc.instances}
		before := slices.Clone(tc.instances)
		if got := o.Abandoned(); got != tc.want || !slices.EqualFunc(before, o.Instances, func(a, b Instance) bool {
			return a.State == b.State
		}) {
			t.Errorf("%s: got %s, want %s; %+v", name, got, tc.want, o.Instances)
		}
	}
	if got := (Order{Status: OrderDone}).Abandoned(); got != OrderDone {
		t.Errorf("an order that is done becomes %s", got)
	}
}

// TestReusedIsStarted before its order is done.
func TestReusedIsStarted(t *testing.T) {
	t.Parallel()
	for state, want := range map[InstanceState]OrderStatus{
		InstanceStopped: OrderRunning, InstanceUpdating: OrderRunning, InstanceActive: OrderDone,
		InstanceError: OrderFailed,
	} {
		o := Order{
			Spec: OrderSpec{Reuse: true}, Status: OrderRunning, Instances: []Instance{{ServerID: "x", State: state}},
		}
		if got := o.Evaluate(); got != want {
			t.Errorf("%s: got %s, want %s", state, got, want)
		}
	}
}

// TestNextIgnoresDisconnected: an order neither acts on a disconnected instance nor waits for it.
func TestNextIgnoresDisconnected(t *testing.T) {
	t.Parallel()
	made := func(s InstanceState) Instance { return Instance{ServerID: "x", State: s} }
	refused := Instance{State: InstanceError, Problem: &Problem{}}
	for name, tc := range map[string]struct {
		spec       OrderSpec
		gone, stay Instance
		step       Step
		want       OrderStatus
	}{
		"a rollback": {
			OrderSpec{OnFailure: Rollback}, made(InstanceActive), refused, StepNone, OrderRolledBack,
		},
		"a rollback with more": {
			OrderSpec{OnFailure: Rollback}, made(InstanceError), made(InstanceActive), StepDelete, OrderRunning,
		},
		"to be stopped": {
			OrderSpec{Stopped: true}, made(InstanceActive), made(InstanceStopped), StepNone, OrderDone,
		},
		"an idle one": {
			OrderSpec{Reuse: true}, made(InstanceStopped), made(InstanceActive), StepNone, OrderDone,
		},
		"observed by no one": {OrderSpec{}, made(InstanceBuilding), made(InstanceActive), StepNone, OrderDone},
	} {
		tc.gone.DisconnectedAt = time.Now()
		o := Order{Spec: tc.spec, Status: OrderRunning, Instances: []Instance{tc.gone, tc.stay}}
		if steps := o.Next(); !slices.Equal(steps, []Step{StepNone, tc.step}) || o.Evaluate() != tc.want {
			t.Errorf("%s: got %q %s, want %q %s", name, steps, o.Evaluate(), tc.step, tc.want)
		}
	}
}

// TestReconciledOrders holds the status and the steps of orders that want more than servers.
func TestReconciledOrders(t *testing.T) {
	t.Parallel()
	made := func(s InstanceState) Instance { return Instance{ServerID: "x", State: s} }
	refused := Instance{State: InstanceError, Problem: &Problem{}}
	requested := Instance{State: InstanceRequested}
	all, stopped := OrderSpec{OnFailure: Rollback}, OrderSpec{Stopped: true}
	both, volumes := OrderSpec{OnFailure: Rollback, Stopped: true}, OrderSpec{SetsVolumes: true}
	withGroups := func(s InstanceState) Instance {
		groups := []Attachment{{NetworkID: "n", SecurityGroups: []string{"g"}}}
		return Instance{ServerID: "x", State: s, Spec: LaunchSpec{Attachments: groups}}
	}
	withVolumes := func(s InstanceState) Instance {
		return Instance{ServerID: "x", State: s, Spec: LaunchSpec{Volumes: []ServerVolume{{SizeGB: 1}}}}
	}
	attaching, attachingLong := withVolumes(InstanceBuilding), withVolumes(InstanceBuilding)
	attachingLong.CreatedAt = time.Time{}.Add(-attachGrace)
	for name, tc := range map[string]struct {
		spec      OrderSpec
		status    OrderStatus
		instances []Instance
		steps     []Step
		want      OrderStatus
	}{
		"nothing is decided": {all, OrderRunning, []Instance{requested}, []Step{StepCreate}, OrderRunning},
		"all is well": {
			all, OrderRunning, []Instance{made(InstanceActive)}, []Step{StepNone}, OrderDone,
		},
		"nova is at work": {
			all, OrderRunning, []Instance{made(InstanceActive), made(InstanceBuilding)}, []Step{"", ""}, OrderRunning,
		},
		"one failed": {
			all, OrderRunning, []Instance{made(InstanceActive), made(InstanceError), made(InstanceBuilding)}, []Step{
				StepDelete, StepDelete, StepDelete,
			}, OrderRunning,
		},
		"one failed while Nova attaches volumes": {
			all, OrderRunning, []Instance{made(InstanceError), attaching}, []Step{StepDelete, ""}, OrderRunning,
		},
		"one failed, and volumes are attached for too long": {
			all, OrderRunning,
			[]Instance{made(InstanceError), attachingLong},
			[]Step{StepDelete, StepDelete},
			OrderRunning,
		},
		"one was refused": {
			all, OrderRunning,
			[]Instance{requested, refused, made(InstanceUnknown)},
			[]Step{StepSkip, "", StepDelete},
			OrderRunning,
		},
		"the failed one is deleted first": {
			all, OrderRunning,
			[]Instance{made(InstanceActive), made(InstanceDeleted), made(InstanceDeleting)},
			[]Step{StepDelete, "", ""},
			OrderRunning,
		},
		"all are deleted": {
			all, OrderRunning, []Instance{made(InstanceDeleted), refused}, []Step{"", ""}, OrderRolledBack,
		},
		"none was made": {all, OrderRunning, []Instance{refused}, []Step{""}, OrderRolledBack},
		"someone deleted one": {
			all, OrderRunning,
			[]Instance{made(InstanceDeleted), made(InstanceActive)},
			[]Step{"", StepDelete},
			OrderRunning,
		},
		"deleted after the end": {
			all, OrderDone, []Instance{made(InstanceDeleted), made(InstanceActive)}, []Step{"", ""}, OrderDone,
		},
		"a late one after a rollback": {
			all, OrderRolledBack, []Instance{made(InstanceBuilding), refused}, []Step{"", ""}, OrderRolledBack,
		},
		"failed, and kept": {
			OrderSpec{},
			OrderRunning,
			[]Instance{made(InstanceError), made(InstanceActive)},
			[]Step{"", ""},
			OrderPartial,
		},
		"deleted, and kept": {
			OrderSpec{},
			OrderRunning,
			[]Instance{made(InstanceDeleted), made(InstanceBuilding)},
			[]Step{"", ""},
			OrderRunning,
		},
		"active, to be stopped": {
			stopped, OrderRunning,
			[]Instance{made(InstanceActive), made(InstanceBuilding)},
			[]Step{StepStop, ""},
			OrderRunning,
		},
		"being stopped": {
			stopped, OrderRunning, []Instance{made(InstanceUpdating)}, []Step{""}, OrderRunning,
		},
		"all are stopped": {
			stopped, OrderRunning, []Instance{made(InstanceStopped), made(InstanceDeleted)}, []Step{"", ""}, OrderDone,
		},
		"one is stopped, one failed": {
			stopped, OrderRunning, []Instance{made(InstanceStopped), made(InstanceError)}, []Step{"", ""}, OrderPartial,
		},
		"started after the end": {stopped, OrderDone, []Instance{made(InstanceActive)}, []Step{""}, OrderDone},
		"the groups of its ports are not set, also while it is built": {
			OrderSpec{SetsGroups: true},
			OrderRunning,
			[]Instance{withGroups(InstanceActive), withGroups(InstanceBuilding), withGroups(InstanceError)},
			[]Step{StepGroups, StepGroups, ""},
			OrderRunning,
		},
		"its volumes are not set": {
			volumes, OrderRunning,
			[]Instance{withVolumes(InstanceActive), withVolumes(InstanceBuilding)},
			[]Step{StepVolumes, ""},
			OrderRunning,
		},
		"all or nothing waits for the last server": {
			OrderSpec{SetsVolumes: true, OnFailure: Rollback},
			OrderRunning,
			[]Instance{withVolumes(InstanceActive), withVolumes(InstanceBuilding)},
			[]Step{"", ""},
			OrderRunning,
		},
		"nor those of one whose cell is down": {
			volumes, OrderRunning, []Instance{withVolumes(InstanceUnknown)}, []Step{""}, OrderRunning,
		},
		"its volumes are set before it is stopped": {
			OrderSpec{SetsVolumes: true, Stopped: true},
			OrderRunning,
			[]Instance{withVolumes(InstanceActive)},
			[]Step{StepVolumes},
			OrderRunning,
		},
		"one failed with its volumes, one was deleted": {
			volumes, OrderRunning,
			[]Instance{withVolumes(InstanceError), withVolumes(InstanceDeleted)},
			[]Step{"", ""},
			OrderPartial,
		},
		"one failed, and the volumes go with all": {
			OrderSpec{SetsVolumes: true, OnFailure: Rollback},
			OrderRunning,
			[]Instance{withVolumes(InstanceError), withVolumes(InstanceActive)},
			[]Step{StepDelete, StepDelete},
			OrderRunning,
		},
		"both, and one failed": {
			both, OrderRunning,
			[]Instance{made(InstanceActive), made(InstanceError)},
			[]Step{StepDelete, StepDelete},
			OrderRunning,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			o := Order{Spec: tc.spec, Status: tc.status, Instances: tc.instances}
			if got := o.Next(); !slices.Equal(got, tc.steps) {
				t.Errorf("steps: got %q, want %q", got, tc.steps)
			}
			got := o.Evaluate()
			if got != tc.want {
				t.Errorf("status: got %s, want %s", got, tc.want)
			}
			if got != tc.status && !slices.Contains(OrderTransitions[tc.status], got) {
				t.Errorf("from %s to %s is not in the table", tc.status, got)
			}
		})
	}
}

// TestReusedIsReplaced when it is deleted before the order is done, and never makes the order done.
func TestReusedIsReplaced(t *testing.T) {
	t.Parallel()
	placed := time.Now()
	idle := func(s InstanceState) Instance {
		return Instance{ServerID: "x", State: s, CreatedAt: placed.Add(-time.Hour)}
	}
	fresh := Instance{ServerID: "y", State: InstanceDeleted, CreatedAt: placed}
	for name, tc := range map[string]struct {
		instance  Instance
		replaced  bool
		want, end OrderStatus // while it is worked on, and when it is abandoned
	}{
		"deleted":            {idle(InstanceDeleted), true, OrderRunning, OrderFailed},
		"being deleted":      {idle(InstanceDeleting), true, OrderRunning, OrderFailed},
		"started":            {idle(InstanceActive), false, OrderDone, OrderDone},
		"a new one, deleted": {fresh, false, OrderDone, OrderDone},
		"not started as yet": {idle(InstanceStopped), false, OrderRunning, OrderDone},
		"disconnected by now": {
			Instance{ServerID: "x", State: InstanceDeleted, CreatedAt: placed.Add(-time.Hour), DisconnectedAt: placed},
			false, OrderDone, OrderDone,
		},
	} {
		o := Order{
			Spec: OrderSpec{Reuse: true}, Status: OrderRunning, CreatedAt: placed, Instances: []Instance{tc.instance},
		}
		if o.HasReplaced() != tc.replaced || o.Evaluate() != tc.want || o.Abandoned() != tc.end {
			t.Errorf("%s: replaced is %t, the order is %s, and %s when it is abandoned", name, o.HasReplaced(),
				o.Evaluate(), o.Abandoned())
		}
	}
}

// TestWhoseServer: an instance takes only what one of its create calls can have made, and only what provably comes from
// another one of them is a duplicate.
func TestWhoseServer(t *testing.T) {
	t.Parallel()
	now := time.Now()
	o := Order{ID: uuid.New(), Status: OrderRunning}
	i := Instance{ID: uuid.New(), Name: "web", State: InstanceRequested}
	first := CreateCall{
		ID: uuid.New(), InstanceID: i.ID, Name: "web", UserID: "u", BeganAt: now, Until: now.Add(time.Minute),
	}
	second := first
	second.ID = uuid.New()
	o.Calls, o.Instances = []CreateCall{first, second}, []Instance{i}
	server := func(id string, after time.Duration, more ...string) Server {
		return Server{
			ID: id, Name: "web", UserID: "u", Status: "ACTIVE", CreatedAt: now.Add(after), Tags: append([]string{
				i.ID.String(), OrderTag(o.ID),
			}, more...),
		}
	}
	ours := server("ours", time.Second, CallTag(first.ID))
	copied, script := server("copied", 2*time.Second, CallTag(first.ID)), server("script", 0)
	months := server("months", 90*24*time.Hour, CallTag(first.ID))
	gone := ours
	gone.Status = "DELETED"
	for name, tc := range map[string]struct {
		order Order
		found []Server
		want  string
	}{
		"ours":                    {o, []Server{ours}, "ours"},
		"ours, before a copy":     {o, []Server{copied, ours}, "ours"},
		"ours, after someone's":   {o, []Server{script, ours}, "ours"},
		"someone's":               {o, []Server{script}, ""},
		"someone's, months later": {o, []Server{months}, ""},
		"ours is deleted":         {o, []Server{gone}, ""},
	} {
		own, _, ok := tc.order.OwnServer(i, tc.found)
		if own.ID != tc.want || ok != (tc.want != "") {
			t.Errorf("%s: got %q %t, want %q", name, own.ID, ok, tc.want)
		}
	}

	kept := i
	kept.ServerID = "kept"
	o.Calls[1].ServerID = "kept"
	change := func(f func(*Server)) Server {
		s := ours
		f(&s)
		return s
	}
	tagged := kept
	tagged.Spec.Tags = []string{"web"}
	if _, isOurs := o.Duplicate(tagged, change(func(s *Server) { s.Tags = append(s.Tags, "web") })); !isOurs {
		t.Error("a duplicate with the caller's own tag is someone's")
	}
	if _, isOurs := o.Duplicate(tagged, ours); isOurs {
		t.Error("a server without the caller's own tag is a duplicate")
	}
	done, rolledBack := o, o
	done.Status, rolledBack.Status = OrderDone, OrderRolledBack
	for name, tc := range map[string]struct {
		order Order
		s     Server
		want  bool
	}{
		"made by the other call":   {o, ours, true},
		"its own":                  {o, change(func(s *Server) { s.ID = "kept" }), false},
		"a copy of its own":        {o, server("x", time.Second, CallTag(second.ID)), false},
		"without a call":           {o, script, false},
		"of a call of no one":      {o, server("x", time.Second, CallTag(uuid.New())), false},
		"with a tag of someone's":  {o, change(func(s *Server) { s.Tags = append(s.Tags, "web") }), false},
		"with another name":        {o, change(func(s *Server) { s.Name = "web2" }), false},
		"of another user":          {o, change(func(s *Server) { s.UserID = "v" }), false},
		"too early":                {o, server("x", -time.Hour, CallTag(first.ID)), false},
		"too late":                 {o, server("x", time.Hour, CallTag(first.ID)), false},
		"the order is done":        {done, ours, false},
		"the order is rolled back": {rolledBack, ours, false},
	} {
		if _, got := tc.order.Duplicate(kept, tc.s); got != tc.want {
			t.Errorf("%s: got %t", name, got)
		}
	}
	if _, got := o.Duplicate(i, ours); got {
		t.Error("an instance without a server has a duplicate")
	}
	if !ours.IsOldest([]Server{copied, ours}) || copied.IsOldest([]Server{copied, ours}) {
		t.Error("a copy passes for the oldest")
	}
}

// TestRollbackWaits for a create call without an answer: once the order is rolled back, a server that comes late stays.
func TestRollbackWaits(t *testing.T) {
	t.Parallel()
	now := time.Now()
	requested := Instance{ID: uuid.New(), State: InstanceRequested}
	failed := Instance{ServerID: "x", State: InstanceError}
	call := CreateCall{ID: uuid.New(), InstanceID: requested.ID, Until: now}
	o := Order{
		Status: OrderRunning, Spec: OrderSpec{OnFailure: Rollback}, Instances: []Instance{requested, failed},
		Calls: []CreateCall{call},
	}
	for after, want := range map[time.Duration]Step{
		-time.Second: StepNone, time.Second: StepNone, time.Minute: StepSkip,
	} {
		o.ReadAt = now.Add(after)
		if got := o.Next(); got[0] != want || got[1] != StepDelete || o.WaitsForCalls() != (want == StepNone) {
			t.Errorf("after %s: got %q", after, got)
		}
	}
	o.ReadAt, o.Calls[0].EndedAt = now, now
	if got := o.Next(); got[0] != StepSkip {
		t.Errorf("with an answer: got %q", got)
	}
}

func TestInstanceName(t *testing.T) {
	t.Parallel()
	if one, of := InstanceName("web", 0, 1), InstanceName("web", 2, 3); one != "web" || of != "web-3" {
		t.Errorf("got %s and %s", one, of)
	}
}
