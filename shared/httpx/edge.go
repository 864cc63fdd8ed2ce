package httpx

import (
	"cmp"
	"compress/flate"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"runtime/debug"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	"github.com/google/uuid"
	"github.com/klauspost/compress/gzhttp"

	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/domain"
)

// Edge handles what all requests have in common: request id, deadline, request log, authentication, and answers for
// errors and panics.
type Edge struct {
	// Authenticate finds the caller and puts it into the context; Caller reads it from there.
	Authenticate func(context.Context, *http.Request) (context.Context, error)
	Caller       func(context.Context) domain.Identity
	// Ready reports whether the request log can be written; Record writes a row and returns when it is durable.
	Ready  func(context.Context) error
	Record func(context.Context, domain.Request) error
	// Limits bound how often a source may send requests. A request that is Known counts for its project, any other for
	// its address. CountRefused records a request that a limit refused before its handler ran, or on a public route.
	Limits       Limits
	Known        Known
	CountRefused func(domain.Request)
	// BeginWrite checks the limit of what the requests of a project may write. What is written with the context that it
	// returns counts. nil = no limit.
	BeginWrite func(ctx context.Context, project string) (context.Context, error)
	// Keys stores requests with an Idempotency-Key.
	Keys KeyedRequests
	// KeystoneURL stands in WWW-Authenticate.
	KeystoneURL string
	// Timeout bounds a request, from its header to its answer.
	Timeout time.Duration
}

// Limits are rate limits. TakeAddress and TakeProject count a request, and fail when it is one too many. EnterAddress
// and EnterProject count it as in flight, and fail when too many are.
type Limits interface {
	Client(r *http.Request) (address string)
	TakeAddress(address string) error
	TakeProject(id string) error
	EnterAddress(address string) (leave func(), err error)
	EnterProject(id string) (leave func(), err error)
}

// slack is the time after the deadline to write the row and send the answer.
const slack = 15 * time.Second

// Handler serves the routes, and answers all other paths with a problem.
func (e Edge) Handler(routes []Route) http.Handler {
	known, compress := newRouter(routes), compression()
	return Healthz(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { e.serve(w, r, known, compress) }))
}

// compression has answers of 1 KiB or more compressed, by zstd or gzip, for clients that accept that. A page of another
// site cannot learn a secret from their length: it can send neither X-Auth-Token nor the console's own header, and no
// answer without both repeats what the request has.
func compression() func(http.Handler) http.HandlerFunc {
	compress, err := gzhttp.NewWrapper(gzhttp.MinSize(1<<10), gzhttp.CompressionLevel(flate.BestSpeed))
	if err != nil {
		panic(err) // the options are constants
	}
	return compress
}

// Healthz answers /healthz, and passes all other paths on. It checks no dependency: an outage of the database must not
// restart pods.
func Healthz(others http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/healthz" {
			others.ServeHTTP(w, r)
			return
		}
		w.Header().Set("Content-Type", "text/plain; charset=utf-8")
		_, _ = w.Write([]byte("ok\n"))
	})
}

// isRead reports whether a request changes nothing.
func isRead(r *http.Request) bool { return r.Method == http.MethodGet || r.Method == http.MethodHead }

