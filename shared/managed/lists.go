package managed

import (
	"context"
	"sync"
	"time"

	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/lookup"
)

// lists keeps what names are looked up in for a round, so that ten creations list flavors once.
type lists struct {
	flavors      kept[[]domain.Flavor]
	networks     kept[[]domain.Network]
	groups       kept[[]domain.SecurityGroup]
	keys         kept[[]domain.KeyPair]
	zones        kept[[]domain.Zone]
	ports        kept[[]domain.Port]  // by the server; "" = all
	images       kept[[]domain.Image] // by the name or id that was looked up
	serverGroups kept[string]         // their ids, by their names
	cells        kept[bool]           // all cells of Nova are up
}

// kept is what a round has read of one kind, by a key. Each kind is read by one call at a time.
type kept[T any] struct {
	mu   sync.Mutex // of busy
	busy chan struct{}
	all  map[string]T
	hung error // of a call that took longer than hungAfter
}

// hungAfter is how long a call may take and fail, and still be made again in the round. A service that hangs would take
// that long for each resource.
const hungAfter = 10 * time.Second

// once returns what is kept under the key, or reads it.
func (k *kept[T]) once(ctx context.Context, key string, read func(context.Context) (T, error)) (one T, err error) {
	busy := k.calls()
	select {
	case busy <- struct{}{}:
		defer func() { <-busy }()
	case <-ctx.Done():
		return one, apperr.Wrap(apperr.Timeout, ctx.Err(), "OpenStack did not answer in time")
	}
	one, isKnown := k.all[key]
	switch {
	case isKnown:
		return one, nil
	case k.hung != nil:
		return one, k.hung
	}
	began := time.Now()
	one, err = read(ctx)
	switch {
	case err == nil && k.all == nil:
		k.all = map[string]T{key: one}
	case err == nil:
		k.all[key] = one
	case time.Since(began) >= hungAfter:
		k.hung = err
	}
	return one, err
}

// calls is full while a call is made.
func (k *kept[T]) calls() chan struct{} {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.busy == nil {
		k.busy = make(chan struct{}, 1)
	}
	return k.busy
}

// round is what the session's round keeps; without a round, nothing is kept for the next call.
func (s Session) round() *lists {
	if s.lists == nil {
		return &lists{}
	}
	return s.lists
}

// cellsUp reports whether all cells of Nova are up. It is checked once in a round, by a call that a policy of Nova may
// forbid: then they count as up.
func (s Session) cellsUp(ctx context.Context) bool {
	areUp, _ := s.round().cells.once(ctx, "", func(ctx context.Context) (bool, error) {
		err := s.Cloud.CellsUp(ctx, s.ProjectID)
		return err == nil || apperr.Final(err), nil
	})
	return areUp
}

func (s Session) flavors(ctx context.Context) ([]domain.Flavor, error) {
	return s.round().flavors.once(ctx, "", s.Cloud.Flavors)
}

func (s Session) networks(ctx context.Context) ([]domain.Network, error) {
	return s.round().networks.once(ctx, "", s.Cloud.Networks)
}

func (s Session) securityGroups(ctx context.Context) ([]domain.SecurityGroup, error) {
	return s.round().groups.once(ctx, "", s.Cloud.SecurityGroups)
}

// keyPairs lists those of the session's user.
func (s Session) keyPairs(ctx context.Context) ([]domain.KeyPair, error) {
	return s.round().keys.once(ctx, "", s.Cloud.KeyPairs)
}

func (s Session) zones(ctx context.Context) ([]domain.Zone, error) {
	return s.round().zones.once(ctx, "", s.Cloud.Zones)
}

// ports lists the ports of a server, or with "" those of all servers of the project.
func (s Session) ports(ctx context.Context, server string) ([]domain.Port, error) {
	return s.round().ports.once(ctx, server, func(ctx context.Context) ([]domain.Port, error) {
		return s.Cloud.ServerPorts(ctx, s.ProjectID, server)
	})
}

// serverGroup returns the id of the server group of a deployment, which is made with its first server; "" = none. Names
// of groups are not unique: of two servers that are made concurrently only one makes it.
func (s Session) serverGroup(ctx context.Context, m domain.Managed) (id string, err error) {
	policy := groupPolicies[m.Schedule.Affinity]
	if m.Kind != domain.KindDeployment || policy == "" {
		return "", nil
	}
	name := groupName(m, policy)
	return s.round().serverGroups.once(ctx, name, func(ctx context.Context) (string, error) {
		return s.Cloud.EnsureServerGroup(ctx, name, policy)
	})
}

// images finds the images of a name or id.
func (s Session) images(ctx context.Context, name string) ([]domain.Image, error) {
	return s.round().images.once(ctx, name, func(ctx context.Context) ([]domain.Image, error) {
		return lookup.FindImages(ctx, s.Cloud, name)
	})
}
