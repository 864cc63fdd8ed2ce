package servers

import (
	"fmt"
	"net/http"
	"slices"

	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/auth"
	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/httpx"
)

// maxTargets is how many servers one request may act on.
const maxTargets = 100

// asked is what the body of an action holds.
type asked struct {
	Action string `json:"action"`
	Hard   bool   `json:"hard"`
}

// askedOfMany is the same with the servers' ids.
type askedOfMany struct {
	Action string   `json:"action"`
	Hard   bool     `json:"hard"`
	IDs    []string `json:"ids"`
}

// ask checks what is asked for.
func (a asked) ask() (domain.Ask, error) {
	if !slices.Contains(domain.Verbs(), a.Action) {
		return domain.Ask{}, apperr.InvalidField("action", "must be one of those that there are", domain.Verbs()...)
	}
	ask := domain.Ask{Verb: domain.Verb(a.Action), Hard: a.Hard}
	if ask.Hard && ask.Verb != domain.Reboot {
		return domain.Ask{}, apperr.InvalidField("hard", "goes with the action reboot only")
	}
	return ask, nil
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

// acted is what an action came to.
type acted struct {
	ID      string               `json:"id"` // as it was given
	State   domain.InstanceState `json:"state"`
	Changed bool                 `json:"changed"`
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
	in, err := httpx.Body[asked](r)
	if err != nil {
		return httpx.Response{}, err
	}
	ask, err := in.ask()
	if err != nil {
		return httpx.Response{}, err
	}
	done, err := h.one(r, ask)
	if err != nil {
		return httpx.Response{}, err
	}
	return httpx.JSON(accepted(done.Changed), show(done))
}

// remove is the action delete, for those who expect it here.
func (h handler) remove(r *http.Request) (httpx.Response, error) {
	if _, err := httpx.ReadQuery(r); err != nil {
		return httpx.Response{}, err
	}
	_, err := h.one(r, domain.Ask{Verb: domain.Delete})
	return httpx.Response{Status: http.StatusNoContent, Header: http.Header{}}, err
}

// one acts on the server of the path.
func (h handler) one(r *http.Request, ask domain.Ask) (outcome, error) {
	id, err := pathID(r)
	if err != nil {
		return outcome{}, err
	}
	who, token, err := auth.Project(r.Context())
	if err != nil {
		return outcome{}, err
	}
	done, err := h.svc.Act(r.Context(), who, token, ask, []string{id})
	if err != nil {
		return outcome{}, err
	}
	return done[0], done[0].err
}

func (h handler) actOnMany(r *http.Request) (httpx.Response, error) {
	if _, err := httpx.ReadQuery(r); err != nil {
		return httpx.Response{}, err
	}
	in, err := httpx.Body[askedOfMany](r)
	if err != nil {
		return httpx.Response{}, err
	}
	ask, err := asked{Action: in.Action, Hard: in.Hard}.ask()
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
	done, err := h.svc.Act(r.Context(), who, token, ask, ids)
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
		return acted{ID: o.ID, State: o.State, Changed: o.Changed}
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
