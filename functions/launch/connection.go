package launch

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"

	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/lookup"
	"github.com/cloudfn/cloudfn/shared/openstack"
)

// access is who acts, and how OpenStack is reached for it.
type access struct {
	domain.Access

	cloud *openstack.Session // nil when only run-connections can decrypt the delegation
}

// access resolves who acts: the caller with its own token, or through a connection (zero = without).
func (s service) access(
	ctx context.Context, who domain.Identity, token domain.Secret, connection uuid.UUID,
) (access, error) {
	if connection == uuid.Nil {
		return access{domain.OwnAccess(who), s.cloud.As(token, who.ProjectID)}, nil
	}
	c, now, err := s.connections.Usable(ctx, who, connection)
	return access{domain.DelegatedAccess(who, c, now), nil}, err
}

// permissions are those that the order needs. Servers that are not stopped are started.
func (req createOrder) permissions() []domain.Permission {
	needed := []domain.Permission{domain.MayAllocate}
	if !req.spec.Stopped {
		needed = append(needed, domain.MayStart)
	}
	if slices.ContainsFunc(req.items, func(i item) bool { return i.spec.Attaches() }) {
		needed = append(needed, domain.MayAttach)
	}
	return needed
}

// withinLimits lists violations of the connection's limits, as far as the request has ids: names of images and networks
// are resolved by run-connections, which compares them with the limits, too.
func (s service) withinLimits(c domain.Connection, req createOrder, specs []domain.LaunchSpec) []error {
	var wrong faults
	wrong.add(c.Limits.CheckRegion("connection_id", c.RegionIn(s.cloud.Region())))
	for n, i := range req.items {
		if specs[n].FlavorID != "" {
			wrong.add(c.Limits.CheckSize(i.sizeField(), specs[n]))
		}
		if isID(i.image.Value) {
			wrong.add(c.Limits.CheckImage(i.image.Field, i.image.Value))
		}
		for _, network := range i.networks {
			if isID(network.Value) {
				wrong.add(c.Limits.CheckNetwork(network.Field, network.Value))
			}
		}
		f := i.spec.FloatingIP
		if f != nil && isID(f.NetworkID) {
			wrong.add(c.Limits.CheckNetwork(i.fields["floating_ip"], f.NetworkID))
		}
		wrong.forbid(f != nil && c.Remote(), i.fields["floating_ip"], "cannot be combined with a connection to "+
			"another cloud or region: no one would release it if others delete its server")
	}
	return distinct(wrong)
}

// isID reports whether a text has the form of an id of an image or a network.
func isID(text string) bool { return len(text) == 36 && uuid.Validate(text) == nil }

// sizedSpecs resolves the servers' sizes, which count against the connection's quota. Names of images and networks are
// resolved by run-connections.
func sizedSpecs(
	c domain.Connection, req createOrder, reserved []domain.LeasedFlavor,
) ([]domain.LaunchSpec, []error) {
	sizes := catalog{flavors: c.Flavors, allowed: c.Limits.AllowedFlavors(c.Flavors)}
	sizes.reserve(reserved, c.Limits)
	specs := make([]domain.LaunchSpec, len(req.items))
	var wrong faults
	for n, i := range req.items {
		flavor, err := sizes.flavor(i, domain.Image{})
		wrong.add(err)
		specs[n] = i.spec
		sizes.sized(&specs[n], flavor)
		if specs[n].ImageRef = i.image.Value; uuid.Validate(i.image.Value) == nil {
			specs[n].ImageRef = strings.ToLower(i.image.Value)
		}
	}
	return specs, distinct(wrong)
}

