package actions

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/domain"
)

// fakeNova is a Nova with one server, in states in which the sandbox's servers do not stay.
type fakeNova struct {
	server domain.Server
	calls  []string
	ports  int
	log    []domain.LoggedAction

	args    domain.ActionArguments // of the last action
	offload error                  // the answer to OffloadServer
	images  []domain.Image
	marks   []uuid.UUID // of the images; those without are found by every mark
	neutron error       // the answer to ReleaseFloatingIPs
}

func (f *fakeNova) call(name, task string) error {
	f.calls = append(f.calls, name)
	f.server.Task = task
	return nil
}

func (f *fakeNova) Server(context.Context, string) (domain.Server, error) { return f.server, nil }

func (f *fakeNova) StartServer(context.Context, string) error { return f.call("start", "powering-on") }

func (f *fakeNova) UnshelveServer(context.Context, string) error {
	return f.call("unshelve", "unshelving")
}

func (f *fakeNova) StopServer(context.Context, string) error { return f.call("stop", "powering-off") }

func (f *fakeNova) RebootServer(context.Context, string, bool) error {
	return f.call("reboot", "rebooting")
}

// taskOf are Nova's tasks of actions.
var taskOf = map[domain.Action]string{
	domain.Resize: "resize_prep", domain.RevertResize: "resize_reverting",
	domain.Pause: "pausing", domain.Unpause: "unpausing", domain.Suspend: "suspending", domain.Resume: "resuming",
}

func (f *fakeNova) ActOnServer(
	_ context.Context, _ domain.Server, action domain.Action, args domain.ActionArguments,
) error {
	f.args = args
	return f.call(string(action), taskOf[action])
}

func (f *fakeNova) RescueServer(_ context.Context, _ domain.Server, imageID string) (domain.Secret, error) {
	f.args.Image = imageID
	return "made", f.call("rescue", "rescuing")
}

func (f *fakeNova) Flavors(context.Context) ([]domain.Flavor, error) { return flavors, nil }

// flavors are those of fakeNova. Its servers have the first one.
var flavors = []domain.Flavor{
	{ID: "1", Name: "small", VCPUs: 1, RAMMB: 512, DiskGB: 10},
	{ID: "2", Name: "large", VCPUs: 4, RAMMB: 8192, DiskGB: 10},
	{ID: "3", Name: "flat", VCPUs: 4, RAMMB: 8192, DiskGB: 5},
}

func (f *fakeNova) Image(_ context.Context, id string) (domain.Image, error) {
	return domain.Image{}, apperr.New(apperr.NotFound, "there is no image %s", id)
}

func (f *fakeNova) Images(context.Context, string) ([]domain.Image, error) {
	return []domain.Image{
		{ID: "i1", Name: "debian", Status: "active"},
		{ID: "i2", Name: "twice", Status: "active"},
		{ID: "i3", Name: "twice", Status: "active"},
		{ID: "i4", Name: "old", Status: "deactivated"},
	}, nil
}

func (f *fakeNova) DeleteServer(context.Context, string) error { return f.call("delete", "deleting") }

func (f *fakeNova) ReleaseFloatingIPs(ctx context.Context, serverID, mark string) error {
	if ctx.Err() == nil {
		f.calls = append(f.calls, "release "+serverID+" "+mark)
	}
	return f.neutron
}

func (f *fakeNova) RebuildServer(_ context.Context, _ string, r domain.RebuildRequest, _ bool) error {
	f.server.Metadata = r.Metadata
	return f.call("rebuild "+r.ImageID, "rebuilding")
}

func (f *fakeNova) ShelveServer(context.Context, string) error { return f.call("shelve", "shelving") }

func (f *fakeNova) OffloadServer(context.Context, string) error {
	_ = f.call("offload", "shelving_offloading")
	return f.offload
}

func (f *fakeNova) SnapshotServer(_ context.Context, _, name string, mark uuid.UUID) (string, error) {
	f.images = append(f.images, domain.Image{Name: name, Status: "queued", UpdatedAt: time.Now()})
	f.marks = append(f.marks, mark)
	return "image", f.call("snapshot", "image_snapshot")
}

