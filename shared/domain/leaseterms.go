package domain

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/cloudfn/cloudfn/shared/apperr"
)

// LeaseTerms is the period of a lease as a user requests it, and what happens at its end.
type LeaseTerms struct {
	Start     time.Time // zero, or in the past = now
	End       time.Time // zero = Duration decides
	Duration  Period
	BeforeEnd *Period // zero = no warning; nil = warnBefore, for leases that are longer
	OnEnd     OnEnd   // "" = shelve
}

// warnBefore is how long before its end a lease warns by default.
const warnBefore = time.Hour

// lastYear is the last one that RFC 3339 can write.
const lastYear = 9999

// Apply sets the lease's period. now is the database's clock. The error names the field.
func (t LeaseTerms) Apply(lease *Lease, rules LeaseRules, now time.Time) error {
	if !t.Start.Equal(lease.StartsAt) || t.Start.IsZero() { // its start is new
		lease.StartsAt = now
		if t.Start.After(now) {
			lease.StartsAt = t.Start
		}
		if latest := now.Add(rules.Ahead).UTC(); rules.Ahead > 0 && lease.StartsAt.After(latest) {
			return apperr.InvalidField("start", fmt.Sprintf("is too far ahead: a lease may begin %s from now, at %s at "+
				"the latest", PeriodOf(rules.Ahead), latest.Format(time.RFC3339)), latest.Format(time.RFC3339))
		}
	}
	lease.EndsAt, lease.Length, lease.OnEnd = t.End, t.Duration, OnEndShelve
	if t.OnEnd != "" {
		lease.OnEnd = t.OnEnd
	}
	field := "end"
	if !t.Duration.IsZero() {
		field, lease.EndsAt = "duration", t.Duration.AddTo(lease.StartsAt)
	}
	lease.StartsAt = lease.StartsAt.UTC().Truncate(time.Microsecond)
	lease.EndsAt = lease.EndsAt.UTC().Truncate(time.Microsecond)
	switch {
	case lease.EndsAt.Year() > lastYear:
		return apperr.InvalidField(field, fmt.Sprintf("leads beyond the year %d", lastYear))
	case !lease.EndsAt.After(lease.StartsAt):
		return apperr.InvalidField(field, "must be after the start, "+lease.StartsAt.Format(time.RFC3339Nano))
	}
	if t.BeforeEnd != nil {
		lease.WarnBefore(*t.BeforeEnd)
	} else if lease.EndsAt.Sub(lease.StartsAt) > warnBefore {
		lease.BeforeEnd = warnBefore
	}
	return nil
}

// WarnBefore sets how long before its end the lease warns: months count backwards from the end.
func (l *Lease) WarnBefore(p Period) { l.BeforeEnd = l.EndsAt.Sub(p.Before(l.EndsAt)) }

// EndFrom is the end of the lease if it began at another time: months and years are those of the calendar.
func (l Lease) EndFrom(start time.Time) time.Time {
	if l.Length.IsZero() {
		return start.Add(l.EndsAt.Sub(l.StartsAt))
	}
	return l.Length.AddTo(start)
}

// Instances reports whether the lease reserves any instance.
func (l Lease) Instances() bool { return l.reserves(InstanceReservation) }

// Hosts reports whether the lease reserves any host.
func (l Lease) Hosts() bool { return l.reserves(HostReservation) }

func (l Lease) reserves(kind ReservationType) bool {
	for _, r := range l.Reservations {
		if r.Type == kind {
			return true
		}
	}
	return false
}

// Changed lists the fields, by their names in the API, in which a user has changed the lease.
func (l Lease) Changed(after Lease) []string {
	fields := []string{}
	for name, isChanged := range map[string]bool{
		"name": l.Name != after.Name, "start": !l.StartsAt.Equal(after.StartsAt), "end": !l.EndsAt.Equal(after.EndsAt),
		"before_end": l.BeforeEnd != after.BeforeEnd, "on_end": l.OnEnd != after.OnEnd,
		"enforce": l.Enforce != after.Enforce, "heal": after.Heal != "" && !l.healsBy(after.Heal),
	} {
		if isChanged {
			fields = append(fields, name)
		}
	}
	slices.Sort(fields)
	return fields
}

// healsBy reports whether all its hosts are healed in that way.
func (l Lease) healsBy(heal Heal) bool {
	return !slices.ContainsFunc(l.Reservations, func(r Reservation) bool {
		return r.Want != nil && cmp.Or(r.Want.Heal, HealAuto) != heal
	})
}

// CheckOnEnd rejects what cannot happen to servers on reserved hosts.
func (l Lease) CheckOnEnd() error {
	if l.OnEnd != OnEndStop && l.OnEnd != OnEndNone || !l.Hosts() {
		return nil
	}
	return apperr.InvalidField("on_end", "cannot be "+string(l.OnEnd)+" with a reservation of hosts: the servers "+
		"would stay on their host, which others get next", texts(OnEndShelve, OnEndSnapshotDelete, OnEndDelete)...)
}
