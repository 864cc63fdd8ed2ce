package httpx

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"io"
	"maps"
	"net/http"
	"net/url"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/danielgtaylor/huma/v2"
	"github.com/danielgtaylor/huma/v2/adapters/humago"
	"github.com/danielgtaylor/huma/v2/validation"
	"github.com/google/uuid"

	"github.com/cloudfn/cloudfn/shared/apperr"
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
	nextPage, list := nextPageOf[O]()
	if nextPage != nil {
		op.Metadata = map[string]any{pageKey: list}
	}
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
		out, err := handler(ctx, in)
		if nextPage != nil && err == nil && out != nil {
			next, _ := reflect.TypeAssert[*string](reflect.ValueOf(out).Elem().FieldByIndex(nextPage))
			if link := Link(next); link != "" {
				c.SetHeader("Link", link)
			}
		}
		return out, err
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
	entries := describeFields(op, a.document.Components.Schemas)
	serve := func(r *http.Request) (Response, error) {
		w := &held{header: http.Header{}, status: http.StatusOK}
		c := &call{base: humago.NewContext(op, r, w), request: r, entries: entries}
		handler(c)
		resp := Response{Status: w.status, Header: w.header, Body: w.body.Bytes()}
		if c.response != nil {
			resp = *c.response
		}
		if fields := c.query["fields"]; entries != nil && fields != nil && resp.isJSON() {
			resp.Body = entries.pick(resp.Body, fields[0])
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

type base = huma.Context

// call is one request on its way through huma.
type call struct {
	base
	request  *http.Request
	query    url.Values
	body     []byte
	key      string         // of the request, if its operation takes one
	attempt  *attempt       // at a request with a key
	faults   []apperr.Field // what read found wrong
	unread   error          // why the body is not usable at all
	err      error          // the outcome, instead of an answer
	response *Response      // the outcome of Serve
	entries  *entries       // of a list
}

type callKey struct{}

func of(ctx context.Context) *call {
	c, _ := ctx.Value(callKey{}).(*call)
	return c
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
	if isIdempotent(op) {
		c.readKey()
	}
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
	if c.entries != nil {
		c.faults = append(c.faults, c.entries.check(c.query)...)
	}
	for _, name := range booleans { // huma takes 1 and T for true
		if given := c.query.Get(name); given != "" && given != "true" && given != "false" {
			c.faults = append(c.faults, apperr.Field{Field: name, Detail: validation.MsgExpectedBoolean})
		}
	}
}

// read takes a body only if every reader of JSON takes it for the same. huma gets none otherwise: it would decode it.
func (c *call) read() {
	if c.body, c.unread = readMedia(c.request); c.unread == nil {
		c.unread = c.check()
	}
	if c.unread != nil {
		c.body = nil
	}
}

func (c *call) check() error {
	var syntax json.RawMessage
	if len(bytes.TrimSpace(c.body)) == 0 {
		return syntaxError(io.EOF)
	}
	if err := json.Unmarshal(c.body, &syntax); err != nil {
		return syntaxError(err)
	}
	faults, err := scan(c.body)
	c.faults = append(c.faults, faults...)
	return err
}

// huma takes "." and "[" in a path for the begin of a step. In keys of the body noncharacters stand for them, until the
// path is shown.
var (
	marked   = strings.NewReplacer(".", "\uFDD0", "[", "\uFDD1")
	unmarked = strings.NewReplacer("\uFDD0", ".", "\uFDD1", "[")
)

// decode is how huma reads JSON: first into an any, which it validates, and then into the type. Its errors repeat no
// value.
func decode(data []byte, into any) error {
	err := json.Unmarshal(data, into)
	if mismatch, ok := errors.AsType[*json.UnmarshalTypeError](err); ok { // a number that is too large for its type
		return errors.New("has a number that is out of range: " + mismatch.Field)
	}
	if tree, ok := into.(*any); ok && err == nil {
		markKeys(*tree)
	}
	return err
}

// markKeys marks the keys of all objects in a value.
func markKeys(value any) {
	switch value := value.(type) {
	case []any:
		for _, entry := range value {
			markKeys(entry)
		}
	case map[string]any:
		var dotted []string
		for key, entry := range value {
			if markKeys(entry); strings.ContainsAny(key, ".[") {
				dotted = append(dotted, key)
			}
		}
		for _, key := range dotted {
			value[marked.Replace(key)] = value[key]
			delete(value, key)
		}
	}
}

// Answers describes what an operation answers, by status. The rejections that every operation has need not be among
// them.
func Answers(texts map[int]string) map[string]*huma.Response {
	list := map[string]*huma.Response{}
	for status, text := range texts {
		response := &huma.Response{Description: text}
		if name, shared := rejections[status]; shared {
			response.Ref = "#/components/responses/" + name
		}
		list[strconv.Itoa(status)] = response
	}
	return list
}

// rejections are the shared responses of openapi.base.yaml, by status.
var rejections = map[int]string{
	http.StatusBadRequest:            "BadRequest",
	http.StatusUnauthorized:          "Unauthorized",
	http.StatusForbidden:             "Forbidden",
	http.StatusNotFound:              "NotFound",
	http.StatusMethodNotAllowed:      "MethodNotAllowed",
	http.StatusNotAcceptable:         "NotAcceptable",
	http.StatusConflict:              "Conflict",
	http.StatusPreconditionFailed:    "PreconditionFailed",
	http.StatusRequestEntityTooLarge: "ContentTooLarge",
	http.StatusUnsupportedMediaType:  "UnsupportedMediaType",
	http.StatusUnprocessableEntity:   "UnprocessableContent",
	http.StatusTooManyRequests:       "TooManyRequests",
	http.StatusInternalServerError:   "InternalServerError",
	http.StatusNotImplemented:        "NotImplemented",
	http.StatusBadGateway:            "BadGateway",
	http.StatusServiceUnavailable:    "ServiceUnavailable",
	http.StatusGatewayTimeout:        "GatewayTimeout",
}

// complete adds to an operation what all of them have.
func complete(op *huma.Operation) {
	common := []int{
		http.StatusMethodNotAllowed, http.StatusInternalServerError, http.StatusServiceUnavailable,
		http.StatusGatewayTimeout, http.StatusTooManyRequests,
	}
	if op.Security == nil { // Keystone is called for the token
		common = append(common, http.StatusBadRequest, http.StatusUnauthorized, http.StatusForbidden,
			http.StatusBadGateway)
	}
	if op.RequestBody != nil {
		common = append(common, http.StatusRequestEntityTooLarge, http.StatusUnsupportedMediaType)
	}
	if isIdempotent(op) {
		common = append(common, http.StatusBadRequest, http.StatusConflict, http.StatusUnprocessableEntity)
	}
	for _, status := range common {
		if op.Responses[strconv.Itoa(status)] == nil {
			maps.Copy(op.Responses, Answers(map[int]string{status: ""}))
		}
	}
	delete(op.Responses, "default")
	for status, response := range op.Responses {
		if response.Ref != "" {
			continue
		}
		for _, h := range response.Headers {
			h.Description, h.Required = h.Schema.Description, !h.Schema.Nullable // a pointer's is not always sent
			h.Schema.Description, h.Schema.Nullable = "", false
		}
		if response.Headers == nil {
			response.Headers = map[string]*huma.Header{}
		}
		response.Headers["X-Request-Id"] = &huma.Header{Ref: "#/components/headers/X-Request-Id"}
		if isIdempotent(op) && status < "300" {
			response.Headers[replayedHeader] = &huma.Header{Ref: "#/components/headers/" + replayedHeader}
		}
	}
	for _, p := range op.Parameters {
		describeParameter(p)
	}
	describeRead(op)
	op.Parameters = slices.Insert(op.Parameters, 0, &huma.Param{Ref: "#/components/parameters/RequestId"})
	if isIdempotent(op) {
		op.Parameters = append(op.Parameters, &huma.Param{Ref: "#/components/parameters/IdempotencyKey"})
	}
}

// describeParameter says at the parameter what its field's tags say of the schema.
func describeParameter(p *huma.Param) {
	if p.Schema.Type != huma.TypeArray {
		p.Explode = nil
	}
	p.Description = cmp.Or(p.Description, p.Schema.Description)
	p.Schema.Description = ""
	if len(p.Schema.Examples) > 0 {
		p.Example, p.Schema.Examples = p.Schema.Examples[0], nil
	}
}

// SharedSchema gives a reference to a schema under its own name. It is for the Schema method of a type.
func SharedSchema(r huma.Registry, name string, schema huma.Schema) *huma.Schema {
	if r.Map()[name] == nil {
		schema.PrecomputeMessages()
		r.Map()[name] = &schema
	}
	return &huma.Schema{Ref: "#/components/schemas/" + name}
}

// DescribeAs has T described as D is, which has a Schema method.
func DescribeAs[T any, D huma.SchemaProvider](api huma.API) {
	api.OpenAPI().Components.Schemas.RegisterTypeAlias(reflect.TypeFor[T](), reflect.TypeFor[D]())
}

// schemas are the functions of Describe, by type. Routes that describe the same type do so in the same way.
var schemas sync.Map

// described is a T whose schema was given to Describe.
type described[T any] struct{}

// Schema implements huma.SchemaProvider.
func (described[T]) Schema(r huma.Registry) *huma.Schema {
	stored, _ := schemas.Load(reflect.TypeFor[T]())
	schema, _ := stored.(func(huma.Registry) *huma.Schema)
	return schema(r)
}

// Describe has T described by a schema, whatever its Go type is.
func Describe[T any](api huma.API, schema func(huma.Registry) *huma.Schema) {
	schemas.Store(reflect.TypeFor[T](), schema)
	DescribeAs[T, described[T]](api)
}

// Refer has T described by a schema that openapi.base.yaml or another type has.
func Refer[T any](api huma.API, name string) {
	Describe[T](api, func(huma.Registry) *huma.Schema { return &huma.Schema{Ref: "#/components/schemas/" + name} })
}

// Enum has T described as one of some texts: under a name of its own, or where it is used if that is empty.
func Enum[T any, V ~string](api huma.API, name string, values ...V) {
	list := Each(values, func(v V) any { return string(v) })
	Describe[T](api, func(r huma.Registry) *huma.Schema {
		schema := huma.Schema{Type: huma.TypeString, Enum: list}
		if name == "" {
			return &schema
		}
		return SharedSchema(r, name, schema)
	})
}

func shareSchemas(api huma.API) {
	Describe[uuid.UUID](api, func(r huma.Registry) *huma.Schema {
		return SharedSchema(r, "UUID", huma.Schema{
			Type: huma.TypeString, Format: "uuid", Description: "A UUID in lower case.",
			Pattern: "^[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$",
		})
	})
	Describe[time.Time](api, func(r huma.Registry) *huma.Schema {
		return SharedSchema(r, "Time", huma.Schema{
			Type: huma.TypeString, Format: "date-time", Description: "RFC 3339 in UTC.", Pattern: "Z$",
		})
	})
	Describe[int](api, func(huma.Registry) *huma.Schema { // else the size of Go's int would be part of the API
		return &huma.Schema{Type: huma.TypeInteger}
	})
	Refer[apperr.Code](api, "Code")
}
