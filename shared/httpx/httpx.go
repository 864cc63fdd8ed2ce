// Package httpx is the HTTP edge that all functions share: routes, reading of requests, the one writer of
// answers and the one table from errors to statuses.
//
// An answer is made whole before any of it is sent, or it is a Stream, because its row in the request log comes first.
package httpx

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"io"
	"maps"
	"math"
	"mime"
	"net/http"
	"slices"
	"strconv"
	"strings"

	"github.com/danielgtaylor/huma/v2"

	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/domain"
)

// Route is one method and path that a function serves.
type Route struct {
	Function string        // filled in by run
	Pattern  string        // as http.ServeMux takes it: "GET /v1/servers/{id}"
	Public   bool          // served without a token
	Probe    bool          // answered, and not logged, when the request log is unavailable
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

// JSON is an answer with a status of its own, and headers: names and values in turn. An empty value is left out.
func JSON(status int, v any, headers ...string) (Response, error) {
	var body bytes.Buffer
	if err := encode(&body, v); err != nil {
		return Response{}, err
	}
	header := http.Header{}
	for pair := range slices.Chunk(headers, 2) {
		if pair[1] != "" {
			header.Set(pair[0], pair[1])
		}
	}
	return Response{Status: status, Header: header, Body: body.Bytes()}, nil
}

func encode(w io.Writer, v any) error {
	enc := json.NewEncoder(w)
	enc.SetEscapeHTML(false)
	return enc.Encode(v)
}

// isJSON reports whether it is the JSON that was requested.
func (resp Response) isJSON() bool {
	return resp.Status == http.StatusOK && resp.Stream == nil && cmp.Or(resp.ContentType, jsonType) == jsonType
}

// write sends the answer. An error reports that its body is not whole.
func (resp Response) write(ctx context.Context, w http.ResponseWriter, head bool) error {
	h := w.Header()
	vary := append(slices.Clone(resp.Header.Values("Vary")), h.Values("Vary")...)
	maps.Copy(h, resp.Header)
	h["Vary"] = vary
	if resp.Status != http.StatusNotModified {
		h.Set("Content-Type", cmp.Or(resp.ContentType, "application/json"))
	}
	h.Set("X-Content-Type-Options", "nosniff")
	if h.Get("Cache-Control") == "" {
		h.Set("Cache-Control", "no-store") // answers depend on the token
	}
	w.WriteHeader(resp.Status)
	switch {
	case head:
		return nil
	case resp.Stream != nil:
		return resp.Stream(ctx, w)
	}
	_, _ = w.Write(resp.Body) // the client may have disconnected; the row is written
	return nil
}

// conditional gives a read's answer the ETag of its content, and is 304 if the client has that already. The ETag of an
// answer that has one says which version of a thing If-Match has to expect: the rest of the answer may have changed.
func (resp Response) conditional(x *exchange) Response {
	isWhole := resp.Status == http.StatusOK && resp.Stream == nil && !resp.Relayed
	isOfAPI := x.route != nil && x.route.Document != nil && !x.route.isAnonymous
	if !isWhole || !isOfAPI || !isRead(x.request) || resp.Header.Get("ETag") != "" {
		return resp
	}
	sum := sha256.Sum256(resp.Body)
	tag := `"` + base64.RawURLEncoding.EncodeToString(sum[:15]) + `"`
	resp.Header = resp.Header.Clone()
	if resp.Header == nil {
		resp.Header = http.Header{}
	}
	resp.Header.Set("ETag", "W/"+tag)
	if VersionsOf(x.request, "If-None-Match").Has(tag) {
		resp.Status, resp.Body = http.StatusNotModified, nil
		resp.Header.Del("Content-Type")
	}
	return resp
}

// router finds the route of a request. A literal segment comes before a wildcard, from left to right:
// /servers/history/x is of /servers/history/{id}, and not of /servers/{id}/x. One http.ServeMux rejects such a pair.
type router struct{ main, nested *http.ServeMux }

func newRouter(routes []Route) router {
	r := router{http.NewServeMux(), http.NewServeMux()}
	for _, route := range routes {
		mux := r.main
		if isNested(route.Pattern) {
			mux = r.nested
		}
		mux.Handle(route.Pattern, route)
	}
	return r
}

// isNested reports whether a pattern has a literal segment after a wildcard.
func isNested(pattern string) bool {
	return strings.Contains(strings.ReplaceAll(pattern, "}/{", ""), "}/")
}

// find hands a request to its route, which notes that in the exchange.
func (m router) find(r *http.Request) *exchange {
	x := &exchange{header: http.Header{}, request: r}
	m.main.ServeHTTP(x, r)
	if x.route == nil && (x.status == http.StatusNotFound || x.status == http.StatusMethodNotAllowed) {
		other := &exchange{header: http.Header{}, request: r}
		m.nested.ServeHTTP(other, r)
		if other.route != nil || x.status == http.StatusNotFound {
			return other
		}
	}
	return x
}

// exchange is one request on its way through the mux, which only hands over a ResponseWriter.
type exchange struct {
	header  http.Header
	status  int // what the mux itself answered: 404, 405 or a redirect
	route   *Route
	request *http.Request
	ran     bool // the route's handler
}

// Header implements http.ResponseWriter.
func (x *exchange) Header() http.Header { return x.header }

// Write drops the mux's own body.
func (x *exchange) Write(b []byte) (int, error) { return len(b), nil }

// WriteHeader notes what the mux itself answered.
func (x *exchange) WriteHeader(status int) { x.status = status }

// ServeHTTP records that the mux chose this route, and its path values.
func (route Route) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	x := w.(*exchange) //nolint:forcetypeassert // routes are only mounted by Edge.Handler
	x.route, x.request = &route, r
}

