package runconnections

import (
	"context"
	"fmt"
	"slices"
	"sync"

	"golang.org/x/crypto/ssh"

	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/lookup"
)

// preparing is an order whose servers are about to be created.
type preparing struct {
	*service

	cloud      session
	connection domain.Connection
	wanted     domain.DelegatedOrder
	claim      domain.Claim
}

// prepare resolves the names in the undecided instances, gives the order's key to the delegating user, and stores both.
// An error that is a rejection ends the undecided instances.
func (p preparing) prepare(ctx context.Context, order domain.Order) (domain.Order, error) {
	order, err := p.checkReused(ctx, order)
	if err != nil {
		return order, err
	}
	order.Instances = slices.Clone(order.Instances)
	undecided := order
	undecided.Instances = nil
	places := p.places(order)
	if len(places) == 0 {
		return order, nil
	}
	err = p.resolve(ctx, order, places)
	if err == nil {
		err = p.withinLimits(order, places)
	}
	if err == nil {
		err = p.giveKey(ctx, order, places)
	}
	for _, n := range places {
		undecided.Instances = append(undecided.Instances, order.Instances[n])
	}
	switch {
	case apperr.Final(err):
		return p.engine(p.connection).FailUndecided(ctx, order, p.claim, domain.ProblemOf(err))
	case err != nil:
		return order, err
	}
	return order, p.orders.UpdateSpecs(ctx, undecided, p.claim)
}

// places are those of the instances that are undecided.
func (p preparing) places(order domain.Order) (places []int) {
	for n, i := range order.Instances {
		if !i.Decided() {
			places = append(places, n)
		}
	}
	return places
}

// resolve looks up the images, networks and security groups of those instances whose specs have none yet.
func (p preparing) resolve(ctx context.Context, order domain.Order, places []int) error {
	images := map[string][]domain.Image{}
	var networks []domain.Network
	groups := sync.OnceValues(func() ([]domain.SecurityGroup, error) { return p.cloud.SecurityGroups(ctx) })
	listGroups := func(context.Context) ([]domain.SecurityGroup, error) { return groups() }
	for _, n := range places {
		spec, server := &order.Instances[n].Spec, p.wanted.Servers[n]
		if spec.ImageID != "" && len(spec.NetworkIDs) > 0 {
			continue
		}
		if networks == nil {
			var err error
			if networks, err = p.networks(ctx); err != nil {
				return err
			}
		}
		if _, known := images[server.Image]; !known {
			found, err := lookup.FindImages(ctx, p.cloud, server.Image)
			if err != nil {
				return err
			}
			images[server.Image] = found
		}
		if err := p.pick(spec, server, images[server.Image], networks); err != nil {
			return err
		}
		ids, err := lookup.FindSecurityGroups(ctx, listGroups, "security_groups", spec.SecurityGroups)
		if err != nil {
			return err
		}
		spec.SecurityGroups = ids
	}
	return nil
}

// networks lists the networks that names may mean. If a server names none, it also reads which networks are external.
func (p preparing) networks(ctx context.Context) ([]domain.Network, error) {
	if slices.ContainsFunc(p.wanted.Servers, func(s domain.DelegatedServer) bool { return len(s.Networks) == 0 }) {
		return p.cloud.Networks(ctx)
	}
	return p.cloud.NetworkNames(ctx)
}

func (p preparing) pick(
	spec *domain.LaunchSpec, server domain.DelegatedServer, images []domain.Image, networks []domain.Network,
) error {
	image, err := lookup.PickAllowedImage(images, lookup.Ref{Field: "image", Value: server.Image}, p.connection.Limits)
	if err != nil {
		return err
	}
	refs := make([]lookup.Ref, len(server.Networks))
	for n, name := range server.Networks {
		refs[n] = lookup.Ref{Field: fmt.Sprintf("networks[%d]", n), Value: name}
	}
	chosen, err := lookup.PickAllowedNetworks(networks, refs, p.connection.Limits)
	if err != nil {
		return err
	}
	spec.ImageID, spec.NetworkIDs = image.ID, nil
	for _, ref := range chosen {
		spec.NetworkIDs = append(spec.NetworkIDs, ref.Value)
	}
	return nil
}

// giveKey gives the public half of the order's key pair to the delegating user, and records the fingerprints of the
// keys that the instances get. The pair may be there already: a replica that died has given it.
func (p preparing) giveKey(ctx context.Context, order domain.Order, places []int) error {
	var prints map[string]string
	for _, n := range places {
		i := &order.Instances[n]
		i.KeyName = i.Spec.KeyName
		if i.KeyName == "" || i.KeyFingerprint != "" {
			continue
		}
		if prints == nil {
			var err error
			if prints, err = p.fingerprints(ctx, order); err != nil {
				return err
			}
		}
		i.KeyFingerprint = prints[i.KeyName]
	}
	return nil
}

// fingerprints imports the order's own key pair and returns the fingerprints of key pairs, by name. It leaves out the
// others if the credential may not list them.
func (p preparing) fingerprints(ctx context.Context, order domain.Order) (map[string]string, error) {
	prints := map[string]string{}
	own := order.Spec.GeneratedKey
	if own != "" && p.wanted.PublicKey != "" {
		made, err := p.cloud.ImportKeyPair(ctx, own, p.wanted.PublicKey)
		if apperr.CodeOf(err) != apperr.Conflict {
			prints[own] = made.Fingerprint
			return prints, err
		}
		if prints, err = p.listed(ctx); err == nil && prints[own] != fingerprint(p.wanted.PublicKey) {
			err = apperr.New(apperr.Conflict, "there is another key pair %q already", own)
		}
		return prints, err
	}
	prints, err := p.listed(ctx)
	if code := apperr.CodeOf(err); code == apperr.Unauthenticated || code == apperr.Forbidden {
		return map[string]string{}, nil
	}
	return prints, err
}

func (p preparing) listed(ctx context.Context) (map[string]string, error) {
	pairs, err := p.cloud.KeyPairs(ctx)
	prints := make(map[string]string, len(pairs))
	for _, k := range pairs {
		prints[k.Name] = k.Fingerprint
	}
	return prints, err
}

// fingerprint is a public key's fingerprint as Nova writes it; "" if the text is not a public key.
func fingerprint(publicKey string) string {
	key, _, _, _, err := ssh.ParseAuthorizedKey([]byte(publicKey))
	if err != nil {
		return ""
	}
	return ssh.FingerprintLegacyMD5(key)
}

// withinLimits checks the resolved specs against the connection's limits, which may have changed since the order was
// placed.
func (p preparing) withinLimits(order domain.Order, places []int) error {
	limits := p.connection.Limits
	if err := limits.CheckRegion("connection_id", p.connection.RegionIn(p.region)); err != nil {
		return err
	}
	for _, n := range places {
		if err := limits.CheckSpec(order.Instances[n].Spec); err != nil {
			return err
		}
	}
	return nil
}
