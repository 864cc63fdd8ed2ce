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
