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
	in, err := httpx.Body[connecting](r)
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
	if connection != uuid.Nil {
		return h.connectThrough(r, who, connection, server, id)
	}
	instance, made, err := h.svc.Connect(r.Context(), who, token, server, id)
	if err != nil {
		return httpx.Response{}, err
	}
	if made {
		return located(http.StatusCreated, instance)
	}
	return located(http.StatusOK, instance)
}

func (h handler) connectThrough(r *http.Request, who domain.Identity, connection uuid.UUID, server string, id uuid.UUID) (httpx.Response, error) {
	known, action, err := h.svc.ConnectThrough(r.Context(), who, connection, server, id)
	if err != nil {
		return httpx.Response{}, err
	}
	if known != nil {
		return located(http.StatusOK, *known)
	}
	return httpx.JSON(http.StatusAccepted, connected{ID: action.InstanceID, ServerID: server, ConnectionID: &connection, ActionID: &action.ID})
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
	wanted := wish{Ask: domain.Ask{Verb: domain.Delete}}
	mode, err := params.OneOf("mode", deallocate, disconnect)
	if err != nil {
		return httpx.Response{}, err
	}
	if wanted.force, _, err = params.Bool("force"); err != nil {
		return httpx.Response{}, err
	}
	if text := params.Text("connection_id"); text != "" {
		if wanted.connection, err = connectionID(text); err != nil {
			return httpx.Response{}, err
		}
	}
	if mode == disconnect {
		if wanted.force {
			return httpx.Response{}, apperr.InvalidField("force", "goes with the mode deallocate only")
		}
		return gone, h.disconnect(r, wanted.connection)
	}
	done, err := h.one(r, wanted)
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
	who, _, err := auth.Project(r.Context())
	if err != nil {
		return err
	}
	if connection != uuid.Nil {
		return h.svc.DisconnectThrough(r.Context(), who, connection, id)
	}
	return h.svc.Disconnect(r.Context(), who, id)
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
	who, _, err := auth.Project(r.Context())
	if err != nil {
		return changed{}, err
	}
	i, err := h.svc.MarkReusable(r.Context(), who, id, *in.Reusable)
	if err != nil {
		return changed{}, err
	}
	return changed{connected{ID: i.ID, ServerID: i.ServerID, State: i.State, Origin: i.Origin, ConnectionID: &i.ConnectionID}, *in.Reusable}, nil
}
