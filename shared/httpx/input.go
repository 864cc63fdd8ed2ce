package httpx

import (
	"net/url"
	"strings"
	"time"

	"github.com/danielgtaylor/huma/v2"
	"github.com/danielgtaylor/huma/v2/validation"
	"github.com/google/uuid"

	"github.com/cloudfn/cloudfn/shared/apperr"
)

// ID is a UUID in a request: in the one form that the API writes, in capitals too, and not zero.
type ID struct{ uuid.UUID }

// UnmarshalText implements encoding.TextUnmarshaler.
func (id *ID) UnmarshalText(text []byte) (err error) {
	if id.UUID, err = uuid.ParseBytes(text); err != nil || len(text) != 36 {
		return apperr.New(apperr.Invalid, "must be a UUID")
	}
	return nil
}

// Schema implements huma.SchemaProvider.
func (ID) Schema(huma.Registry) *huma.Schema {
	return &huma.Schema{
		Type: huma.TypeString, Format: "uuid", Pattern: "^[0-9a-fA-F-]{36}$", PatternDescription: "a UUID",
	}
}

// Resolve implements huma.ResolverWithPath. The zero UUID is an absent parameter's value, and no id otherwise.
func (id *ID) Resolve(ctx huma.Context, at *huma.PathBuffer) []error {
	in := at.String()
	name, isQuery := strings.CutPrefix(in, "query.")
	if strings.HasPrefix(in, "body.") || isQuery && ctx.Query(name) != "" {
		return NotZero(id.UUID, in)
	}
	return nil
}

// NotZero is the fault of a request that gives the zero UUID at a location, such as body.id: zero stands for an absent
// id.
func NotZero(id uuid.UUID, in string) []error {
	if id != uuid.Nil {
		return nil
	}
	_, field, _ := strings.Cut(in, ".")
	return []error{apperr.InvalidField(field, "must be a UUID with other digits than 0")}
}

// OrNil is the id, or the zero UUID of an absent one.
func (id *ID) OrNil() uuid.UUID {
	if id == nil {
		return uuid.Nil
	}
	return id.UUID
}

// Time is a time in a request, of any time zone.
type Time struct{ time.Time }

// UnmarshalText implements encoding.TextUnmarshaler.
func (t *Time) UnmarshalText(text []byte) error {
	if t.Time.UnmarshalText(text) != nil {
		return apperr.New(apperr.Invalid, "%s", validation.MsgExpectedRFC3339DateTime)
	}
	return nil
}

// Schema implements huma.SchemaProvider.
func (Time) Schema(huma.Registry) *huma.Schema {
	return &huma.Schema{Type: huma.TypeString, Format: "date-time"}
}

// Page is the part of a list's request that bounds it. Such requests embed it, and have a marker of their own.
type Page struct {
	Limit int `query:"limit" minimum:"1" maximum:"1000" default:"100" doc:"The number of entries of a page, at most."`

	url url.URL
}

// Resolve implements huma.Resolver.
func (p *Page) Resolve(ctx huma.Context) []error {
	p.url = ctx.URL()
	return nil
}

// Next is the URL of the next page: the same request with another marker.
func (p *Page) Next(marker string) *string { return next(p.url, marker) }

// Value is an answer that is only a body.
type Value[T any] struct{ Body T }
