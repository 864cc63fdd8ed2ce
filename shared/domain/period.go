package domain

import (
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"time"
)

// Period is an ISO 8601 duration. Years and months are those of the calendar, so its length depends on where it begins.
// The zero value is no period.
type Period struct {
	years, months, weeks, days, hours, minutes int
	seconds                                    time.Duration // with its decimals
}

// maxPeriodCount bounds the number before each designator: a century in days has five digits.
const maxPeriodCount = 99999

// periodForm is what an error says of the form.
const periodForm = "an ISO 8601 duration, such as PT1H30M, P2D or P1M"

// PeriodError says where a text stops being an ISO 8601 duration.
type PeriodError struct {
	Text   string
	At     int // the character that is wrong, from 1
	Detail string
}

// Error implements error.
func (e *PeriodError) Error() string {
	return fmt.Sprintf("must be %s; at character %d: %s", periodForm, e.At, e.Detail)
}

// periodUnit is a designator, and where its count is kept.
type periodUnit struct {
	designator byte
	count      func(*Period) *int // nil for seconds
}

var (
	dateUnits = []periodUnit{
		{'Y', func(p *Period) *int { return &p.years }},
		{'M', func(p *Period) *int { return &p.months }},
		{'W', func(p *Period) *int { return &p.weeks }},
		{'D', func(p *Period) *int { return &p.days }},
	}
	timeUnits = []periodUnit{
		{'H', func(p *Period) *int { return &p.hours }}, {'M', func(p *Period) *int { return &p.minutes }}, {'S', nil},
	}
)

// ParsePeriod reads an ISO 8601 duration: P, then counts with Y, M, W and D, then T and counts with H, M and S, each at
// most once and in this order. Only seconds may have decimals. A period is longer than zero. The error is a
// *PeriodError.
func ParsePeriod(text string) (Period, error) {
	p, at, detail := parsePeriod(text)
	if detail != "" {
		return Period{}, &PeriodError{Text: text, At: at + 1, Detail: detail}
	}
	return p, nil
}

// parsePeriod returns the index of the byte that is wrong, and what is wrong with it.
func parsePeriod(text string) (p Period, at int, detail string) {
	if !strings.HasPrefix(text, "P") {
		return p, 0, "expected P"
	}
	units, at := dateUnits, 1
	isTime, isEmpty := false, true
	for at < len(text) {
		if text[at] == 'T' && !isTime {
			units, isTime, isEmpty = timeUnits, true, true
			at++
			continue
		}
		var taken int
		if taken, detail = p.take(text[at:], &units); detail != "" {
			return p, at + taken, detail
		}
		at, isEmpty = at+taken, false
	}
	switch {
	case isEmpty:
		return p, at, "expected a number"
	case p == Period{}:
		return p, 0, "must be longer than zero"
	}
	return p, 0, ""
}

// take reads one number and its designator from the beginning of rest. It removes the units that may not follow.
func (p *Period) take(rest string, units *[]periodUnit) (taken int, detail string) {
	digits := len(rest) - len(strings.TrimLeft(rest, "0123456789"))
	if digits == 0 {
		return 0, "expected a number"
	}
	count, err := strconv.Atoi(rest[:digits])
	if err != nil || count > maxPeriodCount {
		return 0, fmt.Sprintf("a number is at most %d", maxPeriodCount)
	}
	taken = digits
	decimals := ""
	if taken < len(rest) && (rest[taken] == '.' || rest[taken] == ',') {
		tail := rest[taken+1:]
		decimals = tail[:len(tail)-len(strings.TrimLeft(tail, "0123456789"))]
		if decimals == "" || len(decimals) > 9 {
			return taken, "expected 1 to 9 decimals"
		}
		taken += 1 + len(decimals)
	}
	if taken == len(rest) {
		return taken, "expected one of " + designators(*units)
	}
	for i, unit := range *units {
		switch {
		case rest[taken] != unit.designator:
			continue
		case decimals != "" && unit.count != nil:
			return digits, "only seconds may have decimals"
		case unit.count != nil:
			*unit.count(p) = count
		default:
			nanos, _ := strconv.Atoi((decimals + "000000000")[:9])
			p.seconds = time.Duration(count)*time.Second + time.Duration(nanos)
		}
		*units = (*units)[i+1:]
		return taken + 1, ""
	}
	return taken, "expected one of " + designators(*units)
}

