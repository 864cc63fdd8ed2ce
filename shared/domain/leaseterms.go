package domain

import (
	"fmt"
	"time"

	"github.com/cloudfn/cloudfn/shared/apperr"
)

// LeaseTerms is the period of a lease as a user requests it, and what happens at its end.
type LeaseTerms struct {
	Start     time.Time // zero = now
	End       time.Time // zero = Duration decides
	Duration  Period
	BeforeEnd Period // zero = no warning
	OnEnd     OnEnd  // "" = shelve
}

// lastYear is the last one that RFC 3339 can write.
const lastYear = 9999

// Apply sets the lease's period. now is the database's clock. The error names the field.
func (t LeaseTerms) Apply(lease *Lease, now time.Time) error {
	lease.StartsAt, lease.EndsAt, lease.OnEnd = now, t.End, OnEndShelve
	if !t.Start.IsZero() {
		lease.StartsAt = t.Start
	}
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
	lease.WarnBefore(t.BeforeEnd)
	return nil
}

// WarnBefore sets how long before its end the lease warns: months count backwards from the end.
func (l *Lease) WarnBefore(p Period) { l.BeforeEnd = l.EndsAt.Sub(p.Before(l.EndsAt)) }

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

// CheckOnEnd rejects what cannot happen to servers on reserved hosts.
func (l Lease) CheckOnEnd() error {
	if l.OnEnd != OnEndStop || !l.Hosts() {
		return nil
	}
	return apperr.InvalidField("on_end", "cannot be stop with a reservation of hosts: stopped servers stay on their "+
		"host, which others get next", texts(OnEndShelve, OnEndSnapshotDelete, OnEndDelete)...)
}
