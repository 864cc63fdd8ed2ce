package launch

import (
	"context"
	"fmt"
	"time"

	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/lookup"
)

// checkSeen holds the request against what run-connections has read through the connection: only that function can ask
// the connection's cloud.
func (s service) checkSeen(ctx context.Context, a access, req createOrder, out *report) error {
	c := a.Connection
	specs, errs := sizedSpecs(c, req)
	isSized := len(errs) == 0
	errs = append(errs, s.withinLimits(c, req, specs)...)
	if err := out.noteAll(append(errs, s.checkCallback(req.callback))); err != nil {
		return err
	}
	seen, err := s.seen(ctx, a, out)
	if err != nil {
		return err
	}
	if isSized {
		out.checkSpecs(c, req, specs, seen)
	}
	for _, i := range req.items {
		out.leaveUnchecked(i)
	}
	return nil
}

// seen is what was read through the connection; nothing, where nothing can be ordered.
func (s service) seen(ctx context.Context, a access, r *report) (domain.SeenResources, error) {
	if !a.mayOrder() {
		return domain.SeenResources{}, nil
	}
	seen, age, found, err := lookup.Seen(ctx, s.connections, s.wake, a.Connection)
	if found {
		r.AsOf = &seen.AsOf
	}
	if age > domain.SeenStale {
		r.unchecked("connection_id",
			fmt.Sprintf("what has changed in the connection's cloud for %s: it was not read since", age.Round(time.Minute)))
	}
	return seen, err
}

// checkSpecs holds the servers, whose sizes are known, against what was read through the connection, and against its
// quota and that of the project in which it acts.
func (r *report) checkSpecs(c domain.Connection, req createOrder, specs []domain.LaunchSpec, seen domain.SeenResources) {
	acts := domain.Identity{Roles: c.ActsAs.Roles}
	var need domain.Need
	unknown := false // a name means nothing
	for n, spec := range specs {
		i, f := req.items[n], resolved{spec: spec}
		f.flavor = domain.Flavor{ID: spec.FlavorID, Name: spec.FlavorName, VCPUs: spec.VCPUs, RAMMB: spec.RAMMB, DiskGB: spec.DiskGB}
		if hasImage, hasNetworks := r.seenImage(c, i, &f, seen), r.seenNetworks(c, i, &f, seen); !hasImage || !hasNetworks {
			unknown = true
		}
		if f.image.ID != "" {
			r.checkImage(i, f)
		}
		r.checkDisk(acts, i, f)
		r.checkNetworks(acts, f.networks, seen.Networks)
		answer := resolvedAnswer{Name: i.name, FlavorID: spec.FlavorID, ImageID: f.image.ID}
		for _, network := range f.networks {
			answer.NetworkIDs = append(answer.NetworkIDs, network.Value)
		}
		r.Resolved = append(r.Resolved, answer)
		need.Add(spec)
	}
	if unknown {
		r.Resolved = nil
	}
	r.checkConnectionQuota(c, req, need)
	switch {
	case req.spec.Reuse: // idle servers count already
	case seen.Quota == nil:
		r.unchecked(req.count, notSeen("the quota of the connection's project", seen, domain.SeenQuota))
	default:
		r.checkNeed(req.count, *seen.Quota, need)
	}
}

const withTheOrder = "looked up when the order is worked on"

// notSeen says why something is not known through the connection.
func notSeen(what string, seen domain.SeenResources, kind string) string {
	why, failed := seen.Problems[kind]
	switch {
	case failed:
		return what + " could not be read: " + why.Detail
	case seen.AsOf.IsZero():
		return withTheOrder + ": nothing was read through the connection yet"
	}
	return withTheOrder + ": only a part of the " + kind + " is known"
}

// seenImage looks the image up in what was read; ok is false when the name means nothing. One that is not listed may be
// a community image, if an id is given.
func (r *report) seenImage(c domain.Connection, i item, f *resolved, seen domain.SeenResources) (ok bool) {
	image, err := lookup.PickAllowedImage(lookup.ImagesNamed(seen.Images, i.image.Value), i.image, c.Limits)
	switch missing := apperr.CodeOf(err) == apperr.Invalid || apperr.CodeOf(err) == apperr.Forbidden; {
	case err == nil:
		f.image = image
	case missing && (!seen.Has(domain.SeenImages) || seen.IsCut(domain.SeenImages)):
		r.unchecked(i.image.Field, notSeen("the images", seen, domain.SeenImages))
	case missing && isID(i.image.Value) && c.Limits.CheckImage(i.image.Field, i.image.Value) == nil:
		r.unchecked(i.image.Field, withTheOrder+": no image of this id is listed, but it may be a community image")
	default:
		r.note(err)
		return false
	}
	return true
}

// seenNetworks looks the networks up in what was read; ok is false when a name means nothing.
func (r *report) seenNetworks(c domain.Connection, i item, f *resolved, seen domain.SeenResources) (ok bool) {
	chosen, err := lookup.PickAllowedNetworks(seen.Networks, i.networks, c.Limits)
	switch {
	case !seen.Has(domain.SeenNetworks) || err != nil && seen.IsCut(domain.SeenNetworks):
		fields := []string{"networks"}
		if len(i.networks) > 0 {
			fields = nil
		}
		for _, n := range i.networks {
			fields = append(fields, n.Field)
		}
		for _, field := range fields {
			r.unchecked(field, notSeen("the networks", seen, domain.SeenNetworks))
		}
	case err != nil:
		r.note(err)
		return false
	default:
		f.networks = chosen
	}
	return true
}

// leaveUnchecked names what is not read through connections.
func (r *report) leaveUnchecked(i item) {
	for _, part := range []struct {
		field string
		given bool
	}{{"key_name", i.spec.KeyName != ""}, {"security_groups", len(i.spec.SecurityGroups) > 0}, {"availability_zone", i.spec.Zone != ""}} {
		if part.given {
			r.unchecked(i.fields[part.field], withTheOrder)
		}
	}
}

// checkConnectionQuota holds the servers against what is left of the connection's quota. Idle ones that are taken count
// already.
func (r *report) checkConnectionQuota(c domain.Connection, req createOrder, need domain.Need) {
	err := c.Quota.Check(c.Used, need)
	switch {
	case err == nil:
	case req.spec.Reuse:
		r.unchecked(req.count, "whether enough of the servers are idle ones: "+apperr.As(err).Message)
	default:
		r.add(req.count, apperr.Quota, "%s", apperr.As(err).Message)
	}
}
