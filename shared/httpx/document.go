package httpx

import (
	"cmp"
	"maps"
	"net/http"
	"reflect"
	"slices"
	"strconv"
	"time"

	"github.com/danielgtaylor/huma/v2"
	"github.com/google/uuid"

	"github.com/cloudfn/cloudfn/shared/apperr"
)

// Answer is one of an operation's answers.
type Answer struct {
	status      int
	description string
	examples    []Example
}

// Status describes the answer of a status. Of a refusal there are no examples to give.
func Status(status int, description string, examples ...Example) Answer {
	return Answer{status, description, examples}
}

// Example is a body as it may be sent.
type Example struct {
	name, summary string
	value         any
	kind          string // its content type
}

// NewExample gives a body a name and a summary. The value is of the answer's type, or json.RawMessage.
func NewExample(name, summary string, value any) Example {
	return Example{name: name, summary: summary, value: value, kind: jsonType}
}

// TextExample is the one example of a content type that is not JSON.
func TextExample(kind, text string) Example { return Example{kind: kind, value: text} }

// Answers describes what an operation answers. The refusals that every operation has need not be among them.
func Answers(answers ...Answer) map[string]*huma.Response {
	list := map[string]*huma.Response{}
	for _, a := range answers {
		response := &huma.Response{Description: a.description}
		if name, refusal := refusals[a.status]; refusal {
			response.Ref = "#/components/responses/" + name
		}
		if len(a.examples) > 0 {
			response.Content = content(a.examples)
		}
		list[strconv.Itoa(a.status)] = response
	}
	return list
}

// Request describes a body by examples. Its type describes the rest.
func Request(examples ...Example) *huma.RequestBody {
	return &huma.RequestBody{Content: content(examples)}
}

func content(examples []Example) map[string]*huma.MediaType {
	kinds := map[string]*huma.MediaType{}
	for _, e := range examples {
		switch {
		case e.kind != jsonType:
			kinds[e.kind] = &huma.MediaType{Example: e.value}
			continue
		case kinds[jsonType] == nil:
			kinds[jsonType] = &huma.MediaType{Examples: map[string]*huma.Example{}}
		}
		kinds[jsonType].Examples[e.name] = &huma.Example{Summary: e.summary, Value: e.value}
	}
	return kinds
}

// refusals are the shared responses of openapi.rest.yaml, by status.
var refusals = map[int]string{
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

// Explain gives parameters descriptions that are too long for a tag. It is for an operation's Metadata: name, text, name, text.
func Explain(pairs ...string) map[string]any {
	texts := map[string]any{}
	for i := 0; i+1 < len(pairs); i += 2 {
		texts[pairs[i]] = pairs[i+1]
	}
	return texts
}

// complete adds to an operation what all of them have.
func complete(op *huma.Operation) {
	common := []int{
		http.StatusBadRequest, http.StatusUnauthorized, http.StatusForbidden, http.StatusMethodNotAllowed, http.StatusTooManyRequests,
		http.StatusInternalServerError, http.StatusBadGateway, http.StatusServiceUnavailable, http.StatusGatewayTimeout,
	}
	if op.RequestBody != nil {
		common = append(common, http.StatusRequestEntityTooLarge, http.StatusUnsupportedMediaType)
	}
	for _, status := range common {
		if op.Responses[strconv.Itoa(status)] == nil {
			maps.Copy(op.Responses, Answers(Status(status, "")))
		}
	}
	delete(op.Responses, "default")
	for _, response := range op.Responses {
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
	}
	for _, p := range op.Parameters {
		describeParameter(p)
		if text, ok := op.Metadata[p.Name].(string); ok {
			p.Description = text
		}
	}
	op.Parameters = slices.Insert(op.Parameters, 0, &huma.Param{Ref: "#/components/parameters/RequestId"})
}

// describeParameter says at the parameter what its field's tags say of the schema.
func describeParameter(p *huma.Param) {
	p.Explode = nil // no list is sent as several parameters
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

// SchemaOf is the schema of a struct, to add to it what its tags cannot say.
func SchemaOf[T any](api huma.API) *huma.Schema {
	return api.OpenAPI().Components.Schemas.Schema(reflect.TypeFor[T](), false, "")
}

// DescribeAs has T described as D is, which has a Schema method.
func DescribeAs[T any, D huma.SchemaProvider](api huma.API) {
	api.OpenAPI().Components.Schemas.RegisterTypeAlias(reflect.TypeFor[T](), reflect.TypeFor[D]())
}

func shareSchemas(api huma.API) {
	DescribeAs[uuid.UUID, uuidSchema](api)
	DescribeAs[time.Time, timeSchema](api)
	DescribeAs[int, intSchema](api)
	DescribeAs[apperr.Code, codeSchema](api)
}

type uuidSchema struct{}

// Schema implements huma.SchemaProvider.
func (uuidSchema) Schema(r huma.Registry) *huma.Schema {
	return SharedSchema(r, "UUID", huma.Schema{
		Type: huma.TypeString, Format: "uuid", Description: "A UUID in lower case.",
		Pattern: "^[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$",
	})
}

type timeSchema struct{}

// Schema implements huma.SchemaProvider.
func (timeSchema) Schema(r huma.Registry) *huma.Schema {
	return SharedSchema(r, "Time", huma.Schema{
		Type: huma.TypeString, Format: "date-time", Description: "RFC 3339 in UTC.", Pattern: "Z$",
	})
}

type intSchema struct{}

// Schema implements huma.SchemaProvider. Without it the size of Go's int would be part of the API.
func (intSchema) Schema(huma.Registry) *huma.Schema { return &huma.Schema{Type: huma.TypeInteger} }

type codeSchema struct{}

// Schema implements huma.SchemaProvider.
func (codeSchema) Schema(huma.Registry) *huma.Schema {
	return &huma.Schema{Ref: "#/components/schemas/Code"}
}
