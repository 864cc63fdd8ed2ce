// Package actions does one thing to one server: start, stop, reboot, delete, deploy an agent, take it under management.
// It is the same with the caller's own token, which waits for Nova's yes, and with a delegation, where each action is
// followed to its end.
package actions

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/google/uuid"

	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/domain"
)

// Cloud is the part of OpenStack that actions need.
type Cloud interface {
	Server(ctx context.Context, id string) (domain.Server, error)
	StartServer(ctx context.Context, id string) error
	UnshelveServer(ctx context.Context, id string) error
	StopServer(ctx context.Context, id string) error
	RebootServer(ctx context.Context, id string, hard bool) error
	DeleteServer(ctx context.Context, id string) error
	RebuildServer(ctx context.Context, id string, r domain.Rebuild, fromVolume bool) error
	Ports(ctx context.Context, serverID string) (int, error)
}

// Instances is where changes of instances are written.
type Instances interface {
	domain.DeleteCounter
	Change(ctx context.Context, known []domain.Instance) (published int, err error)
	Connect(ctx context.Context, wanted domain.Instance) (instance domain.Instance, made bool, err error)
}

// Engine does actions.
type Engine struct{ Instances Instances }

// Action is one action on one server.
type Action struct {
	domain.ActionRequest

	ID         uuid.UUID               // as events name it; zero = it has none
	Actor      *domain.Actor           // who requested it; nil = not known
	ServerID   string                  // "" for an instance without a server
	Instance   domain.Instance         // zero for a server that is not tracked
	ProjectID  string                  // the server must be in it; "" = in any that Cloud shows
	Force      bool                    // of Delete: also a server that was there before it was connected
	Deployment Deployment              // of Deploy
	Limits     domain.ConnectionLimits // of the images that Deploy may use
	Follow     *Follow                 // nil: the action is over when Nova has accepted it
}

// Follow is what it takes to bring an action to its end, step by step.
type Follow struct {
	RequestedAt time.Time
	Now         time.Time     // by the database's clock, before Nova is asked
	Waiting     time.Duration // for how long the action has waited already
}

// Deployment is what a server is rebuilt with.
type Deployment struct {
	ID       uuid.UUID // zero while there is none yet
	ImageID  string    // "" = the one that the server has
	NotAfter time.Time // a rebuild would come too late then; zero = never
	// Prepare is called just before the rebuild. It gives the deployment's ID and user_data.
	Prepare func(context.Context) (domain.Rebuild, error)
}

// Progress is how far an action has come after a step.
type Progress struct {
	State    domain.InstanceState
	Accepted bool  // Nova has accepted the action just now
	Done     bool  // nothing is left to do
	Blocked  error // why the server's state does not allow the action yet; nil = it does, or Nova is at work on the action
}

const (
	patience = 10 * time.Minute
	// A deployment has more of Nova's work to wait for.
	deployPatience = 30 * time.Minute

	deployPoll = time.Second // between two reads of a server that is being started
	// Of the request's time, kept for the rebuild and for writing down what happened: a quarter, up to this much.
	longestFinish = 10 * time.Second
)

// errStarting ends a request for a deployment whose server did not come up in time.
var errStarting = apperr.New(apperr.Conflict, "the server is being started: send the same again when it is active")

// Run does the action until Nova has accepted it. It waits only for a server that it has started, as long as ctx leaves
// time.
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
		case !domain.Pause(enough, deployPoll):
			return p, errStarting
		}
	}
}

// withoutFinish ends early enough for what comes after the wait.
func withoutFinish(ctx context.Context) (context.Context, context.CancelFunc) {
	deadline, ok := ctx.Deadline()
	if !ok {
		return context.WithCancel(ctx)
	}
	return context.WithDeadline(ctx, deadline.Add(-min(longestFinish, time.Until(deadline)/4)))
}

// Step reads the server and asks Nova for what is next. Each step may be done twice without harm.
func (e Engine) Step(ctx context.Context, cloud Cloud, a Action) (Progress, error) {
	x := executor{e, cloud, a}
	if a.Follow != nil && a.Follow.Waiting <= a.patience() && a.ServerID == "" && !a.Instance.Decided() {
		return Progress{State: a.Instance.State, Blocked: ErrNoServer}, nil
	}
	server, err := e.Read(ctx, cloud, a)
	if err != nil {
		return Progress{}, err
	}
	p, err := x.run(ctx, server)
	if err == nil && a.Follow != nil && a.Follow.Waiting > a.patience() {
		err = p.Blocked
	}
	return p, err
}

// patience is how long an action is blocked before that ends it.
func (a Action) patience() time.Duration {
	if a.Action == domain.Deploy {
		return deployPatience
	}
	return patience
}

// ErrNoServer says that an instance has no server.
var ErrNoServer = apperr.New(apperr.Conflict, "the instance has no server: its order is not that far, or Nova refused it")

// Read reads the action's server. A tracked one that Nova does not know any more is deleted, if it was known to be or
// is to be now. Nova is asked in any case: a server that it keeps for a while after its end may be restored.
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

// ReadServer reads a server of the project ("" = of any). To an admin Nova shows those of other projects, too, which
// are absent here as for everybody. Nova answers 403 for one of another project that has not reached a cell yet, which
// would say that it exists; for a tracked server, and so one of the project's, the refusal stands.
func ReadServer(ctx context.Context, cloud ServerReader, id, projectID string, isTracked bool) (domain.Server, error) {
	server, err := cloud.Server(ctx, id)
	if err == nil && projectID != "" && server.ProjectID != projectID || !isTracked && apperr.CodeOf(err) == apperr.Forbidden {
		return domain.Server{}, apperr.New(apperr.NotFound, "nova: Instance %s could not be found.", id)
	}
	return server, err
}

// ServerReader reads one server.
type ServerReader interface {
	Server(ctx context.Context, id string) (domain.Server, error)
}

// ErrCellDown is in the chain of the error of a server that cannot be connected now: its sizes are not known.
var ErrCellDown = errors.New("the server's cell is down")

// Connect takes an existing server under management: of wanted, its ID (zero = any), ProjectID, ConnectionID, Remote
// and SeenAt count. projectID is the server's in its own cloud. made is false when it was managed already.
func (e Engine) Connect(
	ctx context.Context, cloud ServerReader, serverID, projectID string, wanted domain.Instance, actor *domain.Actor,
) (instance domain.Instance, made bool, err error) {
	server, err := ReadServer(ctx, cloud, serverID, projectID, false)
	if err != nil {
		return instance, false, err
	}
	state := domain.StateOf(server.Status, server.Task)
	refusal := apperr.New(apperr.Conflict, "a server in the state %s cannot be connected", state)
	if server.Partial {
		refusal.Cause = ErrCellDown
	}
	if server.Partial || slices.Contains([]domain.InstanceState{domain.InstanceDeleting, domain.InstanceDeleted}, state) {
		return instance, false, refusal
	}
	wanted.Spec = domain.SpecOf(server)
	wanted.Seen(server)
	return e.Instances.Connect(domain.WithActor(ctx, actor), wanted)
}
