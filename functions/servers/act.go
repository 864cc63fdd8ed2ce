package servers

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"github.com/google/uuid"
	"golang.org/x/sync/errgroup"

	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/domain"
)

// actAtOnce is how many servers of one request are acted on at a time: each takes Nova two requests.
const actAtOnce = 8

// noteTimeout bounds writing down what Nova has accepted.
const noteTimeout = 5 * time.Second

// target is the server that an id of a request stands for.
type target struct {
	given    string
	serverID string          // "" for an instance without a server
	tracked  *domain.Tracked // nil for a server that is not tracked
}

// wish is one thing that is to be done to servers.
type wish struct {
	domain.Ask

	force      bool      // of delete: also one that we have not made
	connection uuid.UUID // that it is done through; zero = with the caller's own token
	deploy     *deploy   // of Deploy
	key        key       // of an action that can be sent again
}

// outcome is what an action came to on one server.
type outcome struct {
	ID       string
	State    domain.InstanceState
	Changed  bool       // Nova was told to, or will be; false when there was nothing to do
	ActionID *uuid.UUID // of what is done through a connection
	tracked  bool
	repeated bool // the action was done before: this is what it came to
	err      error
}

// Do does one thing to servers, with the caller's own token or through a connection, and gives the outcome for each, in their
// order.
func (s service) Do(ctx context.Context, who domain.Identity, token domain.Secret, w wish, ids []string) ([]outcome, error) {
	if w.connection != uuid.Nil {
		return s.ask(ctx, who, w, ids)
	}
	return s.act(ctx, who, token, w, ids)
}

func (s service) act(ctx context.Context, who domain.Identity, token domain.Secret, w wish, ids []string) ([]outcome, error) {
	if w.Verb == domain.Deploy {
		if err := mayAct(who); err != nil {
			return nil, err
		}
	}
	targets, err := s.targets(ctx, who, ids)
	if err != nil {
		return nil, err
	}
	if err := distinct(targets); err != nil {
		return nil, err
	}
	a := acting{service: s, session: s.cloud.As(token, who.ProjectID), who: who, wish: w}
	outcomes := make([]outcome, len(targets))
	var group errgroup.Group
	group.SetLimit(actAtOnce)
	for i, t := range targets {
		group.Go(func() error { outcomes[i] = a.on(ctx, t); return nil })
	}
	_ = group.Wait() // each outcome has its own error
	if slices.ContainsFunc(outcomes, func(o outcome) bool { return o.Changed && o.tracked }) {
		s.wake("deliver-events", "poll-instances")
	}
	return outcomes, nil
}

// targets finds what ids stand for: a server's own, or that of an instance.
func (s service) targets(ctx context.Context, who domain.Identity, ids []string) ([]target, error) {
	named, err := s.instances.Named(ctx, who.ProjectID, ids)
	if err != nil {
		return nil, err
	}
	targets := make([]target, len(ids))
	for i, id := range ids {
		targets[i] = target{given: id, serverID: id}
		if t, ok := named[id]; ok {
			targets[i].serverID, targets[i].tracked = t.ServerID, &t
		}
	}
	return targets, nil
}

// distinct refuses a server that is named twice, also by its own id and by its instance's.
func distinct(targets []target) error {
	for i, t := range targets {
		same := func(o target) bool { return o.given == t.given || t.serverID != "" && o.serverID == t.serverID }
		if first := slices.IndexFunc(targets, same); first < i {
			return apperr.InvalidField(fmt.Sprintf("ids[%d]", i), fmt.Sprintf("is the same server as ids[%d]", first))
		}
	}
	return nil
}

// acting is one thing that is being done to servers.
type acting struct {
	service
	wish

	session session
	who     domain.Identity
	action  *domain.KeyedAction // of one that can be sent again
}

