package servers

import (
	"cmp"
	"context"
	"fmt"
	"net/http"
	"slices"
	"time"

	"github.com/cloudfn/cloudfn/cmd/cloudfn/internal/api"
	"github.com/cloudfn/cloudfn/cmd/cloudfn/internal/cli"
	"github.com/cloudfn/cloudfn/cmd/cloudfn/internal/output"
	"github.com/cloudfn/cloudfn/shared/domain"
)

// waiter waits for the end of an action on one server.
type waiter struct {
	*result
	action     api.ServerActionAction
	isAccepted bool   // Nova has accepted an action through a connection
	hasMoved   bool   // it was in another state than error: from then on error is a failure
	note       string // what is still to come, besides its state
}

// goals are the states that actions lead to. A snapshot leaves the state as it is.
var goals = map[api.ServerActionAction]domain.InstanceState{
	api.ServerActionActionStart: domain.InstanceActive, api.ServerActionActionStop: domain.InstanceStopped,
	api.ServerActionActionReboot: domain.InstanceActive, api.ServerActionActionDeploy: domain.InstanceActive,
	api.ServerActionActionShelve: domain.InstanceShelved, api.ServerActionActionUnshelve: domain.InstanceActive,
	api.ServerActionActionDelete: domain.InstanceDeleted,
}

// stable are the states that last until somebody acts.
var stable = []domain.InstanceState{
	domain.InstanceActive, domain.InstanceStopped, domain.InstanceShelved, domain.InstancePaused,
	domain.InstanceRescued, domain.InstanceError, domain.InstanceDeleted,
}

// wait polls the servers until each has reached its goal, or has failed.
func (s *servers) wait(
	ctx context.Context, results []*result, action api.ServerActionAction, limit time.Duration,
) error {
	var open []*waiter
	for _, r := range results {
		if r.Error == nil {
			open = append(open, &waiter{result: r, action: action})
		}
	}
	return cli.Poll(ctx, limit, func(ctx context.Context) (bool, error) {
		var failure error
		open = slices.DeleteFunc(open, func(w *waiter) bool {
			if failure != nil {
				return false
			}
			before := w.State
			failure = s.poll(ctx, w)
			if s.ErrSize != nil && w.State != before { // somebody watches
				fmt.Fprintf(s.Err, "%s: %s\n", output.Clean(w.given), output.Paint(s.HasColors, w.State))
			}
			return w.isDone || w.Error != nil
		})
		return len(open) == 0, failure
	}, func() string { return progress(open) })
}

func progress(open []*waiter) string {
	first := open[0]
	text := first.given + " is " + cmp.Or(first.State, "not known yet") + first.note
	if len(open) > 1 {
		text += fmt.Sprintf(", and %d more", len(open)-1)
	}
	return text
}

// poll reads a server's state. Its error says that the API could not tell.
func (s *servers) poll(ctx context.Context, w *waiter) error {
	if w.ActionID != "" && !w.isAccepted {
		return s.pollAction(ctx, w)
	}
	if w.action == api.ServerActionActionSnapshot {
		return s.pollImage(ctx, w)
	}
	found, err := api.Get[api.Server](ctx, s.API(), "/v1/servers/"+w.ID, cli.ConnectionQuery(s.connection))
	if api.HasStatus(err, http.StatusNotFound) {
		w.setGone()
		return nil
	}
	if err == nil {
		w.update(found.Value)
	}
	return err
}

// pollAction reads an action through a connection. The server's state says something only after the action is done.
func (s *servers) pollAction(ctx context.Context, w *waiter) error {
	found, err := s.getAction(ctx, w.ActionID)
	if err != nil {
		return err
	}
	w.note = ""
	switch a := found.Value; {
	case a.Status == api.DelegatedActionStatusFailed:
		w.fail(api.Code(cli.Value(a.Error).Code), cli.Value(a.Error).Detail)
	case a.Status == api.DelegatedActionStatusDone && w.action == api.ServerActionActionDelete:
		w.setGone()
	case a.Status == api.DelegatedActionStatusDone && w.action == api.ServerActionActionSnapshot:
		w.ImageID, w.isDone = cli.Value(a.ImageID), true
	case a.Status == api.DelegatedActionStatusDone:
		w.isAccepted = true
	default:
		w.note = ", and the action has not been done yet"
	}
	return nil
}

func (s *servers) getAction(ctx context.Context, id string) (api.Item[api.DelegatedAction], error) {
	return actions.Get(ctx, s.App, id, cli.ConnectionQuery(s.connection))
}

func (w *waiter) fail(code api.Code, detail string) {
	w.Error = &api.ServerRefusal{Code: code, Detail: detail}
}

// setGone records that the server does not exist any more.
func (w *waiter) setGone() {
	w.State, w.isDone = string(domain.InstanceDeleted), w.action == api.ServerActionActionDelete
	if !w.isDone {
		w.fail(api.CodeNotFound, "the server is gone")
	}
}

// update judges a server's current state. The API tracks the progress of an instance. Any other server only has
// Nova's status, which stays the old one while Nova works; through a connection the state is the last one seen, and
// may be old.
func (w *waiter) update(server api.Server) {
	state := domain.StateOf(server.Status, "")
	if server.Instance != nil {
		state = domain.InstanceState(server.Instance.State)
	}
	w.State, w.note = string(state), ""
	w.hasMoved = w.hasMoved || state != domain.InstanceError
	isDelete, isGoal := w.action == api.ServerActionActionDelete, state == goals[w.action]
	switch {
	case state == domain.InstanceDeleted:
		w.setGone()
	case isGoal && w.action == api.ServerActionActionDeploy && !isReady(server):
		w.note = ", and its agent has not said yet that it is ready"
	case isGoal, isDelete && server.Status == "SOFT_DELETED":
		w.isDone = true
	case state == domain.InstanceError && (w.hasMoved || w.action == api.ServerActionActionStart):
		detail := cmp.Or(cli.Value(server.Fault).Message, "the server is in ERROR")
		w.fail(api.Code(api.InstanceErrorCodeNovaFault), detail)
	case w.ActionID == "" && server.Instance != nil && state != domain.InstanceError && slices.Contains(stable, state):
		w.fail(api.CodeConflict, "the server is "+w.State+" again")
	}
}

// isReady reports whether the latest agent has come up.
func isReady(server api.Server) bool {
	agent := cli.Value(server.Instance).Agent
	return agent != nil && agent.ReadyAt != nil
}
