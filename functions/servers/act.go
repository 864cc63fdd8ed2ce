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

// outcome is what an action came to on one server.
type outcome struct {
	ID      string
	State   domain.InstanceState
	Changed bool // Nova was told to; false when there was nothing to do
	tracked bool
	err     error
}

// Act does one thing to servers of the caller's project, and gives the outcome for each, in their order.
func (s service) Act(ctx context.Context, who domain.Identity, token domain.Secret, ask domain.Ask, ids []string) ([]outcome, error) {
	targets, err := s.targets(ctx, who, ids)
	if err != nil {
		return nil, err
	}
	if err := distinct(targets); err != nil {
		return nil, err
	}
	a := acting{service: s, session: s.cloud.As(token, who.ProjectID), who: who, ask: ask}
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

	session session
	who     domain.Identity
	ask     domain.Ask
}

func (a acting) on(ctx context.Context, t target) outcome {
	o := outcome{ID: t.given, tracked: t.tracked != nil}
	o.State, o.Changed, o.err = a.act(ctx, t)
	return o
}

// act does it to one server: one request to look at it, and one to have it done.
func (a acting) act(ctx context.Context, t target) (state domain.InstanceState, changed bool, err error) {
	server, err := a.look(ctx, t)
	if err != nil {
		return "", false, err
	}
	state = domain.StateOf(server.Status, server.Task)
	if a.ask.Idle(state, server.Task) {
		return state, false, nil
	}
	if err := a.ask.Check(state); err != nil {
		return "", false, err
	}
	if err := a.tell(ctx, server.ID, state); err != nil {
		return "", false, err
	}
	if t.tracked != nil && !server.Partial {
		a.note(ctx, t.tracked.ID, server)
	}
	return a.ask.After(), true, nil
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
	server, err := a.read(ctx, a.session, a.who, t.serverID)
	if apperr.CodeOf(err) == apperr.NotFound && (known || t.tracked != nil && a.ask.Verb == domain.Delete) {
		return gone, nil
	}
	return server, err
}

func (a acting) tell(ctx context.Context, id string, state domain.InstanceState) error {
	switch {
	case a.ask.Verb == domain.Delete:
		return a.session.DeleteServer(ctx, id)
	case a.ask.Verb == domain.Stop:
		return a.session.StopServer(ctx, id)
	case a.ask.Verb == domain.Reboot:
		return a.session.RebootServer(ctx, id, a.ask.Hard)
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
	known.State, known.Problem = a.ask.After(), nil
	writing, cancel := context.WithTimeout(context.WithoutCancel(ctx), noteTimeout)
	defer cancel()
	if _, err := a.instances.Change(writing, []domain.Instance{known}); err != nil {
		slog.WarnContext(ctx, "an action is not noted; the next poll finds it", "instance", id, "error", err)
	}
}
