package servers

import (
	"net/http"

	"github.com/google/uuid"

	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/auth"
	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/httpx"
)

// connected is a server that is managed, or soon will be.
type connected struct {
	ID           uuid.UUID            `json:"id"` // the instance's
	ServerID     string               `json:"server_id"`
	State        domain.InstanceState `json:"state,omitempty"` // absent while that is still to be seen
	Origin       string               `json:"origin,omitempty"`
	ConnectionID *uuid.UUID           `json:"connection_id,omitempty"`
	ActionID     *uuid.UUID           `json:"action_id,omitempty"`
}

func (h handler) connect(r *http.Request) (httpx.Response, error) {
	if _, err := httpx.ReadQuery(r); err != nil {
		return httpx.Response{}, err
	}
	in, err := httpx.Body[connectBody](r)
	if err != nil {
		return httpx.Response{}, err
	}
	server, id, connection, err := in.check()
	if err != nil {
		return httpx.Response{}, err
	}
	who, token, err := auth.Project(r.Context())
	if err != nil {
		return httpx.Response{}, err
	}
	a, err := h.svc.access(r.Context(), who, token, connection)
	if err != nil {
		return httpx.Response{}, err
	}
	done, err := h.svc.Connect(r.Context(), a, server, id)
	switch {
	case err != nil:
		return httpx.Response{}, err
	case done.instance == nil:
		return httpx.JSON(http.StatusAccepted,
			connected{ID: done.action.InstanceID, ServerID: server, ConnectionID: &connection, ActionID: &done.action.ID})
	case done.made:
		return located(http.StatusCreated, *done.instance)
	}
	return located(http.StatusOK, *done.instance)
}

func located(status int, i domain.Instance) (httpx.Response, error) {
	out := connected{ID: i.ID, ServerID: i.ServerID, State: i.State, Origin: i.Origin}
	if i.ConnectionID != uuid.Nil {
		out.ConnectionID = &i.ConnectionID
	}
	resp, err := httpx.JSON(status, out)
	if err == nil {
		resp.Header.Set("Location", "/v1/servers/"+i.ServerID)
	}
	return resp, err
}

// What DELETE does with a server.
const (
	deallocate = "deallocate" // the action delete, for those who expect it here
	disconnect = "disconnect"
)

func (h handler) remove(r *http.Request) (httpx.Response, error) {
	gone := httpx.Response{Status: http.StatusNoContent, Header: http.Header{}}
	params, err := httpx.ReadQuery(r, "mode", "force", "connection_id")
	if err != nil {
		return httpx.Response{}, err
	}
	req := actionRequest{ActionRequest: domain.ActionRequest{Action: domain.Delete}}
	mode, err := params.OneOf("mode", deallocate, disconnect)
	if err != nil {
		return httpx.Response{}, err
	}
	if req.force, _, err = params.Bool("force"); err != nil {
		return httpx.Response{}, err
	}
	if text := params.Text("connection_id"); text != "" {
		if req.connection, err = connectionID(text); err != nil {
			return httpx.Response{}, err
		}
	}
	if mode == disconnect {
		if req.force {
			return httpx.Response{}, apperr.InvalidField("force", "goes with the mode deallocate only")
		}
		return gone, h.disconnect(r, req.connection)
	}
	done, err := h.one(r, req)
	if err == nil && done.ActionID != nil {
		return httpx.JSON(http.StatusAccepted, show(done))
	}
	return gone, err
}

func (h handler) disconnect(r *http.Request, connection uuid.UUID) error {
	id, err := pathID(r)
	if err != nil {
		return err
	}
	who, token, err := auth.Project(r.Context())
	if err != nil {
		return err
	}
	a, err := h.svc.access(r.Context(), who, token, connection)
	if err != nil {
		return err
	}
	return h.svc.Disconnect(r.Context(), a, id)
}

// change is the body of PATCH /v1/servers/{id}.
type change struct {
	Reusable *bool `json:"reusable"`
}

// changed is a server whose mark was changed.
type changed struct {
	connected
	Reusable bool `json:"reusable"`
}

func (h handler) change(r *http.Request) (changed, error) {
	if _, err := httpx.ReadQuery(r); err != nil {
		return changed{}, err
	}
	id, err := pathID(r)
	if err != nil {
		return changed{}, err
	}
	in, err := httpx.Body[change](r)
	if err != nil {
		return changed{}, err
	}
	if in.Reusable == nil {
		return changed{}, apperr.InvalidField("reusable", "is missing: say whether orders with reuse may take the server", "true", "false")
	}
	who, token, err := auth.Project(r.Context())
	if err != nil {
		return changed{}, err
	}
	a, err := h.svc.access(r.Context(), who, token, uuid.Nil)
	if err != nil {
		return changed{}, err
	}
	i, err := h.svc.MarkReusable(r.Context(), a, id, *in.Reusable)
	if err != nil {
		return changed{}, err
	}
	return changed{connected{ID: i.ID, ServerID: i.ServerID, State: i.State, Origin: i.Origin, ConnectionID: &i.ConnectionID}, *in.Reusable}, nil
}
