package runconnections

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/cloudfn/cloudfn/shared/actions"
	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/delegation"
	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/lookup"
	"github.com/cloudfn/cloudfn/shared/orders"
)

// session is the part of OpenStack that this function needs, on behalf of the delegating user.
type session interface {
	orders.Cloud
	actions.Cloud
	actions.VolumeCloud
	lookup.Images
	Networks(context.Context) ([]domain.Network, error)
	SecurityGroups(context.Context) ([]domain.SecurityGroup, error)
	NetworkNames(context.Context) ([]domain.Network, error)
	ExternalNetworks(context.Context) ([]domain.Network, error)
	Flavors(context.Context) ([]domain.Flavor, error)
	KeyPairs(context.Context) ([]domain.KeyPair, error)
	ImportKeyPair(ctx context.Context, name, publicKey string) (domain.KeyPair, error)
	DeleteKeyPair(ctx context.Context, name string) error
	ChangedServers(ctx context.Context, projectID string, since time.Time, marker string) (page []domain.Server,
		next string, err error)
	AllServers(ctx context.Context, projectID, marker string) (page []domain.Server, next string, err error)
	DeleteTrust(ctx context.Context, id string) error
	ActsAs() domain.ActsAs
}

// account is a session of the service account, to which trusts are made.
type account = delegation.Account[session]

// sessionTTL is how long a session is kept. With the next one the flavors are read again.
const sessionTTL = time.Hour

// serve works on the orders and actions of one connection. Orders take longer than actions, so they have a pool of
// their own.
func (s *service) serve(ctx context.Context, b *batch, c domain.Connection) {
	if !c.Status.IsOpen() {
		s.abandon(ctx, c)
		return
	}
	if err := s.confirm(ctx, c); err != nil {
		s.unopened(ctx, c, err)
		return
	}
	ids, err := s.delegations.Orders(ctx, c.ProjectID, c.ID, listed)
	b.fail(failedFor("orders", c, err))
	for _, id := range ids {
		b.begin("order/"+id.String(), orderTasks, cloudOf(c), func() { s.order(ctx, c, id) })
	}
	b.fail(failedFor("actions", c, s.act(ctx, c)))
}

// failedFor is the error of reading what is due for a connection. The event that gets it is repeated.
func failedFor(what string, c domain.Connection, err error) error {
	if err != nil {
		err = fmt.Errorf("%s of connection %s: %w", what, c.ID, err)
	}
	return err
}

// accepted records that Keystone accepted the delegation after that time, and with which roles.
func (s *service) accepted(ctx context.Context, c domain.Connection, in session, before time.Time) {
	s.record(ctx, c, func(ctx context.Context) error {
		return s.delegations.MarkChecked(ctx, c.ProjectID, c.ID, before, in.ActsAs().Roles)
	})
}

// record writes a change of the connection, also when the event's time is up.
func (s *service) record(ctx context.Context, c domain.Connection, write func(context.Context) error) {
	ctx, cancel := domain.Detached(ctx)
	defer cancel()
	if err := write(ctx); err != nil {
		slog.WarnContext(ctx, "connection not updated", "connection_id", c.ID, "error", err)
	}
}

// readFlavors records the flavors of the connection's cloud.
func (s *service) readFlavors(ctx context.Context, c domain.Connection, in session) {
	flavors, err := in.Flavors(ctx)
	if err != nil { // they may not be among what the credential is good for
		slog.WarnContext(ctx, "flavors of connection not read", "connection_id", c.ID, "error", err)
		return
	}
	s.record(ctx, c, func(ctx context.Context) error {
		return s.delegations.MarkReachable(ctx, c.ProjectID, c.ID, flavors)
	})
}

// unopened records why there is no session: the delegation is lost, or the connection pauses. A delegation is not lost
// when its cloud is unavailable, or when our own key or account is wrong.
func (s *service) unopened(ctx context.Context, c domain.Connection, cause error) {
	if errors.Is(ctx.Err(), context.Canceled) {
		return // this process ends
	}
	s.record(ctx, c, func(ctx context.Context) error {
		if !delegation.IsLost(cause) {
			slog.ErrorContext(ctx, "connection unusable for now", "connection_id", c.ID, "error", cause)
			return s.markUnreachable(ctx, c)
		}
		slog.WarnContext(ctx, "delegation lost", "connection_id", c.ID, "error", cause)
		_, err := s.connections.Lose(ctx, c, domain.LostReason(c.Kind), c.Kind != domain.TrustConnection)
		s.wakeOfEnd(c)
		return err
	})
}

func (s *service) markUnreachable(ctx context.Context, c domain.Connection) error {
	return s.delegations.MarkUnreachable(ctx, c.ProjectID, c.ID, firstPause, longestPause)
}

// wakeFor wakes the functions that have work after a change: deliver-events, and poll-instances for servers of this
// cloud.
func (s *service) wakeFor(c domain.Connection) {
	if c.Remote() {
		s.wake("deliver-events")
		return
	}
	s.wake("deliver-events", "poll-instances")
}

