package managed

import (
	"context"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/lookup"
)

// lists keeps what names are looked up in for a pass, so that ten creations list flavors once.
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

// kept is what a pass has read of one kind, by a key. Each kind is read by one call at a time.
type kept[T any] struct {
	mu   sync.Mutex // of busy
	busy chan struct{}
	all  map[string]T
	hung error // of a call that took longer than hungAfter
}

// hungAfter is how long a call may take and fail, and still be made again in the pass. A service that hangs would take
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

// cache is what the session's pass keeps; without a pass, nothing is kept for the next call.
func (s Session) cache() *lists {
	if s.lists == nil {
		return &lists{}
	}
	return s.lists
}

// cellsUp reports whether all cells of Nova are up. It is checked once in a pass, by a call that a policy of Nova may
// forbid: then they count as up.
func (s Session) cellsUp(ctx context.Context) bool {
	areUp, _ := s.cache().cells.once(ctx, "", func(ctx context.Context) (bool, error) {
		err := s.Cloud.CellsUp(ctx, s.ProjectID)
		return err == nil || apperr.Final(err), nil
	})
	return areUp
}

func (s Session) flavors(ctx context.Context) ([]domain.Flavor, error) {
	return s.cache().flavors.once(ctx, "", s.Cloud.Flavors)
}

func (s Session) networks(ctx context.Context) ([]domain.Network, error) {
	return s.cache().networks.once(ctx, "", s.Cloud.Networks)
}

func (s Session) securityGroups(ctx context.Context) ([]domain.SecurityGroup, error) {
	return s.cache().groups.once(ctx, "", s.Cloud.SecurityGroups)
}

// keyPairs lists those of the session's user.
func (s Session) keyPairs(ctx context.Context) ([]domain.KeyPair, error) {
	return s.cache().keys.once(ctx, "", s.Cloud.KeyPairs)
}

func (s Session) zones(ctx context.Context) ([]domain.Zone, error) {
	return s.cache().zones.once(ctx, "", s.Cloud.Zones)
}

// ports lists the ports of a server, or with "" those of all servers of the project.
func (s Session) ports(ctx context.Context, server string) ([]domain.Port, error) {
	return s.cache().ports.once(ctx, server, func(ctx context.Context) ([]domain.Port, error) {
		return s.Cloud.ServerPorts(ctx, s.ProjectID, server)
	})
}

// serverGroup returns the id of the server group of a deployment, which is made with its first server; "" = none. Names
// of groups are not unique: of two servers that are made concurrently only one makes it.
func (s Session) serverGroup(ctx context.Context, m domain.Managed) (id string, err error) {
	policy := groupPolicies[m.Schedule.Affinity]
	if !m.Kind.IsDeployment() || policy == "" {
		return "", nil
	}
	name := groupName(m, policy)
	return s.cache().serverGroups.once(ctx, name, func(ctx context.Context) (string, error) {
		return s.Cloud.EnsureServerGroup(ctx, name, policy)
	})
}

// images finds the images of a name or id.
func (s Session) images(ctx context.Context, name string) ([]domain.Image, error) {
	return s.cache().images.once(ctx, name, func(ctx context.Context) ([]domain.Image, error) {
		return lookup.FindImages(ctx, s.Cloud, name)
	})
}

// names are what the names in two specs of a server mean now. The zero value compares them as texts.
type names struct {
	flavors  []domain.Flavor // nil = not known
	networks []domain.Network
	groups   []domain.SecurityGroup
	image    string // the id of the declared image; "" = not known
	wasImage string // the id of the image that had the name of the former one; "" = not known, or not needed
}

