package callbacks

import (
	"github.com/danielgtaylor/huma/v2"

	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/httpx"
)

// describe says what the types' tags cannot.
func describe(api huma.API) {
	httpx.DescribeAs[domain.Secret, httpx.CallbackSecret](api)
	httpx.DescribeAs[domain.CallbackStatus, statusSchema](api)
	httpx.DescribeAs[domain.DeliveryStatus, deliveryStatusSchema](api)
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
