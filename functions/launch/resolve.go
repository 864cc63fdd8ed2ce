package launch

import (
	"context"
	"fmt"
	"slices"
	"sync"

	"github.com/google/uuid"

	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/domain"
)

// resolved is a wish with its names looked up.
type resolved struct {
	spec   domain.LaunchSpec
	flavor domain.Flavor
	image  domain.Image
}

// resolve looks up flavor, image and networks at the same time, and gives what is wrong with any of them. An
// unknown name is Invalid, one that is not unique a Conflict; both name the field and what is allowed.
func resolve(ctx context.Context, cloud session, w wish) (resolved, []error) {
	out := resolved{spec: w.spec}
	errs := make([]error, 3)
	var all sync.WaitGroup
	all.Go(func() { out.flavor, errs[0] = findFlavor(ctx, cloud, w.flavor) })
	all.Go(func() { out.image, errs[1] = findImage(ctx, cloud, w.image) })
	var networks []domain.Network
	all.Go(func() { networks, errs[2] = findNetworks(ctx, cloud, w.networks) })
	all.Wait()
	out.spec.FlavorID, out.spec.ImageID = out.flavor.ID, out.image.ID
	out.spec.VCPUs, out.spec.RAMMB = out.flavor.VCPUs, out.flavor.RAMMB
	for _, n := range networks {
		out.spec.NetworkIDs = append(out.spec.NetworkIDs, n.ID)
	}
	return out, slices.DeleteFunc(errs, func(err error) bool { return err == nil })
}

// first is the error to answer with: one that is not about a field before one that is.
func first(errs []error) error {
	for _, err := range errs {
		if len(apperr.As(err).Fields) == 0 {
			return err
		}
	}
	if len(errs) == 0 {
		return nil
	}
	all := *apperr.As(errs[0])
	for _, err := range errs[1:] {
		all.Fields = append(slices.Clip(all.Fields), apperr.As(err).Fields...)
	}
	return &all
}

// named is what can be referred to by id or by name.
type named struct{ id, name string }

// pick finds the index of the thing that ref means: the one with that id, else the only one of that name.
func pick(field, what, ref string, things []named) (int, error) {
	if i := slices.IndexFunc(things, func(t named) bool { return t.id == ref }); i >= 0 {
		return i, nil
	}
	index, ids, names := -1, []string{}, []string{}
	for i, t := range things {
		names = append(names, t.name)
		if t.name == ref {
			index, ids = i, append(ids, t.id)
		}
	}
	switch len(ids) {
	case 0:
		return -1, apperr.InvalidField(field, fmt.Sprintf("there is no %s %q", what, ref), some(names)...)
	case 1:
		return index, nil
	}
	err := apperr.InvalidField(field, fmt.Sprintf("%d %ss are named %q: give an id", len(ids), what, ref), ids...)
	err.Code = apperr.Conflict
	return -1, err
}

// some bounds a list that is shown in an error.
func some(names []string) []string {
	slices.Sort(names)
	names = slices.Compact(names)
	return names[:min(len(names), 50)]
}

func findFlavor(ctx context.Context, cloud session, ref string) (domain.Flavor, error) {
	flavors, err := cloud.Flavors(ctx)
	if err != nil {
		return domain.Flavor{}, err
	}
	things := make([]named, len(flavors))
	for i, f := range flavors {
		things[i] = named{f.ID, f.Name}
	}
	i, err := pick("flavor", "flavor", ref, things)
	if err != nil {
		return domain.Flavor{}, err
	}
	return flavors[i], nil
}

// findImage takes an id first, because a community image can be used by id without being in any list. Of
// several images of a name those that are not active do not count while one is: retired images often keep it.
func findImage(ctx context.Context, cloud session, ref string) (domain.Image, error) {
	if uuid.Validate(ref) == nil {
		image, err := cloud.Image(ctx, ref)
		if err == nil || apperr.CodeOf(err) != apperr.NotFound {
			return image, err
		}
	}
	images, err := cloud.Images(ctx, ref)
	if err != nil {
		return domain.Image{}, err
	}
	images = slices.DeleteFunc(images, func(i domain.Image) bool { return i.Name != ref })
	if slices.ContainsFunc(images, isActive) {
		images = slices.DeleteFunc(images, func(i domain.Image) bool { return !isActive(i) })
	}
	things := make([]named, len(images))
	for i, image := range images {
		things[i] = named{image.ID, image.Name}
	}
	i, err := pick("image", "image", ref, things)
	if err != nil {
		return domain.Image{}, err
	}
	return images[i], nil
}

func isActive(i domain.Image) bool { return i.Status == "active" }

// findNetworks looks up the networks asked for; when none is, the only one that the project can boot on.
func findNetworks(ctx context.Context, cloud session, refs []string) ([]domain.Network, error) {
	if len(refs) == 0 {
		networks, err := cloud.Networks(ctx)
		if err != nil {
			return nil, err
		}
		return onlyNetwork(networks)
	}
	networks, err := cloud.NetworkNames(ctx)
	if err != nil {
		return nil, err
	}
	things := make([]named, len(networks))
	for i, n := range networks {
		things[i] = named{n.ID, n.Name}
	}
	out := make([]domain.Network, len(refs))
	for k, ref := range refs {
		i, err := pick(fmt.Sprintf("networks[%d]", k), "network", ref, things)
		if err != nil {
			return nil, err
		}
		out[k] = networks[i]
	}
	return out, nil
}

func onlyNetwork(networks []domain.Network) ([]domain.Network, error) {
	usable := slices.DeleteFunc(slices.Clone(networks), func(n domain.Network) bool { return n.External })
	if len(usable) == 1 {
		return usable, nil
	}
	names := make([]string, len(usable))
	for i, n := range usable {
		names[i] = n.Name
	}
	if len(usable) == 0 {
		return nil, apperr.InvalidField("networks", "the project has no network to launch on")
	}
	err := apperr.InvalidField("networks", "must be given, because the project has several", some(names)...)
	err.Code = apperr.Conflict
	return nil, err
}