const (
	// A delegation that Keystone accepted within this time is used without another check: services may cache the
	// validity of its token for much longer.
	provenFor = 30 * time.Second
	// checkClaim is for how long a replica owns a check. Two logins with a pause between them end before that.
	checkClaim = 3 * delegation.LoginTimeout
)

// confirm checks the delegation with Keystone, unless Keystone accepted it in the last half minute, and makes sure that
// there is a session.
func (s *service) confirm(ctx context.Context, c domain.Connection) error {
	// without the time of the last check the session decides
	if now, err := s.db.Now(ctx); err == nil && now.Sub(c.CheckedAt) > provenFor {
		if err := s.cloud.Check(ctx, c); err != nil {
			return err
		}
	}
	_, err := s.cloud.Open(ctx, c, nil)
	return err
}

// checks has workers check the connections when one is due, and those that are due some minutes later with it: then the
// function has nothing to do for minutes, however many connections there are.
func (s *service) checks(ctx context.Context, b *batch, end time.Time) error {
	clouds, err := s.delegations.CheckClouds(ctx)
	for _, cloud := range clouds {
		b.fill(ctx, "check", cloud, end, func() (isFound bool) {
			c, isFound, err := s.delegations.ClaimCheck(ctx, cloud, checkClaim)
			if err != nil {
				slog.WarnContext(ctx, "claim of a due check failed", "cloud", cloud.AuthURL, "error", err)
			}
			if isFound {
				s.check(ctx, c)
			}
			return isFound
		})
	}
	return err
}

// check checks one delegation with Keystone, and then reads the resources that can be ordered through it. The
// connection stays as it is if the cloud does not answer.
func (s *service) check(ctx context.Context, c domain.Connection) {
	before, err := s.db.Now(ctx)
	if err != nil { // the check is due again when its claim expires
		slog.WarnContext(ctx, "connection not checked", "connection_id", c.ID, "error", err)
		return
	}
	if err = s.cloud.Check(ctx, c); err == nil {
		if s.readsResources && slices.Contains(c.Actions, domain.MayAllocate) { // else nothing can be ordered
			s.readResources(ctx, c)
		}
		return
	}
	s.unopened(ctx, c, err)
	s.record(ctx, c, func(ctx context.Context) error {
		return s.delegations.MarkUnchecked(ctx, c.ProjectID, c.ID, before, apperr.As(err).Message)
	})
}

// resourcesTimeout bounds readResources. With the login before it, it ends before the check's claim.
const resourcesTimeout = 15 * time.Second

// readResources reads what can be ordered through a connection whose delegation Keystone has just accepted, and stores
// it for the connection's users. A kind that cannot be read has a Problem. When none can be read, the stored resources
// stay.
func (s *service) readResources(ctx context.Context, c domain.Connection) {
	asOf, err := s.db.Now(ctx)
	if err != nil {
		slog.WarnContext(ctx, "resources of connection not read", "connection_id", c.ID, "error", err)
		return
	}
	reading, cancel := context.WithTimeout(ctx, resourcesTimeout)
	defer cancel()
	in, err := s.cloud.Open(reading, c, nil)
	if err != nil {
		return // a check says why
	}
	found := readAll(reading, in)
	if len(found.Problems) == len(domain.ResourceKinds()) {
		slog.WarnContext(ctx, "no resources of connection could be read", "connection_id", c.ID,
			"problems", found.Problems)
		return
	}
	flavors := found.Flavors
	found.Bound(c.Limits)
	s.record(ctx, c, func(ctx context.Context) error {
		err := s.delegations.RecordResources(ctx, c.ProjectID, c.ID, asOf, found)
		if err == nil && flavors != nil {
			err = s.delegations.MarkReachable(ctx, c.ProjectID, c.ID, flavors)
		}
		return err
	})
}

// readAll reads all kinds concurrently.
func readAll(ctx context.Context, in session) domain.AvailableResources {
	found := domain.AvailableResources{Problems: map[string]domain.Problem{}}
	var mu sync.Mutex
	var all sync.WaitGroup
	for kind, read := range map[string]func() error{
		domain.ResourceFlavors: func() (err error) { found.Flavors, err = in.Flavors(ctx); return err },
		domain.ResourceImages:  func() (err error) { found.Images, err = in.Images(ctx, ""); return err },
		domain.ResourceNetworks: func() (err error) {
			found.Networks, err = in.Networks(ctx)
			return err
		},
		domain.ResourceQuota: func() error {
			quota, err := in.Quota(ctx)
			if err == nil {
				found.Quota = &quota
			}
			return err
		},
	} {
		all.Go(func() {
			if err := read(); err != nil {
				mu.Lock()
				defer mu.Unlock()
				found.Problems[kind] = *domain.ProblemOf(err)
			}
		})
	}
	all.Wait()
	return found
}
