package httpx

import (
	"context"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/domain"
)

// endings are KeyedRequests that record how the attempts end.
type endings []string

func (e *endings) Begin(_ context.Context, r domain.KeyedRequest, _ time.Duration) (domain.KeyedRequest, error) {
	return r, nil
}

func (e *endings) Finish(context.Context, domain.KeyedRequest, []byte) error {
	return e.add("finished")
}

func (e *endings) Abandon(context.Context, domain.KeyedRequest) error { return e.add("abandoned") }

func (e *endings) Release(context.Context, domain.KeyedRequest) error { return e.add("released") }

func (e *endings) add(ending string) error {
	*e = append(*e, ending)
	return nil
}

// TestEndOfAttempt: the next request with the key goes on with what may not be done, and is not answered from what is
// stored.
func TestEndOfAttempt(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		retryAfter string
		err        error
		want       string
	}{
		"done":                         {"", nil, "finished"},
		"interrupted":                  {"5", nil, "released"},
		"rejected":                     {"", apperr.New(apperr.Conflict, "x"), "abandoned"},
		"OpenStack is busy":            {"", apperr.New(apperr.RateLimited, "x"), "released"},
		"the token ends on the way":    {"", apperr.New(apperr.Unauthenticated, "x"), "released"},
		"OpenStack does not answer":    {"", apperr.New(apperr.Timeout, "x"), "released"},
		"the caller closes the socket": {"", context.Canceled, "released"},
	} {
		var found endings
		edge := (&recorder{}).edge()
		edge.Keys = &found
		route := Routes(func(api huma.API) {
			Serve[struct{}, struct{}](api, Idempotent(huma.Operation{Method: http.MethodPost, Path: "/things"}),
				func(context.Context, *struct{}) (Response, error) {
					return Response{Status: 200, Header: http.Header{"Retry-After": {tc.retryAfter}}}, tc.err
				})
		})[0]
		r := httptest.NewRequest(http.MethodPost, "/things", nil)
		r.Header.Set(keyHeader, "a-key-of-this-test")
		edge.Handler([]Route{route}).ServeHTTP(httptest.NewRecorder(), r)
		if got := strings.Join(found, " "); got != tc.want {
			t.Errorf("%s: the attempt is %s, want %s", name, got, tc.want)
		}
	}
}