func (f *fakeNova) GiveImage(context.Context, string, string) error { return nil }

func (f *fakeNova) ImagesOf(_ context.Context, mark uuid.UUID, _ domain.Server) (of []domain.Image, err error) {
	for n, image := range f.images {
		if n >= len(f.marks) || f.marks[n] == mark {
			of = append(of, image)
		}
	}
	return of, nil
}

func (f *fakeNova) Actions(context.Context, string) ([]domain.LoggedAction, error) { return f.log, nil }

func (f *fakeNova) Ports(context.Context, string) (int, error) { return f.ports, nil }

// fakeInstances stores the last change of an instance.
type fakeInstances struct {
	Instances
	last  domain.Instance
	actor *domain.Actor
	sizes []string // that SetSize got, with its error in full
	full  error
}

func (r *fakeInstances) Change(ctx context.Context, known []domain.Instance) (int, error) {
	r.last, r.actor = known[0], domain.ActorFrom(ctx)
	return 1, nil
}

func (r *fakeInstances) Now(context.Context) (time.Time, error) { return time.Now(), nil }

func (r *fakeInstances) RecordDeleteAttempt(context.Context, domain.Instance, time.Time) error {
	return nil
}

func (r *fakeInstances) SetSize(_ context.Context, wanted domain.Instance) error {
	r.sizes = append(r.sizes, wanted.Spec.FlavorName)
	if wanted.ConnectionID != uuid.Nil {
		return r.full
	}
	return nil
}

func server(status, task string) domain.Server {
	return domain.Server{
		ID: "s", Status: status, Task: task, Image: &domain.ImageRef{ID: "image"},
		Flavor: domain.FlavorRef{Name: "small", VCPUs: 1, RAMMB: 512, DiskGB: 10},
	}
}

