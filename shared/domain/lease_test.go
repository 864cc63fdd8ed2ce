package domain

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/cloudfn/cloudfn/shared/apperr"
)

// TestLeaseTerms has a row for each form of a period that a user may request, and for each that is refused.
func TestLeaseTerms(t *testing.T) {
	t.Parallel()
	now := time.Date(2096, 1, 31, 10, 0, 0, 0, time.UTC)
	after := func(hours int) time.Time { return now.Add(time.Duration(hours) * time.Hour) }
	period := func(text string) Period {
		p, err := ParsePeriod(text)
		if err != nil {
			t.Fatal(err)
		}
		return p
	}
	none, minutes := Period{}, period("PT5M")
	for name, tc := range map[string]struct {
		terms LeaseTerms
		ahead time.Duration
		want  string // its start, end and warning, or what is wrong with it
	}{
		"now":                   {terms: LeaseTerms{Duration: period("PT1H")}, want: "01-31T10 01-31T11 0s shelve"},
		"a start that is past":  {terms: LeaseTerms{Start: after(-9), End: after(2)}, want: "01-31T10 01-31T12 1h0m0s"},
		"later":                 {terms: LeaseTerms{Start: after(1), End: after(3)}, want: "01-31T11 01-31T13 1h0m0s"},
		"a month from the 31st": {terms: LeaseTerms{Duration: period("P1M")}, want: "01-31T10 02-29T10 1h0m0s shelve"},
		"deleted, and not warned": {
			terms: LeaseTerms{End: after(9), BeforeEnd: &none, OnEnd: OnEndDelete}, want: "01-31T10 01-31T19 0s delete",
		},
		"warned late": {terms: LeaseTerms{End: after(9), BeforeEnd: &minutes}, want: "01-31T10 01-31T19 5m0s shelve"},
		"as far ahead as it may be": {
			terms: LeaseTerms{Start: after(48), End: after(49)}, ahead: 48 * time.Hour, want: "02-02T10 02-02T11 0s",
		},
		"too far ahead": {
			terms: LeaseTerms{Start: after(49), End: after(50)}, ahead: 48 * time.Hour,
			want: "start is too far ahead: a lease may begin P2D from now, at 2096-02-02T10:00:00Z",
		},
		"an end that is past":      {terms: LeaseTerms{End: after(-1)}, want: "end must be after"},
		"an end before its start":  {terms: LeaseTerms{Start: after(2), End: after(1)}, want: "end must be after"},
		"an end beyond all years":  {terms: LeaseTerms{End: now.AddDate(8000, 0, 0)}, want: "end leads beyond"},
		"a duration of many years": {terms: LeaseTerms{Duration: period("P8000Y")}, want: "duration leads beyond"},
	} {
		var l Lease
		err := tc.terms.Apply(&l, LeaseRules{Ahead: tc.ahead}, now)
		const hour = "01-02T15"
		got := fmt.Sprint(l.StartsAt.Format(hour), " ", l.EndsAt.Format(hour), " ", l.BeforeEnd, " ", l.OnEnd)
		if err != nil {
			field := apperr.As(err).Fields[0]
			got = field.Field + " " + field.Detail
		}
		if !strings.HasPrefix(got, tc.want) {
			t.Errorf("%s: got %q, want %q", name, got, tc.want)
		}
	}
}

// TestCheckVolumeEnd: what happens to a volume can be changed until something may have detached it.
func TestCheckVolumeEnd(t *testing.T) {
	t.Parallel()
	at := func(lease LeaseStatus, instance, volume ReservationStatus, isActing bool) Lease {
		l := Lease{Status: lease, Reservations: []Reservation{
			{ID: uuid.New(), Type: InstanceReservation, Status: instance},
			{ID: uuid.New(), Type: VolumeReservation, Status: volume, Volume: &LeasedVolume{}},
		}}
		if isActing {
			l.Reservations[1].ActionID = uuid.New()
		}
		return l
	}
	for name, tc := range map[string]struct {
		lease Lease
		want  apperr.Code
	}{
		"pending":                  {at(LeasePending, ReservationPending, ReservationPending, false), ""},
		"it is being attached":     {at(LeaseStarting, ReservationActive, ReservationPending, true), ""},
		"attached":                 {at(LeaseActive, ReservationActive, ReservationActive, false), ""},
		"its instance ends first":  {at(LeaseEnding, ReservationActive, ReservationActive, false), ""},
		"it is being detached":     {at(LeaseEnding, ReservationEnded, ReservationActive, true), apperr.Conflict},
		"its instance was deleted": {at(LeaseStarting, ReservationEnded, ReservationActive, true), apperr.Conflict},
		"it was detached":          {at(LeaseActive, ReservationEnded, ReservationEnded, false), apperr.Conflict},
	} {
		if got := apperr.CodeOf(tc.lease.CheckVolumeEnd(tc.lease.Reservations[1].ID, "f")); got != tc.want {
			t.Errorf("%s: got %q", name, got)
		}
		if got := apperr.CodeOf(tc.lease.CheckVolumeEnd(tc.lease.Reservations[0].ID, "f")); got != apperr.Invalid {
			t.Errorf("%s: of an instance: got %q", name, got)
		}
	}
}
