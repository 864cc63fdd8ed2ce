package launch

import (
	"context"
	"fmt"
	"time"

	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/ordering"
)

// DryRunThrough says what would make the launch through a connection fail, as far as it is known from what run-connections has read with
// what was delegated: only that function can ask the connection's cloud.
func (s service) DryRunThrough(ctx context.Context, who domain.Identity, w wish) (report, error) {
	c, now, err := s.connections.Usable(ctx, who, w.connectionID)
	if err != nil {
		return report{}, err
	}
	out := report{Problems: []dryRunProblem{}, Unchecked: []uncheckedPart{}}
	for _, p := range w.permissions() {
		if err := c.Permits(now, p); err != nil {
			out.add("connection_id", apperr.CodeOf(err), "%s", apperr.As(err).Message)
		}
	}
	specs, errs := specsThrough(c, w)
	sized := len(errs) == 0
	errs = append(errs, s.withinLimits(c, w, specs)...)
	if err := s.checkCallback(w.callback); err != nil {
		errs = append(errs, err)
	}
	for _, err := range errs {
		if !out.note(err) {
			return report{}, err
		}
	}
	seen, err := s.seen(ctx, c, now, &out)
	if err != nil {
		return report{}, err
	}
	if sized {
		out.checkThrough(c, w, specs, seen)
	}
	for _, i := range w.items {
		out.leaveUnchecked(i)
	}
	if err := s.checkIDs(ctx, c.ProjectID, w, &out); err != nil {
		return report{}, err
	}
	out.OK = len(out.Problems) == 0
	return out, nil
}

// seen is what was read through the connection; nothing, where nothing can be ordered.
func (s service) seen(ctx context.Context, c domain.Connection, now time.Time, r *report) (domain.SeenResources, error) {
	if !canOrder(c, now) {
		return domain.SeenResources{}, nil
	}
	seen, age, found, err := ordering.Seen(ctx, s.connections, s.wake, c)
	if found {
		r.AsOf = &seen.AsOf
	}
	if age > domain.SeenStale {
		r.unchecked("connection_id", fmt.Sprintf("what has changed in the connection's cloud for %s: it was not read since", age.Round(time.Minute)))
	}
	return seen, err
}

// canOrder says whether anything can be ordered through the connection: else nothing is read through it.
func canOrder(c domain.Connection, now time.Time) bool {
	return c.Permits(now, domain.MayAllocate) == nil
}

// checkThrough holds the servers, whose sizes are known, against what was read through the connection, and against its quota and that of
// the project in which it acts.
func (r *report) checkThrough(c domain.Connection, w wish, specs []domain.LaunchSpec, seen domain.SeenResources) {
	acts := domain.Identity{Roles: c.ActsAs.Roles}
	var need domain.Need
	unknown := false // a name means nothing
	for n, spec := range specs {
		i, f := w.items[n], resolved{spec: spec}
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
	r.checkConnectionQuota(c, w, need)
	switch {
	case w.spec.Reuse: // idle servers count already
	case seen.Quota == nil:
		r.unchecked(w.count, notSeen("the quota of the connection's project", seen, domain.SeenQuota))
	default:
		r.checkNeed(w.count, *seen.Quota, need)
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

// seenImage looks the image up in what was read; ok is false when the name means nothing. One that is not listed may be a community image, if an id is given.
func (r *report) seenImage(c domain.Connection, i item, f *resolved, seen domain.SeenResources) (ok bool) {
	image, err := ordering.PickAllowedImage(ordering.ImagesNamed(seen.Images, i.image.Value), i.image, c.Limits)
	switch missing := apperr.CodeOf(err) == apperr.Invalid || apperr.CodeOf(err) == apperr.Forbidden; {
	case err == nil:
		f.image = image
	case missing && (!seen.Has(domain.SeenImages) || seen.IsCut(domain.SeenImages)):
		r.unchecked(i.image.Field, notSeen("the images", seen, domain.SeenImages))
	case missing && isID(i.image.Value) && c.Limits.CheckImage(i.image.Field, i.image.Value) == nil:
		r.unchecked(i.image.Field, withTheOrder+": no image of this id is listed, but it may be a community image")
	default:
		r.noteOnce(err)
		return false
	}
	return true
}

// seenNetworks looks the networks up in what was read; ok is false when a name means nothing.
func (r *report) seenNetworks(c domain.Connection, i item, f *resolved, seen domain.SeenResources) (ok bool) {
	chosen, err := ordering.PickAllowedNetworks(seen.Networks, i.networks, c.Limits)
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
		r.noteOnce(err)
		return false
	default:
		f.networks = chosen
	}
	return true
}

// noteOnce takes an error that names fields into the report, once.
func (r *report) noteOnce(err error) {
	e := apperr.As(err)
	for _, f := range e.Fields {
		r.addOne(dryRunProblem{Field: f.Field, Code: e.Code, Detail: f.Detail, Allowed: f.Allowed})
	}
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

// checkConnectionQuota holds the servers against what is left of the connection's quota. Idle ones that are taken count already.
func (r *report) checkConnectionQuota(c domain.Connection, w wish, need domain.Need) {
	err := c.Quota.Check(c.Used, need)
	switch {
	case err == nil:
	case w.spec.Reuse:
		r.unchecked(w.count, "whether enough of the servers are idle ones: "+apperr.As(err).Message)
	default:
		r.add(w.count, apperr.Quota, "%s", apperr.As(err).Message)
	}
}