// Stream writes the body of an answer that may be too long to be made whole. It is called once the answer's row is
// durable. When it fails, the connection ends, so that the client does not take a part for the whole.
type Stream func(ctx context.Context, w io.Writer) error

// abort ends the connection under an answer that has begun. The functions framework makes a whole answer of a panic, so
// that is for when there is no connection to be had, as of HTTP/2.
func abort(w http.ResponseWriter) {
	conn, _, err := http.NewResponseController(w).Hijack()
	if err != nil {
		panic(http.ErrAbortHandler)
	}
	_ = conn.Close()
}

// Negotiate chooses among the offered content types what the request's Accept likes best; of equals, the one
// offered first. Without Accept it is the first.
func Negotiate(r *http.Request, offered ...string) (string, error) {
	accept := strings.Join(r.Header.Values("Accept"), ",")
	if strings.TrimSpace(accept) == "" {
		return offered[0], nil
	}
	best, bestQ := "", 0.0
	for _, kind := range offered {
		if q := quality(accept, kind); q > bestQ {
			best, bestQ = kind, q
		}
	}
	if best == "" {
		err := apperr.Malformed("Accept", "a content type that is offered here", accept, slices.Clone(offered)...)
		err.Code = apperr.NotAcceptable
		return "", err
	}
	return best, nil
}

// quality is how much an Accept header likes a content type, 0 to 1: its most precise range decides.
func quality(accept, kind string) float64 {
	family, _, _ := strings.Cut(kind, "/")
	ranks := map[string]int{"*/*": 1, family + "/*": 2, kind: 3}
	q, rank := 0.0, 0
	for part := range strings.SplitSeq(accept, ",") {
		name, params, err := mime.ParseMediaType(part)
		if err != nil || ranks[name] <= rank {
			continue
		}
		rank, q = ranks[name], 1
		if text, ok := params["q"]; ok {
			if q, err = strconv.ParseFloat(text, 64); err != nil || q < 0 || q > 1 || math.IsNaN(q) {
				q = 0 // no weight (RFC 9110, 12.4.2)
			}
		}
	}
	return q
}

// ETag identifies one version of a thing (RFC 9110, section 8.8.3).
func ETag(version int64) string { return `"` + strconv.FormatInt(version, 10) + `"` }

// MatchRequest is the part of a request that changes a thing only in the version that the caller knows. Such requests
// embed it.
type MatchRequest struct {
	IfMatch string `header:"If-Match" minLength:"1" example:"\"3\""`
}

// Versions are the entity tags of a conditional header; nil = the request has none.
type Versions []string

// VersionsOf reads If-Match or If-None-Match.
//
// A proxy that compresses answers marks their tags: nginx makes `"3"` to `W/"3"`, Apache httpd to `"3-gzip"`, and Jetty
// to `"3--gzip"`. A weak tag never matches by RFC 9110, section 13.1.1. Ours do: the version in them is of what is
// stored, whatever was done to its bytes on the way, and a client behind such a proxy can send no other.
func VersionsOf(r *http.Request, header string) (all Versions) {
	given := strings.Join(r.Header.Values(header), ",")
	if given == "" {
		return nil
	}
	for tag := range strings.SplitSeq(given, ",") {
		all = append(all, strings.TrimPrefix(strings.TrimSpace(tag), "W/"))
	}
	return all
}

// Has reports whether an entity tag of ours is among them.
func (v Versions) Has(own string) bool {
	marked := strings.TrimSuffix(own, `"`) + "-"
	return slices.ContainsFunc(v, func(tag string) bool {
		return tag == own || tag == "*" || strings.HasPrefix(tag, marked)
	})
}

// IfMatch rejects a version of a thing that the request does not expect. Without the header any version is expected.
func IfMatch(ctx context.Context, thing string) func(version int64) error {
	expected := VersionsOf(RequestOf(ctx), "If-Match")
	return func(version int64) error {
		if expected == nil || expected.Has(ETag(version)) {
			return nil
		}
		return apperr.New(apperr.Precondition, "the %s has been changed: its ETag is %s now", thing, ETag(version))
	}
}
