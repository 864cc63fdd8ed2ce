package httpx

import (
	"github.com/danielgtaylor/huma/v2"

	"github.com/cloudfn/cloudfn/shared/domain"
)

// CallbackURL is the URL of a callback in a request.
type CallbackURL string

// Schema implements huma.SchemaProvider.
func (CallbackURL) Schema(r huma.Registry) *huma.Schema {
	least, most := 1, 2048
	return SharedSchema(r, "CallbackURL", huma.Schema{Type: huma.TypeString, MinLength: &least, MaxLength: &most})
}

// CallbackSecret describes the domain.Secret that signs a callback's events.
type CallbackSecret struct{}

// Schema implements huma.SchemaProvider.
func (CallbackSecret) Schema(r huma.Registry) *huma.Schema {
	return SharedSchema(r, "CallbackSecret", huma.Schema{
		Type: huma.TypeString, Nullable: true, Pattern: "^whsec_[A-Za-z0-9+/]{32,86}={0,2}$",
		PatternDescription: "whsec_ and 24 to 64 bytes in base64",
	})
}

// EventTypes are the events that a callback gets.
type EventTypes []string

// Schema implements huma.SchemaProvider.
func (EventTypes) Schema(r huma.Registry) *huma.Schema {
	var types []any
	for _, t := range domain.EventTypes() {
		types = append(types, t)
	}
	item := SharedSchema(r, "EventType", huma.Schema{Type: huma.TypeString, Enum: types})
	return &huma.Schema{Type: huma.TypeArray, Items: item}
}
