package callbacks

import (
	"github.com/danielgtaylor/huma/v2"

	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/httpx"
)

// describe says what the types' tags cannot.
func describe(api huma.API) {
	httpx.DescribeAs[domain.Secret, secretSchema](api)
	httpx.DescribeAs[domain.CallbackStatus, statusSchema](api)
	httpx.DescribeAs[domain.DeliveryStatus, deliveryStatusSchema](api)
}

type callbackURL string

// Schema implements huma.SchemaProvider.
func (callbackURL) Schema(r huma.Registry) *huma.Schema {
	least, most := 1, 2048
	return httpx.SharedSchema(r, "CallbackURL", huma.Schema{
		Type: huma.TypeString, MinLength: &least, MaxLength: &most,
	})
}

type secretSchema struct{}

// Schema implements huma.SchemaProvider.
func (secretSchema) Schema(r huma.Registry) *huma.Schema {
	return httpx.SharedSchema(r, "CallbackSecret", huma.Schema{
		Type: huma.TypeString, Nullable: true, Pattern: "^whsec_[A-Za-z0-9+/]{32,86}={0,2}$",
		PatternDescription: "whsec_ and 24 to 64 bytes in base64",
	})
}

type statusSchema struct{}

// Schema implements huma.SchemaProvider.
func (statusSchema) Schema(r huma.Registry) *huma.Schema {
	return httpx.SharedSchema(r, "CallbackStatus", huma.Schema{
		Type: huma.TypeString, Enum: []any{"pending", "verified", "suspended", "gone"},
	})
}

type deliveryStatusSchema struct{}

// Schema implements huma.SchemaProvider.
func (deliveryStatusSchema) Schema(r huma.Registry) *huma.Schema {
	return httpx.SharedSchema(r, "DeliveryStatus", huma.Schema{
		Type: huma.TypeString, Enum: []any{"due", "delivered", "dead"},
	})
}

type eventTypes []string

// Schema implements huma.SchemaProvider.
func (eventTypes) Schema(r huma.Registry) *huma.Schema {
	var types []any
	for _, t := range domain.EventTypes() {
		types = append(types, t)
	}
	item := httpx.SharedSchema(r, "EventType", huma.Schema{Type: huma.TypeString, Enum: types})
	return &huma.Schema{Type: huma.TypeArray, Items: item}
}