func (e Edge) serve(
	w http.ResponseWriter, r *http.Request, routes router, compress func(http.Handler) http.HandlerFunc,
) {
	began := time.Now()
	arrived := withClient(TakeRequestID(r), text(e.Limits.Client(r), 64))
	id := RequestID(arrived)
	w.Header().Set("X-Request-Id", id)
	// Later than the request's own deadline: net/http cancels a request whose connection cannot be read any more,
	// which would look as if the client had disconnected. Under the functions framework no one else sets any.
	r = r.WithContext(arrived) // a copy: net/http looks at the body of its own
	upload := ReadBy(w, r, began.Add(e.Timeout+slack/2))
	_ = http.NewResponseController(w).SetWriteDeadline(began.Add(e.Timeout + slack))

	ctx, cancel := context.WithTimeout(arrived, e.Timeout)
	defer cancel()
	if !isRead(r) {
		// What changes something runs to its end also when the client hangs up. Its time stays: a function of this
		// process may be waiting for the answer, until its own time is up.
		deadline, _ := ctx.Deadline()
		ctx, cancel = context.WithDeadline(context.WithoutCancel(ctx), deadline)
		defer cancel()
	}
	ctx, used := domain.WithConnectionRecord(ctx)
	ctx, end := withInFlight(ctx)
	defer end() // the answer is sent, or the client has hung up
	x := routes.find(r.WithContext(ctx))
	x.limitBody(w, upload)

	resp, who := e.answer(ctx, x)
	resp = resp.conditional(x)
	row := e.row(x, r, id, resp, who, time.Since(began))
	row.Used = used.Used()
	if err := e.record(ctx, x, resp, row); err != nil {
		slog.ErrorContext(ctx, "the request log could not be written", "error", err)
		if mayHaveChanged := x.ran && !isRead(r) && (resp.Status < 400 || resp.Status >= 500); mayHaveChanged {
			resp = unrecorded(err, id, e.KeystoneURL)
		} else {
			resp = failure(err, id, e.KeystoneURL)
		}
		row.Status, row.Code = resp.Status, string(resp.Code)
	}
	upload.End(w.Header())
	if !resp.limited {
		defer LogRequest(ctx, row)
	}
	var broken error
	compress(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		broken = resp.write(ctx, w, r.Method == http.MethodHead)
	})).ServeHTTP(w, r)
	if broken != nil {
		slog.WarnContext(ctx, "an answer broke off", "error", broken)
		abort(w)
	}
}

func (e Edge) record(ctx context.Context, x *exchange, resp Response, row domain.Request) error {
	switch {
	case resp.Relayed || x.route != nil && x.route.Probe:
		return nil
	case resp.limited:
		e.CountRefused(row)
		return nil
	}
	// The client may have disconnected and the deadline past: the row is written all the same.
	detached, cancel := context.WithTimeout(context.WithoutCancel(ctx), slack)
	defer cancel()
	return e.Record(detached, row)
}

// answer runs the route, or returns why it did not.
func (e Edge) answer(ctx context.Context, x *exchange) (Response, domain.Identity) {
	id := RequestID(ctx)
	if x.route != nil && x.route.Probe {
		return e.outcome(ctx, x), domain.Identity{}
	}
	lookup := e.Known
	if x.route != nil && x.route.Known != nil {
		lookup = x.route.Known
	}
	known, isKnown := lookup(x.request.Header)
	ctx, err := e.take(ctx, known, isKnown)
	if err != nil {
		return failure(err, id, e.KeystoneURL), known
	}
	if err := e.enter(ctx, known, isKnown); err != nil {
		return failure(err, id, e.KeystoneURL), known
	}
	if err := e.Ready(ctx); err != nil {
		slog.WarnContext(ctx, "rejected: the request log is not available", "error", err)
		return failure(err, id, e.KeystoneURL), domain.Identity{}
	}
	if x.route == nil || !isText(x.request.URL.Path) {
		return e.unserved(x, id), domain.Identity{}
	}
	if x.route.Public {
		resp := e.outcome(ctx, x)
		return resp, resp.Caller
	}
	ctx, err = e.Authenticate(ctx, x.request)
	who := e.Caller(ctx)
	if err != nil {
		slog.InfoContext(ctx, "rejected", "error", err)
		return failure(err, id, e.KeystoneURL), who
	}
	if !isKnown {
		if ctx, err = e.take(ctx, who, true); err != nil {
			return failure(err, id, e.KeystoneURL), who
		}
	}
	if err := e.enter(ctx, who, true); err != nil {
		return failure(err, id, e.KeystoneURL), who
	}
	if !isRead(x.request) && e.BeginWrite != nil {
		if ctx, err = e.BeginWrite(ctx, sourceOf(who)); err != nil {
			return failure(LogFailure(ctx, x.route.Function, err), id, e.KeystoneURL), who
		}
	}
	ctx = context.WithValue(ctx, keysKey{}, keys{e.Keys, who})
	return e.outcome(ctx, x), who
}

