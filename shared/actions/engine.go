// Package actions does one action to one server: those of the table in shared/domain, and connect. With the caller's
// own token an action ends when Nova accepts it; with a delegation it is followed to its end.
package actions

import (
	"context"
	"errors"
	"time"

	"github.com/google/uuid"

	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/flow"
	"github.com/cloudfn/cloudfn/shared/lookup"
)

// Cloud is the part of OpenStack that actions need.
type Cloud interface {
	lookup.ServerReader
	lookup.Images
	StartServer(ctx context.Context, id string) error
	UnshelveServer(ctx context.Context, id string) error
	StopServer(ctx context.Context, id string) error
	RebootServer(ctx context.Context, id string, hard bool) error
	DeleteServer(ctx context.Context, id string) error
	ReleaseFloatingIPs(ctx context.Context, serverID, mark string) error
	RebuildServer(ctx context.Context, id string, r domain.RebuildRequest, fromVolume bool) error
	RescueServer(ctx context.Context, server domain.Server, imageID string) (password domain.Secret, err error)
	Flavors(context.Context) ([]domain.Flavor, error)
	ShelveServer(ctx context.Context, id string) error
	ActOnServer(ctx context.Context, server domain.Server, action domain.Action, args domain.ActionArguments) error
	OffloadServer(ctx context.Context, id string) error
	SnapshotServer(ctx context.Context, id, name string, action uuid.UUID) (imageID string, err error)
	ImagesOf(ctx context.Context, mark uuid.UUID, server domain.Server) ([]domain.Image, error)
	GiveImage(ctx context.Context, id, projectID string) error
	Ports(ctx context.Context, serverID string) (int, error)
	Actions(ctx context.Context, serverID string) ([]domain.LoggedAction, error)
}

// Instances stores changes of instances.
type Instances interface {
	domain.DeleteCounter
	Change(ctx context.Context, known []domain.Instance) (published int, err error)
	Connect(ctx context.Context, wanted domain.Instance) (instance domain.Instance, made bool, err error)
	// SetSize stores the flavor of an instance, and fails if its connection's quota has no room for it.
	SetSize(ctx context.Context, wanted domain.Instance) error
	Now(ctx context.Context) (time.Time, error)
}

// Engine does actions.
type Engine struct{ Instances Instances }

// Action is one action on one server.
type Action struct {
	domain.ActionRequest

	ID         uuid.UUID               // for events; zero = none
	Actor      *domain.Actor           // who requested it; nil = unknown
	ServerID   string                  // "" for an instance without a server
	Instance   domain.Instance         // zero for a server that is not tracked
	ProjectID  string                  // the server must be in it; "" = in any that Cloud shows
	Force      bool                    // of Delete: also a server that existed before it was connected
	Deployment Deployment              // of Deploy
	Limits     domain.ConnectionLimits // of the images that Deploy may use
	Arguments  domain.ActionArguments
	Lease      uuid.UUID // of Snapshot: the lease that it is for, which names the image; zero = none
	Follow     *Follow   // nil: the action has ended when Nova has accepted it
}

// Follow is what following an action to its end takes.
type Follow struct {
	RequestedAt time.Time
	Now         time.Time     // by the database's clock, before Nova is read
	Waiting     time.Duration // since the request, without pauses of the connection
}

// Deployment is what a server is rebuilt with.
type Deployment struct {
	ID       uuid.UUID // zero until Prepare
	ImageID  string    // "" = the server's own
	NotAfter time.Time // a later rebuild would be useless; zero = no limit
	// Prepare is called just before the rebuild, and returns the deployment's ID and user_data.
	Prepare func(context.Context) (domain.RebuildRequest, error)
}

// Progress is how far an action has come after a step.
type Progress struct {
	State    domain.InstanceState
	Accepted bool  // Nova accepted the action in this step
	Done     bool  // the action has ended
	Blocked  error // why the action has to wait for the server; nil = it does not
	Waits    error // what a lease's action waits for that Nova does; nil = nothing
	ImageID  string
	Password domain.Secret // of Rescue, in Nova's answer alone; "" = none
}

const (
	blockedFor = 10 * time.Minute
	// A deployment takes Nova longer.
	deployBlockedFor = 30 * time.Minute

	deployPoll = time.Second // between two reads of a server that is being started
	// The rebuild and the records get a quarter of the request's time, up to this much.
	longestFinish = 10 * time.Second
)

// errStarting ends a request for a deployment whose server did not come up in time.
var errStarting = apperr.New(apperr.Conflict, "the server is being started: send the same again when it is active")

// Run does the action until Nova has accepted it. It waits only for a server that it has started, as long as ctx
// permits.
func (e Engine) Run(ctx context.Context, cloud Cloud, a Action) (Progress, error) {
	enough, cancel := withoutFinish(ctx)
	defer cancel()
	for first := true; ; first = false {
		p, err := e.Step(ctx, cloud, a)
		switch {
		case err != nil || p.Done || p.Accepted:
			return p, err
		case first && p.Blocked != nil:
			return p, p.Blocked
		case !flow.Sleep(enough, deployPoll):
			return p, errStarting
		}
	}
}

