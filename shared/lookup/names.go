// Package lookup finds flavors, images and networks by id or name, servers by tag, and the faults that lists of servers
// leave out.
package lookup

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"

	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/flow"
)

// Ref is an id or a name in a request, with its field.
type Ref struct{ Field, Value string }

// Images is the part of OpenStack that images are found in.
type Images interface {
	Image(ctx context.Context, id string) (domain.Image, error)
	Images(ctx context.Context, name string) ([]domain.Image, error)
}

// object is a flavor, an image, a network or a group.
type object struct{ id, name string }

// PickFlavor chooses the flavor with the id or the unique name.
func PickFlavor(flavors []domain.Flavor, r Ref) (domain.Flavor, error) {
	return pick("flavor", r, flavors, func(f domain.Flavor) object { return object{f.ID, f.Name} })
}

// PickSecurityGroup chooses the security group with the id or the unique name. Neutron ignores the case of names, so
// Nova rejects a name that differs from another one only by that, and not the id.
func PickSecurityGroup(groups []domain.SecurityGroup, r Ref) (domain.SecurityGroup, error) {
	return pick("security group", r, groups, func(g domain.SecurityGroup) object { return object{g.ID, g.Name} })
}

// PickSecurityGroups chooses the security groups of a field, and returns their ids, each once.
func PickSecurityGroups(groups []domain.SecurityGroup, field string, given []string) (ids []string, wrong []error) {
	for n, name := range given {
		found, err := PickSecurityGroup(groups, Ref{Field: fmt.Sprintf("%s[%d]", field, n), Value: name})
		switch {
		case err != nil:
			wrong = append(wrong, err)
		case !slices.Contains(ids, found.ID):
			ids = append(ids, found.ID)
		}
	}
	return ids, wrong
}

// CheckKeyPair checks that one of a user's key pairs has the name.
func CheckKeyPair(pairs []domain.KeyPair, r Ref) error {
	names := make([]string, len(pairs))
	for n, pair := range pairs {
		names[n] = pair.Name
	}
	if slices.Contains(names, r.Value) {
		return nil
	}
	return Absent(r.Field, "key pair", r.Value, names)
}

// FindSecurityGroups is PickSecurityGroups among those of a list, and fails with the first that is wrong. Where the
// cloud's policy withholds the list, the names stay, and Nova looks them up.
func FindSecurityGroups(
	ctx context.Context, list func(context.Context) ([]domain.SecurityGroup, error), field string, given []string,
) ([]string, error) {
	if len(given) == 0 {
		return nil, nil
	}
	groups, err := list(ctx)
	switch code := apperr.CodeOf(err); {
	case code == apperr.Forbidden, code == apperr.NotFound:
		return given, nil
	case err != nil:
		return nil, err
	}
	ids, wrong := PickSecurityGroups(groups, field, given)
	if len(wrong) > 0 {
		return nil, wrong[0]
	}
	return ids, nil
}

// PickServerGroup chooses the server group with the id or the unique name.
func PickServerGroup(groups []domain.ServerGroup, r Ref) (domain.ServerGroup, error) {
	return pick("server group", r, groups, func(g domain.ServerGroup) object { return object{g.ID, g.Name} })
}

// PickVolumeType chooses Cinder's volume type with the id or the name, which is unique.
func PickVolumeType(types []domain.VolumeType, r Ref) (domain.VolumeType, error) {
	return pick("volume type", r, types, func(t domain.VolumeType) object { return object{t.ID, t.Name} })
}

// pick finds the one with that id, else the only one of that name.
func pick[T any](what string, r Ref, all []T, describe func(T) object) (found T, err error) {
	var ids, names []string
	for _, one := range all {
		o := describe(one)
		if o.id == r.Value {
			return one, nil
		}
		names = append(names, o.name)
		if o.name == r.Value {
			found, ids = one, append(ids, o.id)
		}
	}
	switch len(ids) {
	case 0:
		return found, Absent(r.Field, what, r.Value, names)
	case 1:
		return found, nil
	}
	conflict := apperr.InvalidField(r.Field,
		fmt.Sprintf("%d %ss have the name %q: give an id", len(ids), what, r.Value), ids...)
	conflict.Code = apperr.Conflict
	return found, conflict
}

// Absent is the error for a name that nothing of its kind has, with the nearest one that something has.
func Absent(field, what, name string, names []string) error {
	detail := fmt.Sprintf("there is no %s %q", what, name)
	if near := apperr.Nearest(name, names); near != "" {
		detail += fmt.Sprintf("; did you mean %q?", near)
	}
	return apperr.InvalidField(field, detail, Some(slices.Clone(names))...)
}

// Some bounds a list that is shown in an error.
func Some(names []string) []string {
	slices.Sort(names)
	names = slices.Compact(names)
	return names[:min(len(names), 50)]
}

// FindImages tries an id first, because a community image can be used by id without being in any list. Of several
// images of a name those that are not active do not count while another is active: retired images often keep their
// names. When no image has the name it returns all that are active, so that PickImage can say which there are.
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
	if images = activeNamed(images, name); len(images) > 0 {
		return images, nil
	}
	if images, err = cloud.Images(ctx, ""); err != nil {
		return nil, err
	}
	return activeNamed(images, ""), nil
}

