package connections

import (
	"net/http"
	"slices"
	"strings"

	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/httpx"
)

func (h handler) change(r *http.Request) (httpx.Response, error) {
	who, token, id, err := named(r)
	if err != nil {
		return httpx.Response{}, err
	}
	in, err := httpx.Body[changeRequest](r)
	if err != nil {
		return httpx.Response{}, err
	}
	if in.isEmpty() {
		return httpx.Response{}, apperr.New(apperr.Invalid, "the body must have one of name, expires_at, idle_timeout, quota, limits, usable_by, actions and secret")
	}
	changed, err := h.svc.Change(r.Context(), who, token, id, in, matches(r))
	if err != nil {
		return httpx.Response{}, err
	}
	return shown(http.StatusOK, who, changed)
}

func (h handler) suspend(r *http.Request) (httpx.Response, error) { return h.setSuspended(r, true) }

func (h handler) resume(r *http.Request) (httpx.Response, error) { return h.setSuspended(r, false) }

func (h handler) setSuspended(r *http.Request, suspend bool) (httpx.Response, error) {
	who, _, id, err := named(r)
	if err != nil {
		return httpx.Response{}, err
	}
	c, err := h.svc.Suspend(r.Context(), who, id, suspend)
	if err != nil {
		return httpx.Response{}, err
	}
	return shown(http.StatusOK, who, c)
}

// matches says whether the version is one of those that the request is meant for (RFC 9110, If-Match); without the header it is for any.
func matches(r *http.Request) func(domain.Connection) bool {
	given := r.Header.Values("If-Match")
	return func(c domain.Connection) bool {
		if len(given) == 0 {
			return true
		}
		return slices.ContainsFunc(strings.Split(strings.Join(given, ","), ","), func(tag string) bool {
			tag = strings.TrimSpace(tag)
			return tag == "*" || tag == etag(c)
		})
	}
}