// sourceOf is for whom the requests of a caller count.
func sourceOf(who domain.Identity) string { return cmp.Or(who.ProjectID, who.DomainID, who.UserID) }

// countedKey is the source that a request has counted for.
type countedKey struct{}

// take counts a request for whose it is, or for its address when that is not known. The request that a handler sends to
// another function of this process has the context of its own, and is not counted again.
func (e Edge) take(ctx context.Context, who domain.Identity, isKnown bool) (context.Context, error) {
	source, count := sourceOf(who), e.Limits.TakeProject
	if !isKnown {
		source, count = ClientAddress(ctx), e.Limits.TakeAddress
	}
	counted, isCounted := ctx.Value(countedKey{}).(string)
	if isCounted && (!isKnown || counted == source) {
		return ctx, nil
	}
	return context.WithValue(ctx, countedKey{}, source), count(source)
}

func (e Edge) outcome(ctx context.Context, x *exchange) Response {
	x.ran = true
	resp, err := guard(x.route, x.request.WithContext(ctx))
	if err == nil {
		return resp
	}
	resp = failure(LogFailure(ctx, x.route.Function, err), RequestID(ctx), e.KeystoneURL)
	// The handler may have called OpenStack before a limit refused the request: it has a row of its own. A public
	// route counts first.
	resp.limited = resp.limited && x.route.Public
	return resp
}

// guard turns a panic into an internal error, so that other requests go on.
func guard(route *Route, r *http.Request) (resp Response, err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("panic: %v\n%s", p, debug.Stack())
		}
	}()
	return route.serve(r)
}

func (e Edge) unserved(x *exchange, id string) Response {
	if x.status == http.StatusMethodNotAllowed {
		allow := x.header.Get("Allow")
		resp := failure(apperr.New(apperr.MethodNotAllowed, "this path takes %s", allow), id, e.KeystoneURL)
		resp.Header.Set("Allow", allow)
		return resp
	}
	// The field tells a client's wrong URL from a thing that it did not find.
	err := apperr.New(apperr.NotFound, "there is nothing at this path; the API is described at /v1/openapi.yaml")
	err.Fields = []apperr.Field{{Field: "path", Detail: "is no path of the API"}}
	return failure(err, id, e.KeystoneURL)
}

func (e Edge) row(
	x *exchange, r *http.Request, id string, resp Response, who domain.Identity, took time.Duration,
) domain.Request {
	row := domain.Request{
		ID: uuid.Must(uuid.NewV7()), Method: text(r.Method, 32), Path: Path(r), Status: resp.Status, Duration: took,
		UserID: who.UserID, UserName: text(who.UserName, 255), ProjectID: who.ProjectID, DomainID: who.DomainID,
		RequestID: id, Remote: ClientAddress(r.Context()), Code: string(resp.Code),
	}
	if x.route != nil {
		row.Function = x.route.Function
	}
	return row
}

// Path returns the request's path for rows and logs.
func Path(r *http.Request) string { return text(r.URL.Path, 1024) }

// isText reports whether a text column can hold s as it is.
func isText(s string) bool { return utf8.ValidString(s) && !strings.Contains(s, "\x00") }

// text makes input valid for a text column: valid UTF-8, no NUL, bounded.
func text(s string, most int) string {
	s = strings.ReplaceAll(strings.ToValidUTF8(s, "\uFFFD"), "\x00", "\uFFFD")
	if len(s) <= most {
		return s
	}
	for most > 0 && !utf8.RuneStart(s[most]) {
		most--
	}
	return s[:most]
}

// inFlight is what a request counts for until its answer is sent: one request in flight of its address, or of its
// project as soon as that is known.
type inFlight struct {
	mu        sync.Mutex
	leave     func() // nil while it counts for no source
	isProject bool
	hasEnded  bool
}