// sealPayload encrypts what run-connections needs besides the instances' specs. It makes the order's key, too:
// run-connections gets its public half, and the caller the private one.
func (s service) sealPayload(order *domain.Order, req createOrder) (private domain.Secret, err error) {
	var payload domain.DelegatedOrder
	if req.generateKey {
		if payload.PublicKey, private, err = openstack.NewKey(req.spec.GeneratedKey); err != nil {
			return "", err
		}
	}
	for n, i := range req.items {
		server := domain.DelegatedServer{Image: i.image.Value, UserData: domain.UserData(i.userData.Reveal())}
		for _, n := range i.networks {
			server.Networks = append(server.Networks, n.Value)
		}
		if req.spec.Reuse {
			server.Name, server.Spec = i.name, &order.Instances[n].Spec
		}
		payload.Servers = append(payload.Servers, server)
	}
	text, err := json.Marshal(payload)
	if err != nil {
		return "", err
	}
	order.Payload, err = s.sealOrder.Seal(order.SealedFor(), domain.Secret(text))
	return private, err
}

// checkConnection compares the request with what run-connections has read of the connection's cloud, which it alone can
// query.
func (s service) checkConnection(ctx context.Context, a access, req createOrder, out *launchReport) error {
	c := a.Connection
	reserved, err := s.reserved(ctx, a, req)
	specs, errs := sizedSpecs(c, req, reserved)
	if err != nil {
		errs = append(errs, err)
	}
	isSized := len(errs) == 0
	errs = append(errs, s.withinLimits(c, req, specs)...)
	if err := s.checkCallback(req.callback); err != nil {
		errs = append(errs, err)
	}
	if err := out.addErrors(errs); err != nil {
		return err
	}
	stored, err := s.resources(ctx, a, out)
	if err != nil {
		return err
	}
	if isSized {
		out.checkSpecs(c, req, specs, stored)
	}
	for _, i := range req.items {
		if i.spec.KeyName != "" {
			out.unchecked(i.fields["key_name"], withTheOrder)
		}
		if len(i.spec.SecurityGroups) > 0 {
			out.unchecked(i.fields["security_groups"], withTheOrder)
		}
		if i.spec.Zone != "" {
			out.unchecked(i.fields["availability_zone"], withTheOrder)
		}
		if len(i.volumeFields) > 0 {
			out.unchecked(i.volumeFields[0], "types, and the project's quota of volumes: "+withTheOrder)
		}
		if i.spec.FloatingIP != nil {
			out.unchecked(i.fields["floating_ip"], withTheOrder)
		}
	}
	return nil
}

// resources are those that were read through the connection; zero if it does not permit orders.
func (s service) resources(ctx context.Context, a access, r *launchReport) (domain.AvailableResources, error) {
	if a.Permits(domain.MayAllocate) != nil {
		return domain.AvailableResources{}, nil //nolint:nilerr // DryRun reports it
	}
	stored, age, found, err := lookup.Resources(ctx, s.connections, s.wake, a.Connection)
	if found {
		r.AsOf = &stored.AsOf
	}
	if age > domain.ResourcesStale {
		r.unchecked("connection_id", fmt.Sprintf(
			"what has changed in the connection's cloud for %s: it was not read since", age.Round(time.Minute)))
	}
	return stored, err
}

