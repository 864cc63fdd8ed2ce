package servers

import (
	"net/http"
	"slices"
	"time"

	"github.com/google/uuid"

	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/auth"
	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/httpx"
)

// acted is what an action came to.
type acted struct {
	ID      string               `json:"id"` // as it was given
	State   domain.InstanceState `json:"state"`
	Changed bool                 `json:"changed"`
	// ActionID is where to look for what becomes of it, when it is done through a connection.
	ActionID *uuid.UUID `json:"action_id,omitempty"`
}

// notActed is why it could not be done to one of several servers.
type notActed struct {
	ID    string  `json:"id"`
	Error refusal `json:"error"`
}

type refusal struct {
	Code    apperr.Code `json:"code"`
	Detail  string      `json:"detail"`
	Allowed []string    `json:"allowed,omitempty"` // the actions that the server's state allows
}

func (h handler) act(r *http.Request) (httpx.Response, error) {
	if _, err := httpx.ReadQuery(r); err != nil {
		return httpx.Response{}, err
	}
	in, err := httpx.Body[actionBody](r)
	if err != nil {
		return httpx.Response{}, err
	}
	req, err := in.request()
	if err != nil {
		return httpx.Response{}, err
	}
	if req.deploy != nil && h.svc.agents.config.URL == "" {
		return httpx.Response{}, apperr.New(apperr.Unsupported, "agents cannot be deployed here: the operator has not set AGENT_URL")
	}
	done, err := h.one(r, req)
	if err != nil {
		return httpx.Response{}, err
	}
	return httpx.JSON(accepted(done.Changed && !done.repeated), show(done))
}

// one acts on the server of the path.
func (h handler) one(r *http.Request, req actionRequest) (outcome, error) {
	id, err := pathID(r)
	if err != nil {
		return outcome{}, err
	}
	who, token, err := auth.Project(r.Context())
	if err != nil {
		return outcome{}, err
	}
	a, err := h.svc.access(r.Context(), who, token, req.connection)
	if err != nil {
		return outcome{}, err
	}
	done, err := h.svc.Do(r.Context(), a, req, []string{id})
	if err != nil {
		return outcome{}, err
	}
	return done[0], done[0].err
}

func (h handler) actOnMany(r *http.Request) (httpx.Response, error) {
	if _, err := httpx.ReadQuery(r); err != nil {
		return httpx.Response{}, err
	}
	in, err := httpx.Body[bulkActionBody](r)
	if err != nil {
		return httpx.Response{}, err
	}
	req, err := in.request()
	if err != nil {
		return httpx.Response{}, err
	}
	ids, err := in.ids()
	if err != nil {
		return httpx.Response{}, err
	}
	who, token, err := auth.Project(r.Context())
	if err != nil {
		return httpx.Response{}, err
	}
	a, err := h.svc.access(r.Context(), who, token, req.connection)
	if err != nil {
		return httpx.Response{}, err
	}
	done, err := h.svc.Do(r.Context(), a, req, ids)
	if err != nil {
		return httpx.Response{}, err
	}
	results := make([]any, len(done))
	for i, o := range done {
		if o.err != nil { // the request as a whole did not fail, and so nobody else logs it
			o.err = httpx.Failed(r.Context(), "servers", o.err)
		}
		results[i] = show(o)
	}
	changed := slices.ContainsFunc(done, func(o outcome) bool { return o.Changed })
	return httpx.JSON(accepted(changed), map[string][]any{"results": results})
}

func accepted(changed bool) int {
	if changed {
		return http.StatusAccepted
	}
	return http.StatusOK
}

func show(o outcome) any {
	if o.err == nil {
		return acted{ID: o.ID, State: o.State, Changed: o.Changed, ActionID: o.ActionID}
	}
	e := apperr.As(o.err)
	refused := notActed{ID: o.ID, Error: refusal{Code: e.Code, Detail: e.Message}}
	for _, f := range e.Fields {
		if f.Field == "action" {
			refused.Error.Allowed = f.Allowed
		}
	}
	return refused
}

// action is what has become of an action through a connection.
type action struct {
	ID           uuid.UUID           `json:"id"`
	Action       domain.Action       `json:"action"`
	InstanceID   uuid.UUID           `json:"instance_id"`
	ConnectionID uuid.UUID           `json:"connection_id"`
	Status       domain.ActionStatus `json:"status"`
	Error        *domain.Problem     `json:"error,omitempty"`
	CreatedAt    time.Time           `json:"created_at"`
	UpdatedAt    time.Time           `json:"updated_at"`
}

func (h handler) action(r *http.Request) (action, error) {
	params, err := httpx.ReadQuery(r, "connection_id")
	if err != nil {
		return action{}, err
	}
	connection, err := connectionID(params.Text("connection_id"))
	if err != nil {
		return action{}, err
	}
	id, err := uuid.Parse(r.PathValue("action"))
	if err != nil || len(r.PathValue("action")) != 36 {
		return action{}, apperr.New(apperr.NotFound, "there is no action %q: its id is a UUID", r.PathValue("action"))
	}
	who, token, err := auth.Project(r.Context())
	if err != nil {
		return action{}, err
	}
	a, err := h.svc.access(r.Context(), who, token, connection)
	if err != nil {
		return action{}, err
	}
	found, err := h.svc.Action(r.Context(), a, id)
	return action{
		ID: found.ID, Action: found.Request.Action, InstanceID: found.InstanceID, ConnectionID: found.ConnectionID, Status: found.Status,
		Error: found.Problem, CreatedAt: found.CreatedAt, UpdatedAt: found.UpdatedAt,
	}, err
}