func (a acting) on(ctx context.Context, t target) outcome {
	o := outcome{ID: t.given, tracked: t.tracked != nil}
	if a.key.id != uuid.Nil {
		return a.once(ctx, t, o)
	}
	o.State, o.Changed, o.err = a.to(ctx, t)
	return o
}

// to does it to one server: one request to look at it, and one to have it done.
func (a acting) to(ctx context.Context, t target) (state domain.InstanceState, changed bool, err error) {
	server, err := a.look(ctx, t)
	if err != nil {
		return "", false, err
	}
	state = domain.StateOf(server.Status, server.Task)
	if a.Idle(state, server.Task) {
		return state, false, nil
	}
	if err := a.Check(state); err != nil {
		return "", false, err
	}
	if t.tracked != nil && !a.mayDelete(t.tracked.Origin) {
		return "", false, notOurs()
	}
	if a.Verb == domain.Deploy {
		server, err = a.deployTo(ctx, t, server)
	} else {
		err = a.tell(ctx, server.ID, state)
	}
	if err != nil {
		return "", false, err
	}
	if t.tracked != nil && !server.Partial {
		a.note(ctx, t.tracked.ID, server)
	}
	return a.After(), true, nil
}

// mayDelete says whether it is no deletion, or one of a server that we have made, or forced.
func (w wish) mayDelete(origin string) bool {
	return w.Verb != domain.Delete || w.force || origin != domain.OriginConnected
}

func notOurs() error {
	e := apperr.New(apperr.Conflict, "the server was there before it was connected: disconnect it, or delete it with force")
	e.Fields = []apperr.Field{{Field: "force", Detail: "must be true to delete a server that was connected", Allowed: []string{"true"}}}
	return e
}

// look reads the server that is to be acted on. A tracked one that Nova does not know any more is deleted, if it was known
// to be or is to be now. Nova is asked in any case: a server that it keeps for a while after its end may be restored.
func (a acting) look(ctx context.Context, t target) (domain.Server, error) {
	known := t.tracked != nil && t.tracked.State == domain.InstanceDeleted
	gone := domain.Server{ID: t.serverID, Status: "DELETED", Partial: true}
	switch {
	case t.serverID == "" && known:
		return gone, nil
	case t.serverID == "":
		return domain.Server{}, apperr.New(apperr.Conflict, "the instance has no server: its order is not that far, or Nova refused it")
	}
	server, err := a.read(ctx, a.session, a.who, t.serverID, t.tracked != nil)
	if apperr.CodeOf(err) == apperr.NotFound && (known || t.tracked != nil && a.Verb == domain.Delete) {
		return gone, nil
	}
	return server, err
}

func (a acting) tell(ctx context.Context, id string, state domain.InstanceState) error {
	switch {
	case a.Verb == domain.Delete:
		return a.session.DeleteServer(ctx, id)
	case a.Verb == domain.Stop:
		return a.session.StopServer(ctx, id)
	case a.Verb == domain.Reboot:
		return a.session.RebootServer(ctx, id, a.Hard)
	case state == domain.InstanceShelved:
		return a.session.UnshelveServer(ctx, id)
	}
	return a.session.StartServer(ctx, id)
}

// note writes down at once what follows from Nova's yes. Should that fail, the next poll finds it: the caller has what
// was asked for. It is written when the caller hangs up, too.
func (a acting) note(ctx context.Context, id uuid.UUID, server domain.Server) {
	known := domain.Instance{ProjectID: a.who.ProjectID, ID: id}
	known.Seen(server)
	known.State, known.Problem = a.After(), nil
	ctx = domain.WithActor(ctx, domain.ActorOf(a.who, uuid.Nil).Doing(a.Verb, a.key.id))
	writing, cancel := context.WithTimeout(context.WithoutCancel(ctx), noteTimeout)
	defer cancel()
	if _, err := a.instances.Change(writing, []domain.Instance{known}); err != nil {
		slog.WarnContext(ctx, "an action is not noted; the next poll finds it", "instance", id, "error", err)
	}
}
