package servers

import (
	"fmt"
	"slices"

	"github.com/google/uuid"

	"github.com/cloudfn/cloudfn/shared/agent"
	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/domain"
)

// maxTargets is how many servers one request may act on.
const maxTargets = 100

// bulkActionBody is the body of an action on many servers.
type bulkActionBody struct {
	Action       string   `json:"action"`
	Hard         bool     `json:"hard"`
	Force        bool     `json:"force"`
	ConnectionID *string  `json:"connection_id"`
	IDs          []string `json:"ids"`
}

// actionBody is the same for one server, with what a deployment takes.
type actionBody struct {
	ID           *string           `json:"id"`
	Action       string            `json:"action"`
	Hard         bool              `json:"hard"`
	Force        bool              `json:"force"`
	ConnectionID *string           `json:"connection_id"`
	Image        *string           `json:"image"`
	Command      []string          `json:"command"`
	Env          map[string]string `json:"env"`
	Registry     *login            `json:"registry"`
	JoinToken    *domain.Secret    `json:"join_token"`
	ServerImage  *string           `json:"server_image"`
	Confirm      bool              `json:"confirm_rebuild"`
}

type login struct {
	Username string        `json:"username"`
	Password domain.Secret `json:"password"`
}

// newActionRequest checks what actions on one server and on many have in common.
func newActionRequest(
	action string, allowed []string, hard, force bool, connection *string,
) (req actionRequest, err error) {
	if !slices.Contains(allowed, action) {
		return req, apperr.Unknown("action", "action", action, allowed...)
	}
	req = actionRequest{ActionRequest: domain.ActionRequest{Action: domain.Action(action), Hard: hard}, force: force}
	if req.Hard && req.Action != domain.Reboot {
		return req, apperr.InvalidField("hard", "goes with the action reboot only")
	}
	if req.force && req.Action != domain.Delete {
		return req, apperr.InvalidField("force", "goes with the action delete only")
	}
	if connection != nil {
		req.connection, err = connectionID(*connection)
	}
	return req, err
}

func (in bulkActionBody) request() (actionRequest, error) {
	allowed := slices.DeleteFunc(domain.Actions(), func(v string) bool { return v == string(domain.Deploy) })
	return newActionRequest(in.Action, allowed, in.Hard, in.Force, in.ConnectionID)
}

func (in actionBody) request() (actionRequest, error) {
	req, err := newActionRequest(in.Action, domain.Actions(), in.Hard, in.Force, in.ConnectionID)
	if err != nil {
		return req, err
	}
	if req.key, err = in.key(); err != nil {
		return req, err
	}
	if req.Action == domain.Deploy {
		req.deploy, err = in.deployment()
		return req, err
	}
	for _, given := range []struct {
		field string
		given bool
	}{
		{"image", in.Image != nil},
		{"command", in.Command != nil},
		{"env", in.Env != nil},
		{"registry", in.Registry != nil},
		{"join_token", in.JoinToken != nil},
		{"server_image", in.ServerImage != nil},
		{"confirm_rebuild", in.Confirm},
	} {
		if given.given {
			return req, apperr.InvalidField(given.field, "goes with the action deploy only")
		}
	}
	return req, nil
}

// deployment checks what is to be deployed.
func (in actionBody) deployment() (*deploy, error) {
	d := &deploy{Spec: agent.Spec{Command: in.Command, Env: in.Env}}
	if in.Image != nil {
		d.Image = *in.Image
	}
	if in.Registry != nil {
		d.Registry = &agent.Registry{Username: in.Registry.Username, Password: in.Registry.Password}
	}
	if in.JoinToken != nil {
		if d.JoinToken = *in.JoinToken; d.JoinToken == "" {
			return nil, apperr.InvalidField("join_token", "is empty: leave it out instead")
		}
	}
	if err := d.Check(); err != nil {
		return nil, err
	}
	if in.ServerImage != nil {
		id, err := uuid.Parse(*in.ServerImage)
		if err != nil || len(*in.ServerImage) != 36 {
			return nil, apperr.Malformed("server_image", "an image's id, a UUID", *in.ServerImage)
		}
		d.serverImage = id.String()
	}
	if !in.Confirm {
		return nil, apperr.InvalidField("confirm_rebuild", "must be true: to deploy makes the server's disk anew, and what is on it is lost", "true")
	}
	return d, nil
}

func (in bulkActionBody) ids() ([]string, error) {
	if len(in.IDs) < 1 || len(in.IDs) > maxTargets {
		return nil, apperr.InvalidField("ids", fmt.Sprintf("must be 1 to %d ids", maxTargets))
	}
	ids := make([]string, len(in.IDs))
	for i, text := range in.IDs {
		id, err := serverID(fmt.Sprintf("ids[%d]", i), text)
		if err != nil {
			return nil, err
		}
		ids[i] = id
	}
	return ids, nil
}

// connectBody is the body of POST /v1/servers.
type connectBody struct {
	ServerID     string  `json:"server_id"`
	ID           *string `json:"id"`
	ConnectionID *string `json:"connection_id"`
}

// check gives the server's id, and those of the instance and the connection, which are zero when they were not given.
func (c connectBody) check() (server string, id, connection uuid.UUID, err error) {
	if server, err = serverID("server_id", c.ServerID); err != nil {
		return server, id, connection, err
	}
	if c.ConnectionID != nil {
		if connection, err = connectionID(*c.ConnectionID); err != nil {
			return server, id, connection, err
		}
	}
	if c.ID == nil {
		return server, id, connection, nil
	}
	if id, err = uuid.Parse(*c.ID); err != nil || len(*c.ID) != 36 || id == uuid.Nil {
		err = apperr.Malformed("id", "a UUID", *c.ID)
	}
	return server, id, connection, err
}
