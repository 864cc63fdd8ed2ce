package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"time"

	"github.com/cloudfn/cloudfn/cmd/cloudfn/internal/api"
	"github.com/cloudfn/cloudfn/cmd/cloudfn/internal/output"
	"github.com/cloudfn/cloudfn/shared/domain"
)

// watched is a server that is waited for.
type watched struct {
	*outcome
	action api.ServerActionAction
	told   bool   // an action through a connection is done: Nova has been told
	moved  bool   // it was seen in another state than error: from then on that one is news
	note   string // what is still to come, besides its state
}

// ends are the states that the actions lead to.
var ends = map[api.ServerActionAction]domain.InstanceState{
	api.ServerActionActionStart: domain.InstanceActive, api.ServerActionActionStop: domain.InstanceStopped, api.ServerActionActionReboot: domain.InstanceActive,
	api.ServerActionActionDeploy: domain.InstanceActive, api.ServerActionActionDelete: domain.InstanceDeleted,
}

// settled are the states that nothing follows from by itself.
var settled = []domain.InstanceState{
	domain.InstanceActive, domain.InstanceStopped, domain.InstanceShelved, domain.InstancePaused, domain.InstanceRescued, domain.InstanceError, domain.InstanceDeleted,
}

// wait looks at the servers, one after the other, until each is as it should be, or cannot be any more.
func (s *servers) wait(ctx context.Context, client *api.Client, done []*outcome, action api.ServerActionAction, limit time.Duration) error {
	var open []*watched
	for _, o := range done {
		if o.Error == nil {
			open = append(open, &watched{outcome: o, action: action})
		}
	}
	return until(ctx, limit, func(ctx context.Context) (bool, error) {
		var away error
		open = slices.DeleteFunc(open, func(w *watched) bool {
			if away != nil {
				return false
			}
			before := w.State
			away = s.look(ctx, client, w)
			if s.size != nil && w.State != before { // somebody looks on
				fmt.Fprintf(s.err, "%s: %s\n", output.Clean(w.given), output.Paint(s.colors, w.State))
			}
			return w.ended || w.Error != nil
		})
		return len(open) == 0, away
	}, func() string { return left(open) })
}

func left(open []*watched) string {
	first := open[0]
	text := first.given + " is " + cmp.Or(first.State, "not known yet") + first.note
	if len(open) > 1 {
		text += fmt.Sprintf(", and %d more", len(open)-1)
	}
	return text
}

// look sees how a server is. An error says that it could not be seen.
func (s *servers) look(ctx context.Context, client *api.Client, w *watched) error {
	if w.ActionID != "" && !w.told {
		return s.lookAtAction(ctx, client, w)
	}
	found, err := api.One[api.Server](ctx, client, "/v1/servers/"+w.ID, through(s.connection))
	if answer, ok := errors.AsType[*api.Error](err); ok && answer.Status == http.StatusNotFound {
		w.gone()
		return nil
	}
	if err == nil {
		w.see(found.Value)
	}
	return err
}

// lookAtAction sees what became of an action through a connection. Only when it is done the server can be asked for its state.
func (s *servers) lookAtAction(ctx context.Context, client *api.Client, w *watched) error {
	found, err := api.One[api.DelegatedAction](ctx, client, "/v1/servers/actions/"+w.ActionID, through(s.connection))
	if err != nil {
		return err
	}
	switch a := found.Value; {
	case a.Status == api.DelegatedActionStatusFailed:
		w.fail(api.Code(value(a.Error).Code), value(a.Error).Detail)
	case a.Status == api.DelegatedActionStatusDone && w.action == api.ServerActionActionDelete:
		w.gone()
	case a.Status == api.DelegatedActionStatusDone:
		w.told = true
	default:
		w.note = ", and the action has not been done yet"
		return nil
	}
	w.note = ""
	return nil
}

func (w *watched) fail(code api.Code, detail string) {
	w.Error = &api.ServerRefusal{Code: code, Detail: detail}
}

// gone is what a server is that is not found.
func (w *watched) gone() {
	w.State, w.ended = string(domain.InstanceDeleted), w.action == api.ServerActionActionDelete
	if !w.ended {
		w.fail(api.CodeNotFound, "the server is gone")
	}
}

// see judges a server as it is now. Of one that is tracked the API says what Nova is at. Of another only Nova's status is known,
// which stays the old one while Nova works; and through a connection what was last seen, which may be old.
func (w *watched) see(server api.Server) {
	state := domain.StateOf(server.Status, "")
	if server.Instance != nil {
		state = domain.InstanceState(server.Instance.State)
	}
	w.State, w.note = string(state), ""
	w.moved = w.moved || state != domain.InstanceError
	switch {
	case state == domain.InstanceDeleted:
		w.gone()
	case state == ends[w.action] && w.action == api.ServerActionActionDeploy && !ready(server):
		w.note = ", and its agent has not said yet that it is ready"
	case state == ends[w.action], server.Status == "SOFT_DELETED" && w.action == api.ServerActionActionDelete:
		w.ended = true
	case state == domain.InstanceError && (w.moved || w.action == api.ServerActionActionStart):
		w.fail(api.Code(api.InstanceErrorCodeNovaFault), cmp.Or(value(server.Fault).Message, "the server is in ERROR"))
	case w.ActionID == "" && server.Instance != nil && state != domain.InstanceError && slices.Contains(settled, state):
		w.fail(api.CodeConflict, "the server is "+w.State+" again")
	}
}

// ready says whether what was last deployed has come up.
func ready(server api.Server) bool {
	agent := value(server.Instance).Agent
	return agent != nil && agent.ReadyAt != nil
}