// checkSpecs compares servers of known sizes with the resources of the connection's cloud, with the connection's quota,
// and with that of the project in which it acts.
func (r *launchReport) checkSpecs(
	c domain.Connection, req createOrder, specs []domain.LaunchSpec, stored domain.AvailableResources,
) {
	acts := domain.Identity{Roles: c.ActsAs.Roles}
	var need domain.Need
	isResolved := true
	for n, spec := range specs {
		i, f := req.items[n], resolved{spec: spec}
		f.flavor = domain.Flavor{
			ID: spec.FlavorID, Name: spec.FlavorName, VCPUs: spec.VCPUs, RAMMB: spec.RAMMB, DiskGB: spec.DiskGB,
		}
		isResolved = r.resolveImage(c, i, &f, stored) && isResolved
		isResolved = r.resolveNetworks(c, i, &f, stored) && isResolved
		if f.image.ID != "" {
			r.checkImage(i, f)
			if err := f.spec.BootFrom(f.image, i.fields["boot_volume"]); err != nil {
				r.addError(err)
			}
		}
		r.checkDisk(acts, i, f)
		r.checkNetworks(acts, f.networks, stored.Networks)
		ids := launchResolved{Name: i.name, FlavorID: spec.FlavorID, ImageID: f.image.ID}
		for _, network := range f.networks {
			ids.NetworkIDs = append(ids.NetworkIDs, network.Value)
		}
		r.Resolved = append(r.Resolved, ids)
		need.Add(spec)
	}
	if !isResolved {
		r.Resolved = nil
	}
	r.checkConnectionQuota(c, req, need)
	switch {
	case req.spec.Reuse: // idle servers count already
	case stored.Quota == nil:
		r.unchecked(req.count, whyUnknown("the quota of the connection's project", stored, domain.ResourceQuota))
	default:
		r.checkNeed(req.count, *stored.Quota, need)
	}
}

const withTheOrder = "looked up when the order is worked on"

// whyUnknown explains why something is not known through the connection.
func whyUnknown(what string, stored domain.AvailableResources, kind string) string {
	why, failed := stored.Problems[kind]
	switch {
	case failed:
		return what + " could not be read: " + why.Detail
	case stored.AsOf.IsZero():
		return withTheOrder + ": nothing was read through the connection yet"
	}
	return withTheOrder + ": only a part of the " + kind + " is known"
}

// resolveImage finds the image among the stored ones; ok is false if its name is unknown. An id that is not listed may
// be that of a community image.
func (r *launchReport) resolveImage(
	c domain.Connection, i item, f *resolved, stored domain.AvailableResources,
) (ok bool) {
	image, err := lookup.PickAllowedImage(lookup.FilterImages(stored.Images, i.image.Value), i.image, c.Limits)
	isMissing := apperr.CodeOf(err) == apperr.Invalid || apperr.CodeOf(err) == apperr.Forbidden
	switch {
	case err == nil:
		f.image = image
	case isMissing && (!stored.Has(domain.ResourceImages) || stored.IsCut(domain.ResourceImages)):
		r.unchecked(i.image.Field, whyUnknown("the images", stored, domain.ResourceImages))
	case isMissing && isID(i.image.Value) && c.Limits.CheckImage(i.image.Field, i.image.Value) == nil:
		r.unchecked(i.image.Field, withTheOrder+": no image of this id is listed, but it may be a community image")
	default:
		r.addError(err)
		return false
	}
	return true
}

// resolveNetworks finds the networks among the stored ones; ok is false if a name is unknown.
func (r *launchReport) resolveNetworks(
	c domain.Connection, i item, f *resolved, stored domain.AvailableResources,
) (ok bool) {
	chosen, err := lookup.PickAllowedNetworks(stored.Networks, i.networks, c.Limits)
	switch {
	case !stored.Has(domain.ResourceNetworks) || err != nil && stored.IsCut(domain.ResourceNetworks):
		why := whyUnknown("the networks", stored, domain.ResourceNetworks)
		for _, n := range i.networks {
			r.unchecked(n.Field, why)
		}
		if len(i.networks) == 0 {
			r.unchecked("networks", why)
		}
	case err != nil:
		r.addError(err)
		return false
	default:
		f.networks = chosen
	}
	return true
}

// checkConnectionQuota compares the servers with what is left of the connection's quota. Reused ones count already.
func (r *launchReport) checkConnectionQuota(c domain.Connection, req createOrder, need domain.Need) {
	err := c.Quota.Check(c.Used, need)
	switch {
	case err == nil:
	case req.spec.Reuse:
		r.unchecked(req.count, "whether enough of the servers are idle ones: "+apperr.As(err).Message)
	default:
		r.add(req.count, apperr.Quota, "%s", apperr.As(err).Message)
	}
}
