package managed

import (
	"context"
	"sync"

	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/lookup"
)

// lists keeps what names are looked up in for a round, so that ten creations list flavors once.
type lists struct {
	mu       sync.Mutex
	flavors  []domain.Flavor
	networks []domain.Network
	groups   []domain.SecurityGroup
	keys     []domain.KeyPair
	zones    []domain.Zone
	ports    []domain.Port
	images   map[string][]domain.Image // by the name or id that was looked up
	servers  map[string]string         // the ids of server groups, by their names
	cells    *bool                     // all cells of Nova are up; nil = not checked
}

func newLists() *lists {
	return &lists{images: map[string][]domain.Image{}, servers: map[string]string{}}
}

// cellsUp reports whether all cells of Nova are up. It is checked once in a round, by a call that a policy of Nova may
// forbid: then they count as up.
func (s Session) cellsUp(ctx context.Context) bool {
	if s.lists == nil {
		s.lists = &lists{}
	}
	s.lists.mu.Lock()
	defer s.lists.mu.Unlock()
	if s.lists.cells == nil {
		err := s.Cloud.CellsUp(ctx, s.ProjectID)
		s.lists.cells = new(err == nil || apperr.Final(err))
	}
	return *s.lists.cells
}

// once lists what names are looked up in, once in a round.
func once[T any](
	ctx context.Context, l *lists, kept func(*lists) *[]T, list func(context.Context) ([]T, error),
) (all []T, err error) {
	if l == nil {
		return list(ctx)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	into := kept(l)
	if *into == nil {
		*into, err = list(ctx)
	}
	return *into, err
}

func (s Session) flavors(ctx context.Context) ([]domain.Flavor, error) {
	return once(ctx, s.lists, func(l *lists) *[]domain.Flavor { return &l.flavors }, s.Cloud.Flavors)
}

func (s Session) networks(ctx context.Context) ([]domain.Network, error) {
	return once(ctx, s.lists, func(l *lists) *[]domain.Network { return &l.networks }, s.Cloud.Networks)
}

func (s Session) securityGroups(ctx context.Context) ([]domain.SecurityGroup, error) {
	return once(ctx, s.lists, func(l *lists) *[]domain.SecurityGroup { return &l.groups }, s.Cloud.SecurityGroups)
}

// keyPairs lists those of the session's user.
func (s Session) keyPairs(ctx context.Context) ([]domain.KeyPair, error) {
	return once(ctx, s.lists, func(l *lists) *[]domain.KeyPair { return &l.keys }, s.Cloud.KeyPairs)
}

func (s Session) zones(ctx context.Context) ([]domain.Zone, error) {
	return once(ctx, s.lists, func(l *lists) *[]domain.Zone { return &l.zones }, s.Cloud.Zones)
}

// serverGroup returns the id of the server group of a deployment, which is made with its first server; "" = none. Names
// of groups are not unique: of two servers that are made concurrently only one makes it.
func (s Session) serverGroup(ctx context.Context, m domain.Managed) (id string, err error) {
	policy := groupPolicies[m.Schedule.Affinity]
	if m.Kind != domain.KindDeployment || policy == "" {
		return "", nil
	}
	name := groupName(m, policy)
	if s.lists == nil {
		return s.Cloud.EnsureServerGroup(ctx, name, policy)
	}
	s.lists.mu.Lock()
	defer s.lists.mu.Unlock()
	if id, isKnown := s.lists.servers[name]; isKnown {
		return id, nil
	}
	if id, err = s.Cloud.EnsureServerGroup(ctx, name, policy); err == nil {
		s.lists.servers[name] = id
	}
	return id, err
}

// images finds the images of a name or id, once in a round.
func (s Session) images(ctx context.Context, name string) (found []domain.Image, err error) {
	if s.lists == nil {
		return lookup.FindImages(ctx, s.Cloud, name)
	}
	s.lists.mu.Lock()
	defer s.lists.mu.Unlock()
	found, isKnown := s.lists.images[name]
	if isKnown {
		return found, nil
	}
	if found, err = lookup.FindImages(ctx, s.Cloud, name); err == nil {
		s.lists.images[name] = found
	}
	return found, err
}
