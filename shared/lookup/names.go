// Package lookup finds in OpenStack what a request or an order names: flavors, images and networks by id or name,
// servers by tag, and the faults that lists leave out.
package lookup

import (
	"context"
	"fmt"
	"slices"

	"github.com/google/uuid"

	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/domain"
)

// Ref is what a request calls something, and in which field.
type Ref struct{ Field, Value string }

// Images is the part of OpenStack that images are found in.
type Images interface {
	Image(ctx context.Context, id string) (domain.Image, error)
	Images(ctx context.Context, name string) ([]domain.Image, error)
}

// named is what can be referred to by id or by name.
type named struct{ id, name string }

// PickFlavor chooses the flavor that ref means.
func PickFlavor(flavors []domain.Flavor, r Ref) (domain.Flavor, error) {
	things := make([]named, len(flavors))
	for n, f := range flavors {
		things[n] = named{f.ID, f.Name}
	}
	n, err := pick(r.Field, "flavor", r.Value, things)
	if err != nil {
		return domain.Flavor{}, err
	}
	return flavors[n], nil
}

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
		return -1, apperr.InvalidField(field, fmt.Sprintf("there is no %s %q", what, ref), Some(names)...)
	case 1:
		return index, nil
	}
	err := apperr.InvalidField(field, fmt.Sprintf("%d %ss are named %q: give an id", len(ids), what, ref), ids...)
	err.Code = apperr.Conflict
	return -1, err
}

// Some bounds a list that is shown in an error.
func Some(names []string) []string {
	slices.Sort(names)
	names = slices.Compact(names)
	return names[:min(len(names), 50)]
}

// FindImages takes an id first, because a community image can be used by id without being in any list. Of
// several images of a name those that are not active do not count while one is: retired images often keep it.
func FindImages(ctx context.Context, cloud Images, name string) ([]domain.Image, error) {
	if uuid.Validate(name) == nil {
		image, err := cloud.Image(ctx, name)
		if err == nil || apperr.CodeOf(err) != apperr.NotFound {
			return []domain.Image{image}, err
		}
	}
	images, err := cloud.Images(ctx, name)
	if err != nil {
		return nil, err
	}
	return activeNamed(images, name), nil
}

// activeNamed keeps those of the name, and of these the active ones if there is one. It changes images.
func activeNamed(images []domain.Image, name string) []domain.Image {
	images = slices.DeleteFunc(images, func(i domain.Image) bool { return i.Name != name })
	if slices.ContainsFunc(images, IsActive) {
		images = slices.DeleteFunc(images, func(i domain.Image) bool { return !IsActive(i) })
	}
	return images
}

// IsActive says whether a server can be made from the image.
func IsActive(i domain.Image) bool { return i.Status == "active" }

// PickImage chooses the image that ref means among those that FindImages has found.
func PickImage(images []domain.Image, r Ref) (domain.Image, error) {
	if uuid.Validate(r.Value) == nil && len(images) == 1 {
		return images[0], nil // however the id is written
	}
	things := make([]named, len(images))
	for i, image := range images {
		things[i] = named{image.ID, image.Name}
	}
	i, err := pick(r.Field, "image", r.Value, things)
	if err != nil {
		return domain.Image{}, err
	}
	return images[i], nil
}

// PickNetworks chooses the networks that refs mean, and gives them by id; when none is asked for, the only one that the
// project can boot on.
func PickNetworks(networks []domain.Network, refs []Ref) ([]Ref, error) {
	if len(refs) == 0 {
		return onlyNetwork(networks)
	}
	things := make([]named, len(networks))
	for i, n := range networks {
		things[i] = named{n.ID, n.Name}
	}
	out := make([]Ref, len(refs))
	for k, r := range refs {
		i, err := pick(r.Field, "network", r.Value, things)
		if err != nil {
			return nil, err
		}
		out[k] = Ref{Field: r.Field, Value: networks[i].ID}
	}
	return out, nil
}

func onlyNetwork(networks []domain.Network) ([]Ref, error) {
	usable := slices.DeleteFunc(slices.Clone(networks), func(n domain.Network) bool { return n.External })
	if len(usable) == 1 {
		return []Ref{{"networks", usable[0].ID}}, nil
	}
	names := make([]string, len(usable))
	for i, n := range usable {
		names[i] = n.Name
	}
	if len(usable) == 0 {
		return nil, apperr.InvalidField("networks", "the project has no network to launch on")
	}
	err := apperr.InvalidField("networks", "must be given, because the project has several", Some(names)...)
	err.Code = apperr.Conflict
	return nil, err
}
