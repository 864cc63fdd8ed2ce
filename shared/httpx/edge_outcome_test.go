package httpx

import (
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/cloudfn/cloudfn/shared/apperr"
)

// TestUnrecordedChange: the answer to a change that was made, and whose row cannot be written, says so. The answer to
// what was not done, or changes nothing, does not.
func TestUnrecordedChange(t *testing.T) {
	t.Parallel()
	missing := apperr.New(apperr.Unavailable, "the request log cannot be written")
	const mutation = "POST,PUT,PATCH,DELETE"
	for name, c := range map[string]struct {
		methods string
		failed  error
		edge    *recorder
		want    string
	}{
		"made":          {mutation, nil, &recorder{record: missing}, "unknown"},
		"may be made":   {mutation, apperr.New(apperr.BadGateway, "x"), &recorder{record: missing}, "unknown"},
		"crashed":       {mutation, errors.New("x"), &recorder{record: missing}, "unknown"},
		"refused":       {mutation, apperr.New(apperr.Conflict, "x"), &recorder{record: missing}, ""},
		"not begun":     {mutation, nil, &recorder{ready: missing, record: missing}, ""},
		"not signed in": {mutation, nil, &recorder{auth: missing, record: missing}, ""},
		"read":          {"GET", nil, &recorder{record: missing}, ""},
	} {
		for method := range strings.SplitSeq(c.methods, ",") {
			route := Handle(method+" /things", func(*http.Request) (map[string]string, error) {
				return map[string]string{}, c.failed
			})
			w := httptest.NewRecorder()
			c.edge.edge().Handler([]Route{route}).ServeHTTP(w, httptest.NewRequest(method, "/things", nil))
			p := problem(t, w)
			if p.Status != 503 || p.Outcome != c.want || w.Header().Get("Retry-After") == "" ||
				strings.Contains(p.Detail, "may have been made") != (c.want != "") {
				t.Errorf("%s, %s: got %+v", name, method, p)
			}
		}
	}
}