// withoutFinish ends early enough for the work after the wait.
func withoutFinish(ctx context.Context) (context.Context, context.CancelFunc) {
	deadline, ok := ctx.Deadline()
	if !ok {
		return context.WithCancel(ctx)
	}
	return context.WithDeadline(ctx, deadline.Add(-min(longestFinish, time.Until(deadline)/4)))
}

// Step reads the server and does the next call. A repeated step does no harm.
func (e Engine) Step(ctx context.Context, cloud Cloud, a Action) (Progress, error) {
	x := executor{Engine: e, cloud: cloud, Action: a}
	if err := x.setReadAt(ctx); err != nil {
		return Progress{}, err
	}
	if a.Follow != nil && a.Follow.Waiting <= a.longestBlock() && a.ServerID == "" && !a.Instance.Decided() {
		return Progress{State: a.Instance.State, Blocked: ErrNoServer}, nil
	}
	server, err := e.Read(ctx, cloud, a)
	if err != nil {
		return Progress{}, err
	}
	p, err := x.run(ctx, server)
	if err == nil && a.Follow != nil && a.Follow.Waiting > a.longestBlock() {
		err = p.Blocked
	}
	return p, err
}

// longestBlock is how long an action may be blocked before it fails.
func (a Action) longestBlock() time.Duration {
	if a.Action == domain.Deploy || a.Action == domain.Snapshot {
		return deployBlockedFor
	}
	return blockedFor
}

// ErrNoServer means that an instance has no server.
var ErrNoServer = apperr.New(apperr.Conflict,
	"the instance has no server: its order has not created it yet, or Nova rejected it")

// Read reads the action's server. A tracked one that Nova no longer finds is deleted, if it is stored as deleted or
// the action deletes it. Nova is always read, because a server that it keeps for a while after its deletion may be
// restored.
func (e Engine) Read(ctx context.Context, cloud Cloud, a Action) (domain.Server, error) {
	isTracked, wasDeleted := a.Instance.ID != uuid.Nil, a.Instance.State == domain.InstanceDeleted
	gone := domain.Server{ID: a.ServerID, Status: "DELETED", Partial: true}
	switch {
	case a.ServerID == "" && wasDeleted:
		return gone, nil
	case a.ServerID == "":
		return gone, ErrNoServer
	}
	server, err := ReadServer(ctx, cloud, a.ServerID, a.ProjectID, isTracked)
	if apperr.CodeOf(err) == apperr.NotFound && (wasDeleted || isTracked && a.Action == domain.Delete) {
		return gone, nil
	}
	return server, err
}

// ReadServer reads a server of the project ("" = of any). Nova shows admins the servers of other projects, too: here
// they are NotFound. Nova answers 403 for another project's server that has not reached a cell yet; as that would
// reveal that it exists, it is NotFound, too, unless the server is tracked, and so the project's own.
func ReadServer(
	ctx context.Context, cloud lookup.ServerReader, id, projectID string, isTracked bool,
) (domain.Server, error) {
	server, err := cloud.Server(ctx, id)
	isElsewhere := err == nil && projectID != "" && server.ProjectID != projectID
	if isElsewhere || !isTracked && apperr.CodeOf(err) == apperr.Forbidden {
		return domain.Server{}, apperr.New(apperr.NotFound, "nova: Instance %s could not be found.", id)
	}
	return server, err
}

// ErrCellDown is in the chain when a server cannot be connected yet, because its flavor is unknown.
var ErrCellDown = errors.New("the server's cell is down")

// Connect tracks an existing server, with the ID (zero = any), ProjectID, ConnectionID, Remote and SeenAt of wanted.
// projectID is the server's in its own cloud. made is false when it was tracked already.
func (e Engine) Connect(
	ctx context.Context, cloud Cloud, serverID, projectID string, wanted domain.Instance, actor *domain.Actor,
) (instance domain.Instance, made bool, err error) {
	if wanted, err = ToConnect(ctx, cloud, serverID, projectID, wanted); err != nil {
		return instance, false, err
	}
	return e.Instances.Connect(domain.WithActor(ctx, actor), wanted)
}

// ToConnect is the instance that Connect stores.
func ToConnect(
	ctx context.Context, cloud lookup.ServerReader, serverID, projectID string, wanted domain.Instance,
) (domain.Instance, error) {
	server, err := ReadServer(ctx, cloud, serverID, projectID, false)
	if err != nil {
		return wanted, err
	}
	if projectID == "" { // any server that an admin's session shows
		return wanted, apperr.New(apperr.Internal, "connect server %s: its project is not known", serverID)
	}
	state := domain.StateOf(server.Status, server.Task)
	rejection := apperr.New(apperr.Conflict, "a server in the state %s cannot be connected", state)
	if server.Partial {
		rejection.Cause = ErrCellDown
	}
	if server.Partial || state == domain.InstanceDeleting || state == domain.InstanceDeleted {
		return wanted, rejection
	}
	wanted.Spec = domain.SpecOf(server)
	wanted.Observe(server)
	wanted.CallID, _ = server.CallTagged()
	return wanted, nil
}