// TestStep does an action in each kind of state, as a request and as an action that is followed.
func TestStep(t *testing.T) {
	t.Parallel()
	start, stop := domain.ActionRequest{Action: domain.Start}, domain.ActionRequest{Action: domain.Stop}
	remove, reboot := domain.ActionRequest{Action: domain.Delete}, domain.ActionRequest{Action: domain.Reboot}
	shelve, unshelve := domain.ActionRequest{Action: domain.Shelve}, domain.ActionRequest{Action: domain.Unshelve}
	request := func(action domain.Action) domain.ActionRequest { return domain.ActionRequest{Action: action} }
	accepted := func(state domain.InstanceState) Progress { return Progress{State: state, Accepted: true, Done: true} }
	done := func(state domain.InstanceState) Progress { return Progress{State: state, Done: true} }
	for name, tc := range map[string]struct {
		request    domain.ActionRequest
		isFollowed bool
		server     domain.Server
		call       string
		want       Progress // without Blocked
		isBlocked  bool
		code       apperr.Code
	}{
		"stop":                   {stop, false, server("ACTIVE", ""), "stop", accepted("updating"), false, ""},
		"stop, followed":         {stop, true, server("ACTIVE", ""), "stop", accepted("updating"), false, ""},
		"stopped already":        {stop, false, server("SHUTOFF", ""), "", done("stopped"), false, ""},
		"being stopped":          {stop, false, server("ACTIVE", "powering-off"), "", done("updating"), false, ""},
		"start a shelved server": {start, false, server("SHELVED", ""), "unshelve", accepted("updating"), false, ""},
		"unshelve":               {unshelve, true, server("SHELVED", ""), "unshelve", accepted("updating"), false, ""},
		"unshelved already":      {unshelve, false, server("ACTIVE", ""), "", done("active"), false, ""},
		"being unshelved":        {unshelve, false, server("SHELVED", "spawning"), "", done("updating"), false, ""},
		"unshelve a stopped one": {unshelve, false, server("SHUTOFF", ""), "", Progress{}, false, apperr.Conflict},
		"shelve":                 {shelve, false, server("SUSPENDED", ""), "shelve", accepted("updating"), false, ""},
		"shelved already":        {shelve, false, server("SHELVED", ""), "", done("shelved"), false, ""},
		"being shelved":          {shelve, false, server("ACTIVE", "shelving"), "", done("updating"), false, ""},
		"shelve in ERROR":        {shelve, false, server("ERROR", ""), "", Progress{}, false, apperr.Conflict},
		"pause": {
			request(domain.Pause), false, server("ACTIVE", ""), "pause", accepted("updating"), false, "",
		},
		"paused already": {request(domain.Pause), false, server("PAUSED", ""), "", done("paused"), false, ""},
		"being paused": {
			request(domain.Pause), true, server("ACTIVE", "pausing"), "", done("updating"), false, "",
		},
		"pause a suspended one": {
			request(domain.Pause), false, server("SUSPENDED", ""), "", Progress{}, false, apperr.Conflict,
		},
		"suspend, followed": {
			request(domain.Suspend), true, server("ACTIVE", ""), "suspend", accepted("updating"), false, "",
		},
		"resume": {
			request(domain.Resume), false, server("SUSPENDED", ""), "resume", accepted("updating"), false, "",
		},
		"resumed already":  {request(domain.Resume), true, server("ACTIVE", ""), "", done("active"), false, ""},
		"lock":             {request(domain.Lock), false, server("ERROR", ""), "lock", accepted("error"), false, ""},
		"unlocked already": {request(domain.Unlock), true, server("ACTIVE", ""), "", done("active"), false, ""},
		"lock a deleted server": {
			request(domain.Lock), false, server("DELETED", ""), "", Progress{}, false, apperr.Conflict,
		},
		"rename while it stops": {
			request(domain.Rename), true, server("ACTIVE", "powering-off"), "rename", accepted("updating"), false, "",
		},
		"stop before a confirm": {stop, true, server("VERIFY_RESIZE", ""), "", Progress{}, false, apperr.Conflict},
		"stop during a resize": {
			stop, true, server("RESIZE", "resize_prep"), "", Progress{State: "resizing"}, true, "",
		},
		"resize": {request(domain.Resize), false, server("SHUTOFF", ""), "resize", accepted("resizing"), false, ""},
		"resize a paused server": {
			request(domain.Resize), false, server("PAUSED", ""), "", Progress{}, false, apperr.Conflict,
		},
		"resize a resized one": {
			request(domain.Resize), true, server("VERIFY_RESIZE", ""), "", Progress{}, false, apperr.Conflict,
		},
		"confirm": {
			request(domain.ConfirmResize), false, server("VERIFY_RESIZE", ""), "confirm_resize",
			accepted("resizing"), false, "",
		},
		"confirm too early": {
			request(domain.ConfirmResize), true, server("RESIZE", "resize_finish"), "",
			Progress{State: "resizing"},
			true, "",
		},
		"confirm a reverted one": {
			request(domain.ConfirmResize), false, server("ACTIVE", ""), "", Progress{}, false, apperr.Conflict,
		},
		"revert": {
			request(domain.RevertResize), true, server("VERIFY_RESIZE", ""), "revert_resize",
			accepted("resizing"), false, "",
		},
		"being reverted": {
			request(domain.RevertResize), false, server("REVERT_RESIZE", "resize_reverting"), "",
			done("resizing"), false, "",
		},
		"rebuild": {request(domain.Rebuild), false, server("ERROR", ""), "rebuild", accepted("updating"), false, ""},
		"rebuild a paused server": {
			request(domain.Rebuild), false, server("PAUSED", ""), "", Progress{}, false, apperr.Conflict,
		},
		"rebuild during a rebuild": {
			request(domain.Rebuild), true, server("REBUILD", "rebuilding"), "", Progress{State: "updating"}, true, "",
		},
		"rescue": {
			request(domain.Rescue), false, server("SHUTOFF", ""), "rescue",
			Progress{State: "updating", Accepted: true, Done: true, Password: "made"},
			false, "",
		},
		"rescued already": {request(domain.Rescue), false, server("RESCUE", ""), "", done("rescued"), false, ""},
		"being rescued": {
			request(domain.Rescue), true, server("ACTIVE", "rescuing"), "", done("updating"), false, "",
		},
		"unrescue": {
			request(domain.Unrescue), true, server("RESCUE", ""), "unrescue", accepted("updating"), false, "",
		},
		"rescue a paused server": {
			request(domain.Rescue), false, server("PAUSED", ""), "", Progress{}, false, apperr.Conflict,
		},
		"start a paused server":  {start, true, server("PAUSED", ""), "", Progress{}, false, apperr.Conflict},
		"start during the build": {start, true, server("BUILD", ""), "", Progress{State: "building"}, true, ""},
		"start a deleted server": {start, true, server("DELETED", ""), "", Progress{}, false, apperr.NotFound},
		"delete":                 {remove, false, server("ACTIVE", ""), "delete", accepted("deleting"), false, ""},
		"being deleted":          {remove, false, server("ACTIVE", "deleting"), "", done("deleting"), false, ""},
		"being deleted, followed": {
			remove, true, server("ACTIVE", "deleting"), "", Progress{State: "deleting"}, true, "",
		},
		"deleted with its ports":  {remove, true, server("DELETED", ""), "", done("deleted"), false, ""},
		"kept by Nova":            {remove, true, server("SOFT_DELETED", ""), "", done("deleted"), false, ""},
		"reboot a stopped server": {reboot, false, server("SHUTOFF", ""), "", Progress{}, false, apperr.Conflict},
		"delete, followed": {
			remove, true, server("ACTIVE", ""), "delete", Progress{State: "deleting", Accepted: true}, false, "",
		},
	} {
		nova, stored := &fakeNova{server: tc.server}, &fakeInstances{}
		a := actionOf(tc.request)
		a.Arguments = domain.ActionArguments{Name: "new", Flavor: "large"}
		if tc.isFollowed {
			a.Follow = &Follow{RequestedAt: time.Now(), Now: time.Now()}
		}
		p, err := Engine{stored}.Step(t.Context(), nova, a)
		isBlocked := p.Blocked != nil
		p.Blocked = nil
		if p != tc.want || isBlocked != tc.isBlocked || apperr.CodeOf(err) != tc.code {
			t.Errorf("%s: got %+v, blocked %t, %v", name, p, isBlocked, err)
		}
		if tc.call == "" {
			if len(nova.calls) > 0 {
				t.Errorf("%s: called %v", name, nova.calls)
			}
			continue
		}
		if len(nova.calls) != 1 || nova.calls[0] != tc.call {
			t.Errorf("%s: called %v", name, nova.calls)
		}
		if by := stored.actor; stored.last.State != tc.want.State || by == nil || by.Action != tc.request.Action {
			t.Errorf("%s: stored is %s by %+v", name, stored.last.State, by)
		}
	}
}

