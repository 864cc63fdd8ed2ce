package httpx

import (
	"slices"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/domain"
)

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
