package postgres

import (
	"context"
	"errors"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/cloudfn/cloudfn/shared/domain"
)

// movesTried bounds the search for a time at which several host reservations of a lease fit together.
const movesTried = 50

// errTried rolls back the search for a free time.
var errTried = errors.New("only tried")

// bookHosts gives all host reservations of a lease their hosts, or returns a domain.FreeError with the time at which
// the whole lease fits.
func bookHosts(ctx context.Context, tx pgx.Tx, lease domain.Lease, rules domain.LeaseRules) error {
	err := allocateAll(ctx, tx, lease, rules)
	refused, ok := errors.AsType[*noHosts](err)
	if !ok {
		return err
	}
	if hosts := hostReservations(lease); hosts > 1 && !refused.at.IsZero() {
		if refused.at, err = fitsTogether(ctx, tx, lease, rules, refused.at); err != nil {
			return err
		}
		refused.end = lease.EndFrom(refused.at)
	}
	return refused.refusal(*lease.Reservations[refused.n].Want)
}

func hostReservations(lease domain.Lease) (n int) {
	for _, r := range lease.Reservations {
		if r.Type == domain.HostReservation {
			n++
		}
	}
	return n
}

func allocateAll(ctx context.Context, tx pgx.Tx, lease domain.Lease, rules domain.LeaseRules) error {
	for n, r := range lease.Reservations {
		if r.Type != domain.HostReservation {
			continue
		}
		if err := allocateHosts(ctx, tx, booking{lease: lease, n: n, cleaning: rules.Cleaning}); err != nil {
			return err
		}
	}
	return nil
}

// fitsTogether is a time from at on when all host reservations of a lease get hosts; zero = none was found.
func fitsTogether(
	ctx context.Context, tx pgx.Tx, lease domain.Lease, rules domain.LeaseRules, at time.Time,
) (time.Time, error) {
	for range movesTried {
		lease.StartsAt, lease.EndsAt = at, lease.EndFrom(at)
		err := pgx.BeginFunc(ctx, tx, func(tx pgx.Tx) error {
			if _, err := exec(ctx, tx, cancelAllocationsSQL, lease.ProjectID, lease.ID); err != nil {
				return err
			}
			if err := allocateAll(ctx, tx, lease, rules); err != nil {
				return err
			}
			return errTried
		})
		if errors.Is(err, errTried) {
			return at, nil
		}
		refused, ok := errors.AsType[*noHosts](err)
		if !ok {
			return at, err
		}
		if !refused.at.After(at) {
			break
		}
		at = refused.at
	}
	return time.Time{}, nil
}
