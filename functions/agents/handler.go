package agents

import (
	"net/http"
	"strings"

	"github.com/google/uuid"

	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/httpx"
)

type handler struct{ svc service }

func routes(s service) []httpx.Route {
	h := handler{s}
	list := []httpx.Route{
		httpx.Handle("GET /v1/agents/{deployment}/bundle", h.bundle),
		httpx.Handle("POST /v1/agents/{deployment}/ready", h.ready),
	}
	for n := range list {
		list[n].Public = true // an agent's token is the deployment's own
	}
	return list
}

// bundle does not take HEAD, which the router sends to it as well: only a GET is a fetch.
func (h handler) bundle(r *http.Request) (httpx.Response, error) {
	if r.Method == http.MethodHead {
		return httpx.Response{Status: http.StatusMethodNotAllowed, Header: http.Header{"Allow": {http.MethodGet}}, Code: apperr.MethodNotAllowed}, nil
	}
	deployment, token, err := agentOf(r)
	if err != nil {
		return httpx.Response{}, err
	}
	bundle, err := h.svc.Bundle(r.Context(), deployment, token)
	if err != nil {
		return httpx.Response{}, same(err)
	}
	return httpx.Response{Status: http.StatusOK, Header: http.Header{}, ContentType: "application/octet-stream", Body: bundle}, nil
}

func (h handler) ready(r *http.Request) (httpx.Response, error) {
	deployment, token, err := agentOf(r)
	if err != nil {
		return httpx.Response{}, err
	}
	return httpx.Response{Status: http.StatusNoContent, Header: http.Header{}}, same(h.svc.Ready(r.Context(), deployment, token))
}

// maxToken is more than any token of ours has.
const maxToken = 100

// agentOf is the deployment that the path names, and the token. A request that could be no agent's is refused like a wrong token.
func agentOf(r *http.Request) (uuid.UUID, domain.Secret, error) {
	id, err := uuid.Parse(r.PathValue("deployment"))
	kind, token, found := strings.Cut(r.Header.Get("Authorization"), " ")
	if err != nil || len(r.PathValue("deployment")) != 36 || r.URL.RawQuery != "" || r.ContentLength != 0 ||
		!found || !strings.EqualFold(kind, "Bearer") || token == "" || len(token) > maxToken {
		return uuid.Nil, "", refused()
	}
	return id, domain.Secret(token), nil
}

// refused is the one answer to whatever is wrong, so that nobody learns what it was.
func refused() error {
	return apperr.New(apperr.NotFound, "unknown deployment, or its token is used up, too old or wrong, or nobody may deploy it any more")
}

func same(err error) error {
	if apperr.CodeOf(err) == apperr.NotFound {
		return refused()
	}
	return err
}