// TestRename stores the new name, so that its event has it. A repeated one finds it.
func TestRename(t *testing.T) {
	t.Parallel()
	nova, stored := &fakeNova{server: server("ACTIVE", "")}, &fakeInstances{}
	a := actionOf(domain.ActionRequest{Action: domain.Rename})
	a.Arguments.Name = "new"
	if _, err := (Engine{stored}).Step(t.Context(), nova, a); err != nil || stored.last.Name != "new" {
		t.Errorf("stored is %+v: %v", stored.last, err)
	}
	nova.server.Name = "new"
	p, err := Engine{stored}.Step(t.Context(), nova, a)
	if err != nil || p.Accepted || !p.Done || len(nova.calls) != 1 {
		t.Errorf("the repeated one: %+v after %v: %v", p, nova.calls, err)
	}
}

// TestDeleteReleases: a deletion that Nova accepts releases the floating IP that the order made, and succeeds also if
// Neutron does not answer or the client has hung up. No other action does, nor a deletion of a server without one.
func TestDeleteReleases(t *testing.T) {
	t.Parallel()
	hungUp, cancel := context.WithCancel(t.Context())
	cancel()
	for name, tc := range map[string]struct {
		action domain.Action
		given  *domain.ServerFloatingIP
		fails  error
		calls  int
	}{
		"one of the order": {domain.Delete, &domain.ServerFloatingIP{}, nil, 2},
		"no answer":        {domain.Delete, &domain.ServerFloatingIP{}, apperr.New(apperr.Unavailable, "down"), 2},
		"one of its own":   {domain.Delete, &domain.ServerFloatingIP{Address: "203.0.113.7"}, nil, 1},
		"none":             {domain.Delete, nil, nil, 1},
		"stop":             {domain.Stop, &domain.ServerFloatingIP{}, nil, 1},
	} {
		nova := &fakeNova{server: server("ACTIVE", ""), neutron: tc.fails}
		a := actionOf(domain.ActionRequest{Action: tc.action})
		a.Instance.Spec.FloatingIP = tc.given
		p, err := Engine{&fakeInstances{}}.Step(hungUp, nova, a)
		want := "release " + nova.server.ID + " " + domain.FloatingIPMark(a.Instance.ID)
		if err != nil || !p.Accepted || len(nova.calls) != tc.calls || tc.calls == 2 && nova.calls[1] != want {
			t.Errorf("%s: called %v, got %+v %v", name, nova.calls, p, err)
		}
	}
}

