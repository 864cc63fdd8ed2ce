package connections

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"

	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/auth"
	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/httpx"
)

func consentRoutes(h handler) []httpx.Route {
	return []httpx.Route{
		httpx.Handle("POST /v1/connections/requests", h.request),
		httpx.Handle("GET /v1/connections/requests", h.requests),
		httpx.Handle("GET /v1/connections/requests/{id}", h.getRequest),
		httpx.Handle("DELETE /v1/connections/requests/{id}", h.withdraw),
		httpx.Handle("POST /v1/connections/requests/{id}/grant", h.grant),
		httpx.Handle("POST /v1/connections/requests/{id}/decline", h.decline),
	}
}

// consent is a request for a connection as it is shown.
type consent struct {
	ID           uuid.UUID            `json:"id"`
	Status       domain.RequestStatus `json:"status"`
	ProjectID    string               `json:"project_id"`
	RequestedBy  requester            `json:"requested_by"`
	For          domain.Grantee       `json:"for"`
	Name         string               `json:"name"`
	Why          string               `json:"why"`
	Terms        terms                `json:"terms"`
	Reason       string               `json:"reason,omitempty"`
	DecidedBy    string               `json:"decided_by,omitempty"`
	ConnectionID *uuid.UUID           `json:"connection_id,omitempty"`
	ExpiresAt    time.Time            `json:"expires_at"`
	CreatedAt    time.Time            `json:"created_at"`
	UpdatedAt    time.Time            `json:"updated_at"`
}

type requester struct {
	UserID      string `json:"user_id"`
	UserName    string `json:"user_name"`
	ProjectID   string `json:"project_id"`
	ProjectName string `json:"project_name"`
}

// terms are what is asked for.
type terms struct {
	Actions   []domain.Permission     `json:"actions"`
	Quota     domain.ConnectionQuota  `json:"quota"`
	Limits    domain.ConnectionLimits `json:"limits"`
	ExpiresAt *time.Time              `json:"expires_at,omitempty"`
	Duration  string                  `json:"duration,omitempty"`
}

type consentPage struct {
	Requests []consent `json:"requests"`
	Next     *string   `json:"next"`
}

// showRequest is a request as the caller may see it. Who of a project has decided is for that project.
func showRequest(who domain.Identity, r domain.ConnectionRequest) consent {
	out := consent{
		ID: r.ID, Status: r.Status, ProjectID: r.ProjectID, For: r.Grantee, Name: r.Name, Why: r.Why, Reason: r.Reason,
		RequestedBy: requester{
			UserID: r.Requester.UserID, UserName: r.Requester.UserName, ProjectID: r.Requester.ProjectID, ProjectName: r.Requester.ProjectName,
		},
		Terms:     terms{Actions: r.Terms.Actions, Quota: r.Terms.Quota, Limits: r.Terms.Limits, Duration: short(r.Terms.Duration)},
		ExpiresAt: r.ExpiresAt, CreatedAt: r.CreatedAt, UpdatedAt: r.UpdatedAt,
	}
	if !r.Terms.ExpiresAt.IsZero() {
		out.Terms.ExpiresAt = &r.Terms.ExpiresAt
	}
	if r.ConnectionID != uuid.Nil {
		out.ConnectionID = &r.ConnectionID
	}
	if r.Status == domain.RequestWithdrawn && r.Sent(who) || r.Status != domain.RequestWithdrawn && r.Received(who) {
		out.DecidedBy = r.DecidedBy
	}
	return out
}

func (h handler) request(r *http.Request) (httpx.Response, error) {
	if _, err := httpx.ReadQuery(r); err != nil {
		return httpx.Response{}, err
	}
	who, _, err := auth.Project(r.Context())
	if err != nil {
		return httpx.Response{}, err
	}
	if !who.MayAct() {
		return httpx.Response{}, apperr.New(apperr.Forbidden, "this needs a role that may do more than read")
	}
	in, err := httpx.Body[consentRequest](r)
	if err != nil {
		return httpx.Response{}, err
	}
	asked, err := in.request(who)
	if err != nil {
		return httpx.Response{}, err
	}
	stored, err := h.svc.Request(r.Context(), asked)
	if err != nil {
		return httpx.Response{}, err
	}
	resp, err := httpx.JSON(http.StatusCreated, showRequest(who, stored))
	resp.Header.Set("Location", "/v1/connections/requests/"+stored.ID.String())
	return resp, err
}

