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

// Start is a time in a request, or "now".
type Start string

// startNow is the Start that means the time of the request.
const startNow = "now"

// Value is zero for now.
func (s Start) Value() (at time.Time) {
	_ = at.UnmarshalText([]byte(s)) // Check has refused what cannot be read
	return at
}

// Schema implements huma.SchemaProvider.
func (Start) Schema(huma.Registry) *huma.Schema {
	least, most := 1, 100
	return &huma.Schema{
		Type: huma.TypeString, MinLength: &least, MaxLength: &most,
		Description: "When it begins: `now`, or a time in RFC 3339 with its offset.",
	}
}

// check finds what is wrong with the start.
func (s Start) check() (faults []error) {
	var t time.Time
	if s != "" && s != startNow && t.UnmarshalText([]byte(s)) != nil {
		faults = append(faults, apperr.InvalidField("start",
			`must be "now", or a time in RFC 3339 with its offset, such as 2026-01-02T03:04:05Z`))
	}
	return faults
}

// LeaseTerms is when a lease begins and ends, in requests.
type LeaseTerms struct {
	Start     Start        `json:"start,omitempty" example:"now"`
	End       *Time        `json:"end,omitempty" doc:"When it ends. Give it or duration."`
	Duration  Period       `json:"duration,omitempty" example:"P2D"`
	BeforeEnd Period       `json:"before_end,omitempty" example:"PT1H"`
	OnEnd     domain.OnEnd `json:"on_end,omitempty" enum:"shelve,stop,snapshot_delete,delete" example:"shelve"`
}

// Check finds what is wrong with the fields of a new lease.
func (t LeaseTerms) Check() []error {
	faults := t.CheckChange()
	if t.End == nil && t.Duration == "" {
		faults = append(faults, apperr.InvalidField("end", "is missing: give it, or duration"))
	}
	return faults
}

// CheckChange finds what is wrong with the fields of a lease that has a period already.
func (t LeaseTerms) CheckChange() []error {
	faults := slices.Concat(t.Start.check(), t.Duration.check("duration"), t.BeforeEnd.check("before_end"))
	if t.End != nil && t.Duration != "" {
		faults = append(faults, apperr.InvalidField("duration", "does not go with end: give one of them"))
	}
	return faults
}

// Terms are the terms as the domain knows them.
func (t LeaseTerms) Terms() domain.LeaseTerms {
	terms := domain.LeaseTerms{
		Start: t.Start.Value(), Duration: t.Duration.Value(), BeforeEnd: t.BeforeEnd.Value(), OnEnd: t.OnEnd,
	}
	if t.End != nil {
		terms.End = t.End.Time
	}
	return terms
}
