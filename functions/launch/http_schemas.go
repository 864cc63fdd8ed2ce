package launch

import (
	"reflect"

	"github.com/danielgtaylor/huma/v2"
	"github.com/google/uuid"

	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/httpx"
	"github.com/cloudfn/cloudfn/shared/lookup"
)

// describe says what the types' tags cannot.
func describe(api huma.API) {
	httpx.DescribeAs[domain.Secret, httpx.CallbackSecret](api)
	httpx.DescribeAs[domain.OrderStatus, orderStatus](api)
	api.OpenAPI().Components.Schemas.Schema(reflect.TypeFor[launchReport](), true, "")
}

// givenID is a UUID that the caller has chosen.
type givenID string

// Schema implements huma.SchemaProvider.
func (givenID) Schema(r huma.Registry) *huma.Schema {
	return httpx.SharedSchema(r, "GivenID", huma.Schema{
		Type: huma.TypeString, Format: "uuid", PatternDescription: "a UUID",
		Pattern: "^[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{12}$",
	})
}

// Resolve implements huma.ResolverWithPath.
func (id givenID) Resolve(_ huma.Context, at *huma.PathBuffer) []error {
	if parsed, err := uuid.Parse(string(id)); err == nil {
		return httpx.NotZero(parsed, at.String())
	}
	return nil
}

// orNew parses the id. One that is absent, or that its schema has rejected, is replaced by a new one.
func (id givenID) orNew() uuid.UUID {
	if parsed, err := uuid.Parse(string(id)); err == nil {
		return parsed
	}
	return uuid.Must(uuid.NewV7())
}

// reference is an id or a name.
type reference string

// Schema implements huma.SchemaProvider.
func (reference) Schema(huma.Registry) *huma.Schema { return textSchema(domain.MaxNameLength) }

// at is the reference as the service looks it up.
func (r reference) at(field string) lookup.Ref { return lookup.Ref{Field: field, Value: string(r)} }

// orderName is the name of one server, or the first part of the names of several.
type orderName string

// Schema implements huma.SchemaProvider.
func (orderName) Schema(huma.Registry) *huma.Schema { return textSchema(domain.MaxOrderName) }

func textSchema(maxLength int) *huma.Schema {
	minLength := 1
	return &huma.Schema{
		Type: huma.TypeString, MinLength: &minLength, MaxLength: &maxLength,
		Pattern: `^[^\x00-\x1f\x7f-\x9f]*$`, PatternDescription: "text without control characters",
	}
}

// metadata are the server's; Nova has rules for the keys, see checkServer.
type metadata map[string]string

// Schema implements huma.SchemaProvider.
func (metadata) Schema(huma.Registry) *huma.Schema {
	maxLength, maxProperties := domain.MaxNameLength, domain.MaxMetadata
	value := &huma.Schema{Type: huma.TypeString, MaxLength: &maxLength}
	value.PrecomputeMessages()
	return &huma.Schema{Type: huma.TypeObject, MaxProperties: &maxProperties, AdditionalProperties: value}
}

type orderStatus struct{}

// Schema implements huma.SchemaProvider.
func (orderStatus) Schema(r huma.Registry) *huma.Schema {
	var values []any
	for _, status := range domain.OrderStatuses() {
		values = append(values, status)
	}
	return httpx.SharedSchema(r, "OrderStatus", huma.Schema{Type: huma.TypeString, Enum: values})
}