type inFlightKey struct{}

// withInFlight returns a context of a request in flight, and what ends it. What its handler requests of other functions
// in this process has a context of its own, and is the same request in flight.
func withInFlight(ctx context.Context) (inner context.Context, end func()) {
	if _, isInner := ctx.Value(inFlightKey{}).(*inFlight); isInner {
		return ctx, func() {}
	}
	f := &inFlight{}
	return context.WithValue(ctx, inFlightKey{}, f), f.end
}

func (f *inFlight) end() {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.hasEnded = true; f.leave != nil {
		f.leave()
	}
}

// enter counts a request as in flight, for whose it is, or for its address when that is not known.
func (e Edge) enter(ctx context.Context, who domain.Identity, isKnown bool) error {
	f, _ := ctx.Value(inFlightKey{}).(*inFlight)
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.hasEnded || f.isProject || f.leave != nil && !isKnown {
		return nil
	}
	source, enter := cmp.Or(who.ProjectID, who.DomainID, who.UserID), e.Limits.EnterProject
	if !isKnown {
		source, enter = ClientAddress(ctx), e.Limits.EnterAddress
	}
	leave, err := enter(source)
	if err != nil {
		return err
	}
	if f.leave != nil {
		f.leave()
	}
	f.leave, f.isProject = leave, isKnown
	return nil
}

type (
	requestIDKey struct{}
	clientKey    struct{}
)

func withClient(ctx context.Context, address string) context.Context {
	return context.WithValue(ctx, clientKey{}, address)
}

// ClientAddress is the address of the client whose request is being served, without its port; "" outside of a request.
func ClientAddress(ctx context.Context) string {
	address, _ := ctx.Value(clientKey{}).(string)
	return address
}

func withRequestID(ctx context.Context, id string) context.Context {
	return context.WithValue(ctx, requestIDKey{}, id)
}

// NewRequestID puts a new request id into the context, for work that no request began.
func NewRequestID(ctx context.Context) context.Context {
	return withRequestID(ctx, "req-"+uuid.NewString())
}

// TakeRequestID puts the id that the request came with into its context, or a new one.
func TakeRequestID(r *http.Request) context.Context {
	return withRequestID(r.Context(), requestID(r.Header.Get("X-Request-Id")))
}

// RequestID is the id of the request that is being served: req-<uuid>, the form that OpenStack accepts as a
// global request id. "" outside of a request.
func RequestID(ctx context.Context) string {
	id, _ := ctx.Value(requestIDKey{}).(string)
	return id
}

// requestID takes the caller's id when it is a UUID, with or without "req-", and makes one otherwise.
func requestID(given string) string {
	if len(given) > 4 && given[:4] == "req-" {
		given = given[4:]
	}
	if id, err := uuid.Parse(given); err == nil && len(given) == 36 {
		return "req-" + id.String()
	}
	return "req-" + uuid.NewString()
}

// LogFailure logs why a request failed. An error without a code is put down to the end of the request, if that has
// come.
func LogFailure(ctx context.Context, function string, err error) error {
	if apperr.CodeOf(err) == apperr.Internal {
		switch {
		case errors.Is(ctx.Err(), context.Canceled):
			err = apperr.Wrap(apperr.ClientGone, err, "the client hung up")
		case ctx.Err() != nil:
			err = apperr.Wrap(apperr.Timeout, err, "the request took too long")
		}
	}
	code, level := apperr.CodeOf(err), slog.LevelInfo
	if apperr.Retryable(err) && code != apperr.ClientGone {
		level = slog.LevelWarn
	}
	slog.Log(ctx, level, "request failed", "function", function, "code", code, "error", err)
	return err
}

// LogRequest writes the line that every request has.
func LogRequest(ctx context.Context, row domain.Request) {
	slog.InfoContext(ctx, "request", "function", row.Function, "method", row.Method, "path", row.Path,
		"status", row.Status,
		"ms", row.Duration.Milliseconds(), "project_id", row.ProjectID, "code", row.Code)
}
