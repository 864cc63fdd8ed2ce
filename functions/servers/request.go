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

// askedOfMany is what the body of an action on many servers holds.
type askedOfMany struct {
	Action       string   `json:"action"`
	Hard         bool     `json:"hard"`
	Force        bool     `json:"force"`
	ConnectionID *string  `json:"connection_id"`
	IDs          []string `json:"ids"`
}

// asked is the same for one server, with what a deployment takes.
type asked struct {
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

// newWish checks what is asked for.
func newWish(action string, allowed []string, hard, force bool, connection *string) (w wish, err error) {
	if !slices.Contains(allowed, action) {
		return w, apperr.Unknown("action", "action", action, allowed...)
	}
	w = wish{Ask: domain.Ask{Verb: domain.Verb(action), Hard: hard}, force: force}
	if w.Hard && w.Verb != domain.Reboot {
		return w, apperr.InvalidField("hard", "goes with the action reboot only")
	}
	if w.force && w.Verb != domain.Delete {
		return w, apperr.InvalidField("force", "goes with the action delete only")
	}
	if connection != nil {
		w.connection, err = connectionID(*connection)
	}
	return w, err
}

func (a askedOfMany) wish() (wish, error) {
	allowed := slices.DeleteFunc(domain.Verbs(), func(v string) bool { return v == string(domain.Deploy) })
	return newWish(a.Action, allowed, a.Hard, a.Force, a.ConnectionID)
}

func (a asked) wish() (wish, error) {
	w, err := newWish(a.Action, domain.Verbs(), a.Hard, a.Force, a.ConnectionID)
	if err != nil {
		return w, err
	}
	if w.key, err = a.key(); err != nil {
		return w, err
	}
	if w.Verb == domain.Deploy {
		w.deploy, err = a.deployment()
		return w, err
	}
	for _, given := range []struct {
		field string
		given bool
	}{
		{"image", a.Image != nil},
		{"command", a.Command != nil},
		{"env", a.Env != nil},
		{"registry", a.Registry != nil},
		{"join_token", a.JoinToken != nil},
		{"server_image", a.ServerImage != nil},
		{"confirm_rebuild", a.Confirm},
	} {
		if given.given {
			return w, apperr.InvalidField(given.field, "goes with the action deploy only")
		}
	}
	return w, nil
}

// deployment checks what is to be deployed.
func (a asked) deployment() (*deploy, error) {
	d := &deploy{Spec: agent.Spec{Command: a.Command, Env: a.Env}}
	if a.Image != nil {
		d.Image = *a.Image
	}
	if a.Registry != nil {
		d.Registry = &agent.Registry{Username: a.Registry.Username, Password: a.Registry.Password}
	}
	if a.JoinToken != nil {
		if d.JoinToken = *a.JoinToken; d.JoinToken == "" {
			return nil, apperr.InvalidField("join_token", "is empty: leave it out instead")
		}
	}
	if err := d.Check(); err != nil {
		return nil, err
	}
	if a.ServerImage != nil {
		id, err := uuid.Parse(*a.ServerImage)
		if err != nil || len(*a.ServerImage) != 36 {
			return nil, apperr.Malformed("server_image", "an image's id, a UUID", *a.ServerImage)
		}
		d.serverImage = id.String()
	}
	if !a.Confirm {
		return nil, apperr.InvalidField("confirm_rebuild", "must be true: to deploy makes the server's disk anew, and what is on it is lost", "true")
	}
	return d, nil
}

func (a askedOfMany) ids() ([]string, error) {
	if len(a.IDs) < 1 || len(a.IDs) > maxTargets {
		return nil, apperr.InvalidField("ids", fmt.Sprintf("must be 1 to %d ids", maxTargets))
	}
	ids := make([]string, len(a.IDs))
	for i, text := range a.IDs {
		id, err := serverID(fmt.Sprintf("ids[%d]", i), text)
		if err != nil {
			return nil, err
		}
		ids[i] = id
	}
	return ids, nil
}

// connecting is the body of POST /v1/servers.
type connecting struct {
	ServerID     string  `json:"server_id"`
	ID           *string `json:"id"`
	ConnectionID *string `json:"connection_id"`
}

// check gives the server's id, and those of the instance and the connection, which are zero when they were not given.
func (c connecting) check() (server string, id, connection uuid.UUID, err error) {
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
