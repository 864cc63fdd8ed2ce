package httpx

import (
	"bytes"
	"context"
	"net/http"
	"slices"

	"github.com/danielgtaylor/huma/v2"
	"github.com/danielgtaylor/huma/v2/adapters/humago"
)

// Routes returns the routes of the operations that declare registers. Their Go types validate and describe requests.
// Handlers are not called before a request, so a zero service is enough to list the routes.
func Routes(declare func(huma.API)) []Route {
	settings()
	a := &adapter{}
	api := huma.NewAPI(huma.Config{
		OpenAPI:       &huma.OpenAPI{},
		Formats:       map[string]huma.Format{jsonType: {Marshal: encode, Unmarshal: decode}},
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

// Register adds an operation. All faults of a request are reported together, without a call of handler. An operation
// with a Security of its own needs no Keystone token.
func Register[I, O any](api huma.API, op huma.Operation, handler func(context.Context, *I) (*O, error)) {
	op.MaxBodyBytes = -1 // Edge has limited it, and set the deadline for reading it
	op.Middlewares = append(slices.Clone(op.Middlewares), read)
	huma.Register(api, op, func(ctx context.Context, in *I) (*O, error) {
		c := of(ctx)
		if err := c.rejected(nil); err != nil {
			return nil, err
		}
		ctx, err := c.begin(ctx)
		if err != nil || c.response != nil {
			return nil, err
		}
		return handler(ctx, in)
	})
}

// Serve adds an operation that makes its answer itself: of another content type, or a stream. O only describes it.
func Serve[I, O any](api huma.API, op huma.Operation, handler func(context.Context, *I) (Response, error)) {
	Register(api, op, func(ctx context.Context, in *I) (*O, error) {
		resp, err := handler(ctx, in)
		if err == nil {
			of(ctx).response = &resp
		}
		return nil, err
	})
}

// RequestOf is the request that an operation's handler serves.
func RequestOf(ctx context.Context) *http.Request { return of(ctx).request }

// Before runs a check after authentication, before the request is read.
func Before(check func(context.Context) error) huma.Middlewares {
	return huma.Middlewares{func(ctx huma.Context, next func(huma.Context)) {
		if err := check(ctx.Context()); err != nil {
			of(ctx.Context()).err = err
			return
		}
		next(ctx)
	}}
}

// MapError has change replace every error of an operation, those of reading the request included.
func MapError(change func(error) error) huma.Middlewares {
	return huma.Middlewares{func(ctx huma.Context, next func(huma.Context)) {
		next(ctx)
		if c := of(ctx.Context()); c.err != nil {
			c.err = change(c.err)
		}
	}}
}

// adapter makes a Route of each operation. It buffers the answer until its row in the request log is durable.
type adapter struct {
	http.Handler // nil: Edge serves the routes
	document     *huma.OpenAPI
	routes       []Route
}

// Handle implements huma.Adapter.
func (a *adapter) Handle(op *huma.Operation, handler func(huma.Context)) {
	complete(op)
	serve := func(r *http.Request) (Response, error) {
		w := &held{header: http.Header{}, status: http.StatusOK}
		c := &call{base: humago.NewContext(op, r, w), request: r}
		handler(c)
		resp := Response{Status: w.status, Header: w.header, Body: w.body.Bytes()}
		if c.response != nil {
			resp = *c.response
		}
		c.attempt.end(r.Context(), resp, c.err)
		if c.err != nil {
			return Response{}, c.err
		}
		return resp, nil
	}
	a.routes = append(a.routes, Route{
		Pattern: op.Method + " " + op.Path, Public: op.Security != nil, Document: a.document, serve: serve,
		isAnonymous: op.Security != nil,
	})
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

// Operations returns a function's Routes of its operations.
func Operations[S any](routes func(huma.API, S)) func(S) []Route {
	return func(s S) []Route { return Routes(func(api huma.API) { routes(api, s) }) }
}

// Documents lists the descriptions of the routes, each once.
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
