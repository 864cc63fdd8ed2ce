// Package httpx is the HTTP edge that all functions share: routes, reading of requests, the one writer of
// answers and the one table from errors to statuses.
//
// An answer is made whole before any of it is sent, or it is a Stream, because its row in the request log comes first.
package httpx

import (
	"bytes"
	"encoding/json"
	"io"
	"maps"
	"net/http"

	"github.com/danielgtaylor/huma/v2"

	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/domain"
)

// Route is one method and path that a function serves.
type Route struct {
	Function string        // filled in by run
	Pattern  string        // as http.ServeMux takes it: "GET /v1/servers/{id}"
	Public   bool          // served without a token
	Probe    bool          // answered, and not logged, when the request log is away
	Known    Known         // for its requests, instead of Edge.Known; nil = that
	Document *huma.OpenAPI // that describes it; nil = functions/openapi.base.yaml does
	serve    func(*http.Request) (Response, error)

	isAnonymous bool // its body is read before it is known who sends it
}

// Known returns whose request it is, if that is known without a call to Postgres or Keystone. It decides only which
// rate limit the request counts for.
type Known func(http.Header) (domain.Identity, bool)

// Response is an answer with more to it than a JSON body: another status, a header, another content type.
type Response struct {
	Status      int
	Header      http.Header
	ContentType string // "" = application/json
	Body        []byte
	Stream      Stream          // writes the body instead of Body; nil = see Body
	Code        apperr.Code     // of a problem
	Caller      domain.Identity // on a public route: who it turned out to be, for the row
	Relayed     bool            // another function's answer, whose row is written there
	limited     bool            // a rate limit of ours refused the request, which shares a row with others
}

// Handle makes a route of a function that returns a value or an error. The value is sent as JSON with
// status 200, unless it is a Response.
func Handle[T any](pattern string, fn func(*http.Request) (T, error)) Route {
	return Route{Pattern: pattern, serve: func(r *http.Request) (Response, error) {
		out, err := fn(r)
		if err != nil {
			return Response{}, err
		}
		if resp, ok := any(out).(Response); ok {
			return resp, nil
		}
		return JSON(http.StatusOK, out)
	}}
}

// JSON is an answer with a status of its own.
func JSON(status int, v any) (Response, error) {
	var body bytes.Buffer
	if err := encode(&body, v); err != nil {
		return Response{}, err
	}
	return Response{Status: status, Header: http.Header{}, Body: body.Bytes()}, nil
}

func encode(w io.Writer, v any) error {
	enc := json.NewEncoder(w)
	enc.SetEscapeHTML(false)
	return enc.Encode(v)
}

func (resp Response) write(w http.ResponseWriter, head bool) {
	h := w.Header()
	maps.Copy(h, resp.Header)
	contentType := resp.ContentType
	if contentType == "" {
		contentType = "application/json"
	}
	h.Set("Content-Type", contentType)
	h.Set("X-Content-Type-Options", "nosniff")
	if h.Get("Cache-Control") == "" {
		h.Set("Cache-Control", "no-store") // answers depend on the token
	}
	w.WriteHeader(resp.Status)
	if !head {
		_, _ = w.Write(resp.Body) // the client may be gone; the row is written
	}
}