func actionOf(r domain.ActionRequest) Action {
	i := domain.Instance{ID: uuid.New(), ServerID: "s"}
	return Action{ActionRequest: r, ServerID: i.ServerID, Instance: i, Actor: &domain.Actor{UserID: "u"}}
}

// TestBlockedActionTimesOut with the reason why it was blocked.
func TestBlockedActionTimesOut(t *testing.T) {
	t.Parallel()
	nova := &fakeNova{server: server("BUILD", "")}
	for waiting, want := range map[time.Duration]apperr.Code{9 * time.Minute: "", 11 * time.Minute: apperr.Conflict} {
		a := actionOf(domain.ActionRequest{Action: domain.Stop})
		a.Follow = &Follow{Now: time.Now(), Waiting: waiting}
		if _, err := (Engine{&fakeInstances{}}).Step(t.Context(), nova, a); apperr.CodeOf(err) != want {
			t.Errorf("after %s: %v", waiting, err)
		}
	}
}

// TestRunDeploys to a stopped server: it is started first, and rebuilt when it is active.
func TestRunDeploys(t *testing.T) {
	t.Parallel()
	nova, id := &fakeNova{server: server("SHUTOFF", "")}, uuid.New()
	a := actionOf(domain.ActionRequest{Action: domain.Deploy})
	a.Deployment.Prepare = func(context.Context) (domain.RebuildRequest, error) {
		return domain.RebuildRequest{ID: id}, nil
	}
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	p, err := Engine{&fakeInstances{}}.Run(ctx, &startingNova{fakeNova: nova}, a)
	if err != nil || !p.Accepted || p.State != domain.InstanceUpdating ||
		len(nova.calls) != 2 || nova.calls[1] != "rebuild image" ||
		nova.server.Metadata[domain.DeployMark] != id.String() {
		t.Errorf("got %+v %v after %v: %v", p, err, nova.calls, nova.server.Metadata)
	}
}

// startingNova shows the server as active at the second read after its start.
type startingNova struct {
	*fakeNova
	reads int
}

func (c *startingNova) Server(context.Context, string) (domain.Server, error) {
	if len(c.calls) == 1 {
		if c.reads++; c.reads > 1 {
			c.server.Status, c.server.Task = "ACTIVE", ""
		}
	}
	return c.server, nil
}

