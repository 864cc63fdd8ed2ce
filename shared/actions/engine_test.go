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

// fakeNova is a Nova with one server: in states that the sandbox's cannot be held in.
type fakeNova struct {
	server domain.Server
	calls  []string
	ports  int
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

func (f *fakeNova) DeleteServer(context.Context, string) error { return f.call("delete", "deleting") }

func (f *fakeNova) RebuildServer(_ context.Context, _ string, r domain.Rebuild, _ bool) error {
	f.server.Metadata = r.Metadata
	return f.call("rebuild "+r.ImageID, "rebuilding")
}

func (f *fakeNova) Ports(context.Context, string) (int, error) { return f.ports, nil }

// recorded is a database that keeps what was last written of an instance.
type recorded struct {
	Instances
	last  domain.Instance
	actor *domain.Actor
}

func (r *recorded) Change(ctx context.Context, known []domain.Instance) (int, error) {
	r.last, r.actor = known[0], domain.ActorIn(ctx)
	return 1, nil
}

func (r *recorded) DeleteTried(context.Context, domain.Instance, time.Time) error { return nil }

func server(status, task string) domain.Server {
	return domain.Server{ID: "s", Status: status, Task: task, Image: &domain.ImageRef{ID: "image"}}
}

// TestStep of one action in each kind of state, as a request and as an action that is followed.
func TestStep(t *testing.T) {
	t.Parallel()
	start, stop := domain.ActionRequest{Action: domain.Start}, domain.ActionRequest{Action: domain.Stop}
	remove := domain.ActionRequest{Action: domain.Delete}
	for name, tc := range map[string]struct {
		request   domain.ActionRequest
		server    domain.Server
		isRequest bool
		call      string
		want      Progress // without Blocked
		isBlocked bool
		code      apperr.Code
	}{
		"stop":                       {stop, server("ACTIVE", ""), true, "stop", Progress{State: "updating", Accepted: true, Done: true}, false, ""},
		"stop, followed":             {stop, server("ACTIVE", ""), false, "stop", Progress{State: "updating", Accepted: true, Done: true}, false, ""},
		"stopped already":            {stop, server("SHUTOFF", ""), true, "", Progress{State: "stopped", Done: true}, false, ""},
		"being stopped":              {stop, server("ACTIVE", "powering-off"), true, "", Progress{State: "updating", Done: true}, false, ""},
		"start of a shelved one":     {start, server("SHELVED", ""), true, "unshelve", Progress{State: "updating", Accepted: true, Done: true}, false, ""},
		"start of a paused one":      {start, server("PAUSED", ""), false, "", Progress{}, false, apperr.Conflict},
		"start while it is built":    {start, server("BUILD", ""), false, "", Progress{State: "building"}, true, ""},
		"start of a deleted one":     {start, server("DELETED", ""), false, "", Progress{}, false, apperr.NotFound},
		"delete":                     {remove, server("ACTIVE", ""), true, "delete", Progress{State: "deleting", Accepted: true, Done: true}, false, ""},
		"delete, followed":           {remove, server("ACTIVE", ""), false, "delete", Progress{State: "deleting", Accepted: true}, false, ""},
		"being deleted":              {remove, server("ACTIVE", "deleting"), true, "", Progress{State: "deleting", Done: true}, false, ""},
		"being deleted, followed":    {remove, server("ACTIVE", "deleting"), false, "", Progress{State: "deleting"}, true, ""},
		"deleted with its ports":     {remove, server("DELETED", ""), false, "", Progress{State: "deleted", Done: true}, false, ""},
		"kept for a while by Nova":   {remove, server("SOFT_DELETED", ""), false, "", Progress{State: "deleted", Done: true}, false, ""},
		"reboot of one that is down": {domain.ActionRequest{Action: domain.Reboot}, server("SHUTOFF", ""), true, "", Progress{}, false, apperr.Conflict},
	} {
		nova, written := &fakeNova{server: tc.server}, &recorded{}
		a := Action{ActionRequest: tc.request, ServerID: "s", Instance: domain.Instance{ID: uuid.New(), ServerID: "s"}, Actor: &domain.Actor{UserID: "u"}}
		if !tc.isRequest {
			a.Follow = &Follow{RequestedAt: time.Now(), Now: time.Now()}
		}
		p, err := Engine{written}.Step(t.Context(), nova, a)
		isBlocked := p.Blocked != nil
		p.Blocked = nil
		if p != tc.want || isBlocked != tc.isBlocked || apperr.CodeOf(err) != tc.code {
			t.Errorf("%s: got %+v, blocked %t, %v", name, p, isBlocked, err)
		}
		if len(nova.calls) > 1 || (tc.call != "") != (len(nova.calls) == 1) || tc.call != "" && nova.calls[0] != tc.call {
			t.Errorf("%s: called %v", name, nova.calls)
		}
		if tc.call != "" && (written.last.State != tc.want.State || written.actor == nil || written.actor.Action != tc.request.Action) {
			t.Errorf("%s: written is %s by %+v", name, written.last.State, written.actor)
		}
	}
}

// TestBlockedForTooLong ends an action, for the reason that it was blocked.
func TestBlockedForTooLong(t *testing.T) {
	t.Parallel()
	nova := &fakeNova{server: server("BUILD", "")}
	for waiting, want := range map[time.Duration]apperr.Code{9 * time.Minute: "", 11 * time.Minute: apperr.Conflict} {
		a := Action{
			ActionRequest: domain.ActionRequest{Action: domain.Stop}, ServerID: "s", Instance: domain.Instance{ID: uuid.New(), ServerID: "s"},
			Follow: &Follow{Now: time.Now(), Waiting: waiting},
		}
		if _, err := (Engine{&recorded{}}).Step(t.Context(), nova, a); apperr.CodeOf(err) != want {
			t.Errorf("after %s: %v", waiting, err)
		}
	}
}

// TestRunDeploys: a stopped server is started first, and rebuilt once it is active.
func TestRunDeploys(t *testing.T) {
	t.Parallel()
	nova, id := &fakeNova{server: server("SHUTOFF", "")}, uuid.New()
	a := Action{
		ActionRequest: domain.ActionRequest{Action: domain.Deploy}, ServerID: "s", Instance: domain.Instance{ID: uuid.New(), ServerID: "s"},
		Deployment: Deployment{Prepare: func(context.Context) (domain.Rebuild, error) { return domain.Rebuild{ID: id}, nil }},
	}
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	up := &comingUp{fakeNova: nova}
	p, err := Engine{&recorded{}}.Run(ctx, up, a)
	if err != nil || !p.Accepted || p.State != domain.InstanceUpdating || len(nova.calls) != 2 || nova.calls[1] != "rebuild image" ||
		nova.server.Metadata[domain.DeployMark] != id.String() {
		t.Errorf("got %+v %v after %v: %v", p, err, nova.calls, nova.server.Metadata)
	}
}

// comingUp is active at the second read after it was started.
type comingUp struct {
	*fakeNova
	reads int
}

func (c *comingUp) Server(context.Context, string) (domain.Server, error) {
	if len(c.calls) == 1 {
		if c.reads++; c.reads > 1 {
			c.server.Status, c.server.Task = "ACTIVE", ""
		}
	}
	return c.server, nil
}

// TestConnectWhileACellIsDown is refused, and may be tried later.
func TestConnectWhileACellIsDown(t *testing.T) {
	t.Parallel()
	partial := server("UNKNOWN", "")
	partial.Partial = true
	_, _, err := Engine{}.Connect(t.Context(), &fakeNova{server: partial}, "s", "", domain.Instance{}, nil)
	if apperr.CodeOf(err) != apperr.Conflict || !errors.Is(err, ErrCellDown) {
		t.Errorf("got %v", err)
	}
}
