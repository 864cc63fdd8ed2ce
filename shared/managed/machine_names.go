package managed

import (
	"context"
	"errors"
	"maps"
	"slices"
	"strings"

	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/lookup"
)

// names are what the names in two specs of a server mean now. The zero value compares them as texts.
type names struct {
	flavors  []domain.Flavor // nil = not known
	networks []domain.Network
	groups   []domain.SecurityGroup
	image    string // the id of the declared image; "" = not known
}

// resolve looks up the names in which the two specs of a server differ, for Differences. Names that both specs have are
// not looked up, and lists are read once in a round. Names that the cloud's policy withholds are compared as texts.
func (s Session) resolve(ctx context.Context, in Wanted, o Object) (n names, err error) {
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
	return n, nil
}

// isUnknown reports whether names could not be looked up now. One that does not exist, or that waits for its object, is
// known.
func isUnknown(err error) bool {
	_, isWait := errors.AsType[WaitError](err)
	return err != nil && !isWait && !apperr.Final(err)
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

// nameSet is the set of names, in their order.
func nameSet(given []string) []string {
	return slices.Compact(slices.Sorted(slices.Values(given)))
}