// TestConnectWhileACellIsDown fails with an error that is worth a retry.
func TestConnectWhileACellIsDown(t *testing.T) {
	t.Parallel()
	partial := server("UNKNOWN", "")
	partial.Partial, partial.ProjectID = true, "p"
	_, _, err := Engine{}.Connect(t.Context(), &fakeNova{server: partial}, "s", "p", domain.Instance{}, nil)
	if apperr.CodeOf(err) != apperr.Conflict || !errors.Is(err, ErrCellDown) {
		t.Errorf("got %v", err)
	}
}

func followed(request domain.ActionRequest, requested time.Time) Action {
	return Action{
		ActionRequest: request, ServerID: "s", Instance: domain.Instance{ID: uuid.New(), ServerID: "s"},
		Actor:  &domain.Actor{UserID: "u"},
		Follow: &Follow{RequestedAt: requested, Now: time.Now(), Waiting: time.Since(requested)},
	}
}

// TestDeleteAfterARebuildFailed calls Nova: a fault that is younger than the request, and older than any call of this
// deletion, is the answer to something else.
func TestDeleteAfterARebuildFailed(t *testing.T) {
	t.Parallel()
	requested := time.Now().Add(-time.Minute)
	nova := &fakeNova{server: server("ERROR", "")}
	nova.server.Fault = &domain.Fault{Message: "the rebuild failed", Created: requested.Add(30 * time.Second)}
	a := followed(domain.ActionRequest{Action: domain.Delete}, requested)
	if _, err := (Engine{&fakeInstances{}}).Step(t.Context(), nova, a); err != nil || len(nova.calls) != 1 {
		t.Errorf("called %v: %v", nova.calls, err)
	}
	nova.server.Task = ""
	a.Instance.DeleteTries, a.Instance.DeleteTriedAt = 1, requested.Add(10*time.Second)
	if _, err := (Engine{&fakeInstances{}}).Step(t.Context(), nova, a); apperr.CodeOf(err) != apperr.Conflict ||
		len(nova.calls) != 1 {
		t.Errorf("after a call of its own: called %v: %v", nova.calls, err)
	}
}

// lostAnswers is a Nova that reboots, behind a proxy that answers 504.
type lostAnswers struct{ *fakeNova }

func (l lostAnswers) RebootServer(ctx context.Context, id string, hard bool) error {
	_ = l.fakeNova.RebootServer(ctx, id, hard)
	l.server.Task = ""
	l.log = append(l.log, domain.LoggedAction{Name: "reboot", Start: time.Now()})
	return apperr.New(apperr.Timeout, "504")
}

// TestARebootIsNotRepeated although each answer to it is lost.
func TestARebootIsNotRepeated(t *testing.T) {
	t.Parallel()
	nova := lostAnswers{&fakeNova{server: server("ACTIVE", "")}}
	nova.log = []domain.LoggedAction{{Name: "reboot", Start: time.Now().Add(-time.Hour)}} // of before
	a, p := followed(domain.ActionRequest{Action: domain.Reboot}, time.Now()), Progress{}
	for n := range 3 {
		var err error
		if p, err = (Engine{&fakeInstances{}}).Step(t.Context(), nova, a); (err != nil) != (n == 0) {
			t.Fatalf("step %d: %v", n, err)
		}
	}
	if len(nova.calls) != 1 || !p.Done {
		t.Errorf("%d reboots, %+v", len(nova.calls), p)
	}
}

// TestHardRebootAfterASoftOne calls Nova: the soft one, which is in its log, hangs.
func TestHardRebootAfterASoftOne(t *testing.T) {
	t.Parallel()
	nova := &fakeNova{server: server("REBOOT", "reboot_started")}
	nova.log = []domain.LoggedAction{{Name: "reboot", Start: time.Now()}}
	a := followed(domain.ActionRequest{Action: domain.Reboot, Hard: true}, time.Now())
	p, err := Engine{&fakeInstances{}}.Step(t.Context(), nova, a)
	if err != nil || len(nova.calls) != 1 || !p.Accepted {
		t.Errorf("called %v, %+v: %v", nova.calls, p, err)
	}
}