// resolve looks up the names in which the two specs of a server differ, for Differences. Names that both specs have are
// not looked up, and lists are read once in a pass. Names that the cloud's policy withholds are compared as texts.
func (s Session) resolve(ctx context.Context, in Desired, o Object) (n names, err error) {
	server, isServer := o.Raw.(domain.Server)
	if !isServer {
		return n, nil
	}
	spec, made := read[domain.MachineSpec](in.Spec), read[domain.MachineSpec](in.Made.Spec)
	if !isFlavorOf(spec, server) {
		if n.flavors, err = s.flavors(ctx); isUnknown(err) {
			return n, err
		}
	}
	if in.Made.Number == in.Resource.Revision || in.Made.Number == 0 {
		return n, nil
	}
	if !slices.Equal(spec.Networks, made.Networks) {
		if n.networks, err = s.networks(ctx); isUnknown(err) {
			return n, err
		}
	}
	if !slices.Equal(n.groupIDs(spec.SecurityGroups), n.groupIDs(made.SecurityGroups)) {
		if n.groups, err = s.securityGroups(ctx); isUnknown(err) {
			return n, err
		}
	}
	if spec.Image != made.Image || in.Member.IsRebuilt {
		if n.image, err = volumeImage(ctx, s, in, spec.Image); isUnknown(err) {
			return n, err
		}
	}
	if spec.Image != made.Image && made.BootVolume != nil {
		if n.wasImage, err = volumeImage(ctx, s, in, made.Image); isUnknown(err) {
			return n, err
		}
	}
	return n, nil
}

// isUnknown reports whether names could not be looked up now. One that does not exist, or that waits for its object, is
// known.
func isUnknown(err error) bool {
	return err != nil && !isWait(err) && !apperr.Final(err)
}

// isFlavorOf reports whether a server shows the declared flavor.
func isFlavorOf(spec domain.MachineSpec, server domain.Server) bool {
	return spec.Flavor == server.Flavor.Name || spec.Flavor == server.Flavor.ID
}

// hasFlavor reports whether Nova lists a flavor of the name or id. It does not list deleted flavors, and private ones
// of others. Their servers show the flavor's name, and no id.
func (n names) hasFlavor(flavor string) bool {
	return n.flavors == nil || slices.ContainsFunc(n.flavors, func(f domain.Flavor) bool {
		return f.ID == flavor || f.Name == flavor
	})
}

// networkIDs are the ids of networks, in the order of a server's interfaces. None means the only network.
func (n names) networkIDs(given []string) (ids []string) {
	if len(given) == 0 {
		only, _ := lookup.PickNetworks(n.networks, nil) // it fails without an only one
		for _, r := range only {
			ids = append(ids, r.Value)
		}
		return ids
	}
	for _, name := range given {
		if found, err := lookup.PickNetworks(n.networks, []lookup.Ref{{Value: name}}); err == nil {
			name = found[0].Value
		}
		ids = append(ids, name)
	}
	return ids
}

// groupIDs is the set of the ids of security groups. None means the default group, which Neutron adds then.
func (n names) groupIDs(given []string) []string {
	if len(given) == 0 {
		given = []string{"default"}
	}
	ids := map[string]bool{}
	for _, name := range given {
		if group, err := lookup.PickSecurityGroup(n.groups, lookup.Ref{Value: name}); err == nil {
			name = group.ID
		}
		ids[name] = true
	}
	return slices.Sorted(maps.Keys(ids))
}

// isImageOf reports whether the declared image is the server's, by whichever name.
func (n names) isImageOf(server domain.Server) bool {
	return n.image != "" && server.Image != nil && strings.EqualFold(n.image, server.Image.ID)
}

// isMadeOf reports whether a server that boots from a volume was made of the declared image, by whichever name.
func (n names) isMadeOf(spec, made domain.MachineSpec, server domain.Server) bool {
	isFormer := n.image == n.wasImage || server.MadeOf != nil && n.image == server.MadeOf.ImageID
	return spec.Image == made.Image || n.image != "" && isFormer
}

// nameSet is the set of names, in their order.
func nameSet(given []string) []string {
	return slices.Compact(slices.Sorted(slices.Values(given)))
}