func (h handler) requests(r *http.Request) (consentPage, error) {
	q, err := parseRequests(r)
	if err != nil {
		return consentPage{}, err
	}
	who, _, err := auth.Project(r.Context())
	if err != nil {
		return consentPage{}, err
	}
	found, more, err := h.svc.ListRequests(r.Context(), who, q)
	if err != nil {
		return consentPage{}, err
	}
	out := consentPage{Requests: make([]consent, len(found))}
	for i, c := range found {
		out.Requests[i] = showRequest(who, c)
	}
	if more {
		out.Next = httpx.Next(r, found[len(found)-1].ID.String())
	}
	return out, nil
}

func parseRequests(r *http.Request) (q domain.ConnectionRequestQuery, err error) {
	params, err := httpx.ReadQuery(r, "received", "status", "limit", "marker")
	if err != nil {
		return q, err
	}
	if q.Received, _, err = params.Bool("received"); err != nil {
		return q, err
	}
	if text := params.Text("status"); text != "" {
		q.Statuses = strings.Split(text, ",")
	}
	for _, status := range q.Statuses {
		if all := domain.RequestStatuses(); !slices.Contains(all, status) {
			return q, apperr.InvalidField("status", fmt.Sprintf("unknown status %q; expected some of these, separated by commas", status), all...)
		}
	}
	if q.Limit, err = params.Int("limit", defaultLimit, 1, httpx.MaxLimit); err != nil {
		return q, err
	}
	if text := params.Text("marker"); text != "" {
		if q.Marker, err = parseID(text); err != nil {
			return q, apperr.Malformed("marker", "the id of a request, a UUID", text)
		}
	}
	return q, nil
}

func (h handler) getRequest(r *http.Request) (consent, error) {
	who, _, id, err := namedRequest(r)
	if err != nil {
		return consent{}, err
	}
	found, err := h.svc.GetRequest(r.Context(), who, id)
	return showRequest(who, found), err
}

func (h handler) withdraw(r *http.Request) (httpx.Response, error) {
	who, _, id, err := namedRequest(r)
	if err != nil {
		return httpx.Response{}, err
	}
	return httpx.Response{Status: http.StatusNoContent}, h.svc.Withdraw(r.Context(), who, id)
}

func (h handler) grant(r *http.Request) (httpx.Response, error) {
	who, token, id, err := namedRequest(r)
	if err != nil {
		return httpx.Response{}, err
	}
	in, err := httpx.Body[granting](r)
	if err != nil {
		return httpx.Response{}, err
	}
	c, made, err := h.svc.Grant(r.Context(), who, token, id, in)
	if err != nil {
		return httpx.Response{}, err
	}
	if !made {
		return shown(http.StatusOK, who, c)
	}
	resp, err := shown(http.StatusCreated, who, c)
	resp.Header.Set("Location", "/v1/connections/"+c.ID.String())
	return resp, err
}

func (h handler) decline(r *http.Request) (consent, error) {
	who, _, id, err := namedRequest(r)
	if err != nil {
		return consent{}, err
	}
	in, err := httpx.Body[declining](r)
	if err != nil {
		return consent{}, err
	}
	if err := shownAsItIs("reason", in.Reason, maxReason); err != nil {
		return consent{}, err
	}
	declined, err := h.svc.Decline(r.Context(), who, id, in.Reason)
	return showRequest(who, declined), err
}

// namedRequest is who calls a route that takes no parameters, and the request that its path names.
func namedRequest(r *http.Request) (who domain.Identity, token domain.Secret, id uuid.UUID, err error) {
	if _, err := httpx.ReadQuery(r); err != nil {
		return who, token, id, err
	}
	if who, token, err = auth.Project(r.Context()); err != nil {
		return who, token, id, err
	}
	if id, err = parseID(r.PathValue("id")); err != nil {
		err = apperr.New(apperr.NotFound, "there is no request %q for a connection: its id is a UUID", r.PathValue("id"))
	}
	return who, token, id, err
}
