package httpx

import (
	"encoding/json"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/danielgtaylor/huma/v2"
	"github.com/danielgtaylor/huma/v2/validation"
	"github.com/google/uuid"

	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/domain"
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

// Each is what an answer shows of the entries of a list; never nil.
func Each[T, V any](list []T, show func(T) V) []V {
	out := make([]V, len(list))
	for n, entry := range list {
		out[n] = show(entry)
	}
	return out
}

// Patch is a field of a JSON merge patch (RFC 7396) that may be absent, null, or a T.
type Patch[T any] struct{ text string }

// UnmarshalJSON implements json.Unmarshaler.
func (p *Patch[T]) UnmarshalJSON(text []byte) error {
	p.text = string(text)
	return nil
}

// Schema implements huma.SchemaProvider.
func (Patch[T]) Schema(r huma.Registry) *huma.Schema { return r.Schema(reflect.TypeFor[T](), true, "") }

// IsZero reports whether the field is absent.
func (p Patch[T]) IsZero() bool { return p.text == "" }

// IsNull reports whether the field is null.
func (p Patch[T]) IsNull() bool { return p.text == "null" }

// Apply returns the value with the patch; zero for null. It shares nothing with the value before, which has the same
// form in JSON.
func (p Patch[T]) Apply(before any) (after T) {
	if p.IsNull() {
		return after
	}
	text, _ := json.Marshal(before) //nolint:errchkjson // texts and numbers
	_ = json.Unmarshal(text, &after)
	if !p.IsZero() {
		_ = json.Unmarshal([]byte(p.text), &after) // its schema has been checked
	}
	return after
}

// CheckNulls finds the fields of a JSON merge patch that are null and may not be: huma takes null for absent.
func CheckNulls(ctx huma.Context, nullable ...string) (faults []error) {
	var fields map[string]json.RawMessage
	_ = json.Unmarshal(of(ctx.Context()).body, &fields)
	for name, value := range fields {
		if string(value) == "null" && !slices.Contains(nullable, name) {
			faults = append(faults, apperr.InvalidField(name, "must not be null"))
		}
	}
	return faults
}

// Value is an answer that is only a body.
type Value[T any] struct{ Body T }

// Period is an ISO 8601 duration in a request.
type Period string

// Value is zero for an absent period.
func (p Period) Value() domain.Period {
	value, _ := domain.ParsePeriod(string(p)) // Check has refused what cannot be read
	return value
}

// Schema implements huma.SchemaProvider.
func (Period) Schema(huma.Registry) *huma.Schema {
	least, most := 1, 100
	return &huma.Schema{
		Type: huma.TypeString, MinLength: &least, MaxLength: &most,
		Description: "An ISO 8601 duration, such as PT1H30M, P2D or P1M: a calendar month, clamped to its end.",
	}
}

// check finds what is wrong with the period of a field.
func (p Period) check(field string) (faults []error) {
	if _, err := domain.ParsePeriod(string(p)); p != "" && err != nil {
		faults = append(faults, apperr.InvalidField(field, err.Error()))
	}
	return faults
}

// TimeOrNow is a time in a request, or "now".
type TimeOrNow string

// now is the TimeOrNow that means the time of the request.
const now = "now"

// Value is zero for now.
func (s TimeOrNow) Value() (at time.Time) {
	_ = at.UnmarshalText([]byte(s)) // Check has refused what cannot be read
	return at
}

// Schema implements huma.SchemaProvider.
func (TimeOrNow) Schema(huma.Registry) *huma.Schema {
	least, most := 1, 100
	return &huma.Schema{
		Type: huma.TypeString, MinLength: &least, MaxLength: &most,
		Description: "`now`, or a time in RFC 3339 with its offset. A start in the past is now.",
	}
}

// check finds what is wrong with the time of a field.
func (s TimeOrNow) check(field string) (faults []error) {
	var t time.Time
	if s != "" && s != now && t.UnmarshalText([]byte(s)) != nil {
		faults = append(faults, apperr.InvalidField(field,
			`must be "now", or a time in RFC 3339 with its offset, such as 2026-01-02T03:04:05Z`))
	}
	return faults
}

// LeaseTerms is when a lease begins and ends, in requests.
type LeaseTerms struct {
	Start     TimeOrNow    `json:"start,omitempty" example:"now"`
	End       *Time        `json:"end,omitempty" doc:"When it ends. Give it or duration."`
	Duration  Period       `json:"duration,omitempty" example:"P2D"`
	BeforeEnd Period       `json:"before_end,omitempty" example:"PT1H"`
	OnEnd     domain.OnEnd `json:"on_end,omitempty" enum:"shelve,stop,snapshot_delete,delete" example:"shelve"`
}

// noWarning is the before_end of a lease that does not warn.
const noWarning = "PT0S"

// Check finds what is wrong with the fields of a new lease.
func (t LeaseTerms) Check() []error {
	end := TimeOrNow("")
	if t.End != nil {
		end = now // any: it is a time
	}
	faults := CheckTerms(t.Start, end, t.Duration, t.BeforeEnd)
	if t.End == nil && t.Duration == "" {
		faults = append(faults, apperr.InvalidField("end", "is missing: give it, or duration"))
	}
	return faults
}

// CheckTerms finds what is wrong with the times of a lease.
func CheckTerms(start, end TimeOrNow, duration, beforeEnd Period) []error {
	faults := slices.Concat(start.check("start"), end.check("end"), duration.check("duration"))
	if beforeEnd != noWarning {
		faults = append(faults, beforeEnd.check("before_end")...)
	}
	if end != "" && duration != "" {
		faults = append(faults, apperr.InvalidField("duration", "cannot be combined with end: give one of them"))
	}
	return faults
}

// Canonical is equal for two requests that mean the same.
func (t LeaseTerms) Canonical() LeaseTerms {
	at := t.Start.Value()
	if t.Start = ""; !at.IsZero() {
		t.Start = TimeOrNow(at.UTC().Format(time.RFC3339Nano))
	}
	if t.End != nil {
		t.End = &Time{Time: t.End.UTC()}
	}
	if t.OnEnd == "" {
		t.OnEnd = domain.OnEndShelve
	}
	return t
}

// Terms are the terms as the domain knows them.
func (t LeaseTerms) Terms() domain.LeaseTerms {
	terms := domain.LeaseTerms{Start: t.Start.Value(), Duration: t.Duration.Value(), OnEnd: t.OnEnd}
	if t.BeforeEnd != "" {
		before := t.BeforeEnd.Value()
		terms.BeforeEnd = &before
	}
	if t.End != nil {
		terms.End = t.End.Time
	}
	return terms
}

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