// designators lists what may follow a number.
func designators(units []periodUnit) string {
	if len(units) == 0 {
		return "nothing more"
	}
	names := make([]string, len(units))
	for i, unit := range units {
		names[i] = string(unit.designator)
	}
	return strings.Join(names, ", ")
}

// IsZero reports whether it is no period.
func (p Period) IsZero() bool { return p == Period{} }

// AddTo returns the end of the period that begins at a moment, in UTC. Years and months come first: a day that the
// month does not have becomes its last one. Then come weeks and days of 24 hours, and the rest.
func (p Period) AddTo(start time.Time) time.Time { return p.from(start.UTC(), 1) }

// Before returns the moment from which the period leads to end, in UTC, counted backwards in the same way.
func (p Period) Before(end time.Time) time.Time { return p.from(end.UTC(), -1) }

func (p Period) from(at time.Time, sign int) time.Time {
	months := sign * (p.years*12 + p.months)
	first := time.Date(at.Year(), at.Month(), 1, 0, 0, 0, 0, time.UTC).AddDate(0, months, 0)
	day := min(at.Day(), first.AddDate(0, 1, -1).Day())
	moved := time.Date(first.Year(), first.Month(), day, at.Hour(), at.Minute(), at.Second(), at.Nanosecond(), time.UTC)
	moved = moved.AddDate(0, 0, sign*(p.weeks*7+p.days))
	rest := time.Duration(p.hours)*time.Hour + time.Duration(p.minutes)*time.Minute + p.seconds
	return moved.Add(time.Duration(sign) * rest)
}

// String writes the period in ISO 8601, as ParsePeriod reads it; "" for the zero value.
func (p Period) String() string {
	if p.IsZero() {
		return ""
	}
	var b strings.Builder
	b.WriteByte('P')
	p.write(&b, dateUnits)
	if p.hours != 0 || p.minutes != 0 || p.seconds != 0 {
		b.WriteByte('T')
		p.write(&b, timeUnits)
	}
	return b.String()
}

func (p Period) write(b *strings.Builder, units []periodUnit) {
	for _, unit := range units {
		switch {
		case unit.count != nil && *unit.count(&p) != 0:
			fmt.Fprintf(b, "%d%c", *unit.count(&p), unit.designator)
		case unit.count == nil && p.seconds != 0:
			text := strconv.FormatInt(int64(p.seconds/time.Second), 10)
			if nanos := p.seconds % time.Second; nanos != 0 {
				text += "." + strings.TrimRight(fmt.Sprintf("%09d", nanos), "0")
			}
			b.WriteString(text + "S")
		}
	}
}

// PeriodOf is a duration as a period of days, hours, minutes and seconds.
func PeriodOf(d time.Duration) Period {
	day := 24 * time.Hour
	return Period{
		days: int(d / day), hours: int(d % day / time.Hour), minutes: int(d % time.Hour / time.Minute),
		seconds: d % time.Minute,
	}
}

// RoughPeriod is a duration for people: in hours from a day on, in minutes from an hour on, else in seconds. It is
// rounded up or down.
func RoughPeriod(d time.Duration, isUp bool) Period {
	unit := time.Second
	switch {
	case d >= 24*time.Hour:
		unit = time.Hour
	case d >= time.Hour:
		unit = time.Minute
	}
	if isUp {
		d += unit - 1
	}
	return PeriodOf(d.Truncate(unit))
}

// MarshalJSON implements json.Marshaler.
func (p Period) MarshalJSON() ([]byte, error) { return json.Marshal(p.String()) }

// UnmarshalJSON implements json.Unmarshaler.
func (p *Period) UnmarshalJSON(data []byte) error {
	var text string
	if err := json.Unmarshal(data, &text); err != nil || text == "" {
		*p = Period{}
		return err
	}
	parsed, err := ParsePeriod(text)
	*p = parsed
	return err
}

// UnmarshalText implements encoding.TextUnmarshaler, for configuration.
func (p *Period) UnmarshalText(text []byte) error {
	parsed, err := ParsePeriod(string(text))
	*p = parsed
	return err
}
