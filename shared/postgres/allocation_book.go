package postgres

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/domain"
)

// bookAttempts bounds how often a booking plans again because others took a host that it had planned.
const bookAttempts = 100

// booking is what reservations of hosts need, from a time on.
type booking struct {
	projectID string
	from      time.Time
	end       func(start time.Time) time.Time // with the cleaning; a later start has no earlier end
	needs     []need
}

// need is what a reservation of hosts needs.
type need struct {
	reservation uuid.UUID
	n           int // of the lease's reservations
	want        domain.HostWant
}

// bookingOf is what the host reservations of a lease need.
func bookingOf(lease domain.Lease, rules domain.LeaseRules) booking {
	b := booking{
		projectID: lease.ProjectID, from: lease.StartsAt,
		end: func(start time.Time) time.Time { return lease.EndFrom(start).Add(rules.Cleaning) },
	}
	for n, r := range lease.Reservations {
		if r.Type == domain.HostReservation {
			b.needs = append(b.needs, need{reservation: r.ID, n: n, want: *r.Want})
		}
	}
	return b
}

// bookHosts gives all host reservations of a lease their hosts, or returns a domain.FreeError with the time at which
// the whole lease fits.
func bookHosts(ctx context.Context, tx pgx.Tx, lease domain.Lease, rules domain.LeaseRules) error {
	b := bookingOf(lease, rules)
	for range bookAttempts {
		planned, isTaken, err := b.book(ctx, tx)
		if err != nil || isTaken {
			return err
		}
		if err := planned.refusal(b, lease); err != nil {
			return err
		}
	}
	return apperr.New(apperr.Conflict, "others book the same hosts at the same time: repeat the request")
}

// planHosts gives the reservations of a lease the hosts that bookHosts would give them, and stores nothing.
func planHosts(
	ctx context.Context, tx pgx.Tx, lease domain.Lease, rules domain.LeaseRules,
) (planned domain.Lease, err error) {
	b := bookingOf(lease, rules)
	if len(b.needs) == 0 {
		return lease, nil
	}
	p, err := b.plan(ctx, tx)
	if err == nil {
		err = p.refusal(b, lease)
	}
	if err != nil {
		return lease, err
	}
	lease.Reservations = slices.Clone(lease.Reservations)
	for k, names := range p.hosts {
		r := &lease.Reservations[b.needs[k].n]
		for _, name := range names {
			r.Allocations = append(r.Allocations, domain.Allocation{
				ProjectID: lease.ProjectID, ReservationID: r.ID, Node: name, From: b.from, Until: b.end(b.from),
			})
		}
	}
	return lease, nil
}

// book takes hosts for all of its reservations, or returns the plan that failed because they are not free, or because
// others were faster.
func (b booking) book(ctx context.Context, tx pgx.Tx) (failed plan, isTaken bool, err error) {
	switch len(b.needs) {
	case 0:
		return failed, true, nil
	case 1: // without reading when all the hosts are free
		first := b.needs[0]
		match, err := matchArgs(ctx, tx, first.want, b.projectID, first.reservation)
		if err != nil {
			return failed, false, err
		}
		taken, err := takeHosts(ctx, tx, first.want.Max, allocateSQL,
			append(match, b.from, b.end(b.from), first.want.Max)...)
		if err != nil || taken != nil {
			return plan{hosts: [][]string{taken}}, taken != nil, err
		}
	}
	p, err := b.plan(ctx, tx)
	if err != nil || !p.fits(b) {
		return p, false, err
	}
	var names []string
	var reservations []uuid.UUID
	for k, hosts := range p.hosts {
		names = append(names, hosts...)
		reservations = append(reservations, slices.Repeat([]uuid.UUID{b.needs[k].reservation}, len(hosts))...)
	}
	taken, err := takeHosts(ctx, tx, len(names), takePlannedSQL, b.projectID, names, reservations, b.from, b.end(b.from))
	return p, taken != nil, err
}

// refusal is the error for the user when the lease does not fit at its start; nil = it fits.
func (p plan) refusal(b booking, lease domain.Lease) error {
	if p.fits(b) {
		return nil
	}
	missing := b.needs[p.missing]
	field, matching := fmt.Sprintf("reservations[%d].min", missing.n), p.matching[p.missing]
	var detail string
	code := apperr.Unprocessable
	switch {
	case matching < missing.want.Min:
		detail = fmt.Sprintf("is %d, but the number of reservable hosts that match is %d", missing.want.Min, matching)
	case p.never:
		detail = fmt.Sprintf("is %d, but the reservable hosts that match (%d) are too few for it and the other "+
			"reservations of the lease", missing.want.Min, matching)
	default:
		code = apperr.Conflict
		detail = fmt.Sprintf("is %d, but too few of the hosts that match (%d) are free, up and not cordoned for the "+
			"whole period", missing.want.Min, matching)
	}
	refusal := apperr.InvalidField(field, detail)
	refusal.Code = code
	free := &domain.FreeError{Refusal: refusal, FreeAt: p.at}
	if !p.at.IsZero() {
		free.FreeEnd = lease.EndFrom(p.at)
	}
	return free
}
