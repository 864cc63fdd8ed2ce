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
	least := 1
	change := httpx.SchemaOf[CallbackChange](api)
	change.Description, change.MinProperties = "What to change. Absent and null stay.", &least
	httpx.SchemaOf[CallbackWithSecret](api).Description = "A callback as the request that gave it its secret shows it, this once."
	httpx.SchemaOf[Delivery](api).Description = "One event on its way to one callback. Of the receiver's answers only the last status is kept."
}

type callbackURL string

// Schema implements huma.SchemaProvider.
func (callbackURL) Schema(r huma.Registry) *huma.Schema {
	least, most := 1, 2048
	return httpx.SharedSchema(r, "CallbackURL", huma.Schema{
		Type: huma.TypeString, MinLength: &least, MaxLength: &most,
		Description: `An https URL without a user and a fragment. Its host must not be an address that is not public, and is not connected
to when its name stands for one. Operators may allow ranges besides, also for http.
`,
	})
}

type secretSchema struct{}

// Schema implements huma.SchemaProvider.
func (secretSchema) Schema(r huma.Registry) *huma.Schema {
	return httpx.SharedSchema(r, "CallbackSecret", huma.Schema{
		Type: huma.TypeString, Nullable: true, Pattern: "^whsec_[A-Za-z0-9+/]{32,86}={0,2}$",
		PatternDescription: "whsec_ and 24 to 64 bytes in base64",
		Description:        "`whsec_` and 24 to 64 bytes in base64. Without one, one is made.",
	})
}

type statusSchema struct{}

// Schema implements huma.SchemaProvider.
func (statusSchema) Schema(r huma.Registry) *huma.Schema {
	return httpx.SharedSchema(r, "CallbackStatus", huma.Schema{
		Type: huma.TypeString, Enum: []any{"pending", "verified", "suspended", "gone"},
		Description: "`pending`: its receiver has not consented yet. `verified`: it gets events. `suspended`: by its owner, or because its\n" +
			"receiver did not consent, or took nothing, for 72 hours; events wait. `gone`: its receiver answered 410; it gets none.\n",
	})
}

type deliveryStatusSchema struct{}

// Schema implements huma.SchemaProvider.
func (deliveryStatusSchema) Schema(r huma.Registry) *huma.Schema {
	return httpx.SharedSchema(r, "DeliveryStatus", huma.Schema{
		Type: huma.TypeString, Enum: []any{"due", "delivered", "dead"},
		Description: "`due`: it is on its way, or waits. `delivered`: the receiver has taken it. " +
			"`dead`: its attempts are used up, and it can be delivered again by hand.",
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