// activeNamed keeps the images of the name ("" = any), and only the active ones if it has any. It changes images.
func activeNamed(images []domain.Image, name string) []domain.Image {
	images = slices.DeleteFunc(images, func(i domain.Image) bool { return name != "" && i.Name != name })
	if slices.ContainsFunc(images, IsActive) {
		images = slices.DeleteFunc(images, func(i domain.Image) bool { return !IsActive(i) })
	}
	return images
}

// IsActive reports whether a server can be made from the image.
func IsActive(i domain.Image) bool { return i.Status == "active" }

// PickImage chooses the image with the id or the unique name among those that FindImages has found.
func PickImage(images []domain.Image, r Ref) (domain.Image, error) {
	if len(images) == 1 && strings.EqualFold(images[0].ID, r.Value) { // an id in capitals
		return images[0], nil
	}
	return pick("image", r, images, func(i domain.Image) object { return object{i.ID, i.Name} })
}

// PickNetworks chooses the networks with the ids or unique names, and returns their ids; without refs, the only network
// that the project can boot on.
func PickNetworks(networks []domain.Network, refs []Ref) ([]Ref, error) {
	if len(refs) == 0 {
		return onlyNetwork(networks)
	}
	out := make([]Ref, len(refs))
	for k, r := range refs {
		chosen, err := pick("network", r, networks, func(n domain.Network) object { return object{n.ID, n.Name} })
		if err != nil {
			return nil, err
		}
		out[k] = Ref{Field: r.Field, Value: chosen.ID}
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
	return nil, apperr.InvalidField("networks", "must be given, because the project has several", Some(names)...)
}

// PickExternalNetwork chooses the external network with the id or the unique name; without a name, the only one.
func PickExternalNetwork(external []domain.Network, r Ref) (domain.Network, error) {
	if r.Value == "" && len(external) == 1 {
		return external[0], nil
	}
	if r.Value != "" {
		return pick("external network", r, external, func(n domain.Network) object { return object{n.ID, n.Name} })
	}
	if len(external) == 0 {
		return domain.Network{}, apperr.InvalidField(r.Field, "the project sees no external network")
	}
	names := make([]string, len(external))
	for n := range external {
		names[n] = external[n].Name
	}
	return domain.Network{}, apperr.InvalidField(r.Field, "must be given, because there are several external networks",
		Some(names)...)
}

// PickAllowedImage is PickImage among those images that the connection allows. Any other name is Forbidden, whether
// such an image exists or not.
func PickAllowedImage(images []domain.Image, r Ref, limits domain.ConnectionLimits) (domain.Image, error) {
	image, err := PickImage(limits.AllowedImages(images), r)
	if len(limits.Images) > 0 && apperr.CodeOf(err) == apperr.Invalid {
		err = domain.NotAllowed(r.Field, "image", r.Value, limits.Images)
	}
	return image, err
}

// PickAllowedNetworks is PickNetworks among those networks that the connection allows.
func PickAllowedNetworks(networks []domain.Network, refs []Ref, limits domain.ConnectionLimits) ([]Ref, error) {
	chosen, err := PickNetworks(limits.AllowedNetworks(networks), refs)
	if e := apperr.As(err); err == nil || len(limits.Networks) == 0 || e.Code != apperr.Invalid || len(refs) == 0 {
		return chosen, err
	}
	at := slices.IndexFunc(refs, func(r Ref) bool { return r.Field == apperr.As(err).Fields[0].Field })
	return nil, domain.NotAllowed(refs[at].Field, "network", refs[at].Value, limits.Networks)
}

// FilterImages is FindImages among images that were read before.
func FilterImages(images []domain.Image, name string) []domain.Image {
	if uuid.Validate(name) == nil {
		if n := slices.IndexFunc(images, func(i domain.Image) bool { return i.ID == strings.ToLower(name) }); n >= 0 {
			return images[n : n+1]
		}
	}
	if named := activeNamed(slices.Clone(images), name); len(named) > 0 {
		return named
	}
	return activeNamed(slices.Clone(images), "")
}

// ResourceStore stores what can be ordered through connections.
type ResourceStore interface {
	Resources(ctx context.Context, projectID string, id uuid.UUID) (
		available domain.AvailableResources, age time.Duration, found bool, err error)
	RequestCheck(ctx context.Context, projectID string, id uuid.UUID) (since time.Time, err error)
}

const (
	resourceWait = 12 * time.Second
	resourcePoll = 250 * time.Millisecond
)

// Resources reads what can be ordered through a connection, as far as its limits allow it. If run-connections has not
// read it from the cloud yet, Resources wakes it and waits; found is false when that took too long.
func Resources(
	ctx context.Context, store ResourceStore, wake func(functions ...string), c domain.Connection,
) (available domain.AvailableResources, age time.Duration, found bool, err error) {
	began := time.Now()
	for isRequested := false; ; {
		available, age, found, err = store.Resources(ctx, c.ProjectID, c.ID)
		if err != nil || found {
			return available.Allowed(c.Limits), age, found, err
		}
		if !isRequested {
			if _, err := store.RequestCheck(ctx, c.ProjectID, c.ID); err != nil {
				return available, 0, false, err
			}
			wake("run-connections")
			isRequested = true
		}
		if time.Since(began) > resourceWait || !flow.Sleep(ctx, resourcePoll) {
			return available, 0, false, nil
		}
	}
}
