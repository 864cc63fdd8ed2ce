package httpx

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/url"
	"slices"
	"time"

	"github.com/danielgtaylor/huma/v2"
	"github.com/danielgtaylor/huma/v2/adapters/humago"
	"github.com/danielgtaylor/huma/v2/validation"

	"github.com/cloudfn/cloudfn/shared/apperr"
)

// Routes makes the routes of the operations that declare registers. Their Go types say what a request may hold, and describe it.
// Nothing in declare is called before a request comes, so it may be given a service without its parts to list the routes.
func Routes(declare func(huma.API)) []Route {
	settings()
	a := &adapter{}
	api := huma.NewAPI(huma.Config{
		OpenAPI:       &huma.OpenAPI{},
		Formats:       map[string]huma.Format{jsonType: {Marshal: encode, Unmarshal: json.Unmarshal}},
		DefaultFormat: jsonType,
	}, a)
	a.document = api.OpenAPI()
	shareSchemas(api)
	declare(api)
	for _, name := range []string{"ErrorModel", "ErrorDetail"} { // huma's; ours are Problem and FieldError
		delete(a.document.Components.Schemas.Map(), name)
	}
	return a.routes
}

const jsonType = "application/json"

// Register adds an operation. All faults of a request are reported together; with any, handler does not run.
func Register[I, O any](api huma.API, op huma.Operation, handler func(context.Context, *I) (*O, error)) {
	op.MaxBodyBytes = -1 // Edge has limited it, and set the deadline for reading it
	op.Middlewares = append(slices.Clone(op.Middlewares), read)
	huma.Register(api, op, func(ctx context.Context, in *I) (*O, error) {
		if err := of(ctx).rejected(nil); err != nil {
			return nil, err
		}
		return handler(ctx, in)
	})
}

// Before has a check run before anything of the request but its token is looked at.
func Before(check func(context.Context) error) huma.Middlewares {
	return huma.Middlewares{func(ctx huma.Context, next func(huma.Context)) {
		if err := check(ctx.Context()); err != nil {
			of(ctx.Context()).err = err
			return
		}
		next(ctx)
	}}
}

// adapter makes a Route of each operation. The answer is held back until its row in the request log is durable.
type adapter struct {
	http.Handler // nil: Edge serves the routes
	document     *huma.OpenAPI
	routes       []Route
}

// Handle implements huma.Adapter.
func (a *adapter) Handle(op *huma.Operation, handler func(huma.Context)) {
	complete(op)
	a.routes = append(a.routes, Route{Pattern: op.Method + " " + op.Path, Document: a.document, serve: func(r *http.Request) (Response, error) {
		w := &held{header: http.Header{}, status: http.StatusOK}
		c := &call{base: humago.NewContext(op, r, w), request: r}
		if handler(c); c.err != nil {
			return Response{}, c.err
		}
		return Response{Status: w.status, Header: w.header, Body: w.body.Bytes()}, nil
	}})
}

// held is an answer that is not sent yet.
type held struct {
	header http.Header
	status int
	body   bytes.Buffer
}

// Header implements http.ResponseWriter.
func (h *held) Header() http.Header { return h.header }

// Write implements http.ResponseWriter.
func (h *held) Write(b []byte) (int, error) { return h.body.Write(b) }

// WriteHeader implements http.ResponseWriter.
func (h *held) WriteHeader(status int) { h.status = status }

type base = huma.Context

// call is one request on its way through huma.
type call struct {
	base
	request *http.Request
	query   url.Values
	body    []byte
	faults  []apperr.Field // what read found wrong
	unread  error          // why the body is not usable at all
	err     error          // the outcome, instead of an answer
}

type callKey struct{}

func of(ctx context.Context) *call {
	return ctx.Value(callKey{}).(*call) //nolint:forcetypeassert // only call.Context hands out such contexts
}

// Context implements huma.Context.
func (c *call) Context() context.Context {
	return context.WithValue(c.base.Context(), callKey{}, c)
}

// Query implements huma.Context.
func (c *call) Query(name string) string { return c.query.Get(name) }

// Header implements huma.Context. read has checked the content type, and answers are JSON whatever the request accepts.
func (c *call) Header(name string) string {
	switch name {
	case "Content-Type":
		return jsonType
	case "Accept":
		return ""
	}
	return c.base.Header(name)
}

// BodyReader implements huma.Context.
func (c *call) BodyReader() io.Reader { return bytes.NewReader(c.body) }

// SetReadDeadline implements huma.Context. The deadline is Edge's.
func (c *call) SetReadDeadline(time.Time) error { return nil }

// read takes in the query and the body, more strictly than huma does.
func read(ctx huma.Context, next func(huma.Context)) {
	c, op := of(ctx.Context()), ctx.Operation()
	c.readQuery(op)
	if op.RequestBody != nil && (op.RequestBody.Required || c.request.ContentLength != 0) {
		c.read()
	}
	next(ctx)
}

func (c *call) readQuery(op *huma.Operation) {
	var names, booleans []string
	for _, p := range op.Parameters {
		switch {
		case p.In != "query":
			continue
		case p.Schema.Type == huma.TypeBoolean:
			booleans = append(booleans, p.Name)
		}
		names = append(names, p.Name)
	}
	c.query, c.faults = parseQuery(c.request, names)
	for _, name := range booleans { // huma takes 1 and T for true
		if given := c.query.Get(name); given != "" && given != "true" && given != "false" {
			c.faults = append(c.faults, apperr.Field{Field: name, Detail: validation.MsgExpectedBoolean})
		}
	}
}

// read takes a body only if every reader of JSON takes it for the same.
func (c *call) read() {
	if c.body, c.unread = readMedia(c.request); c.unread != nil {
		return
	}
	var syntax json.RawMessage
	if len(bytes.TrimSpace(c.body)) == 0 {
		c.unread = decodeError(io.EOF)
	} else if err := json.Unmarshal(c.body, &syntax); err != nil {
		c.unread = decodeError(err)
	} else if twice := checkKeys(c.body); twice != nil {
		c.faults = append(c.faults, apperr.As(twice).Fields...)
	}
}

// Documents are the descriptions that the routes have, each once.
func Documents(routes []Route) []*huma.OpenAPI {
	found := map[*huma.OpenAPI]bool{}
	var list []*huma.OpenAPI
	for _, route := range routes {
		if route.Document != nil && !found[route.Document] {
			found[route.Document] = true
			list = append(list, route.Document)
		}
	}
	return list
}
