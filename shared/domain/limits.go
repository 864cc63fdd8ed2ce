package domain

import (
	"fmt"
	"slices"
	"strings"

	"github.com/google/uuid"

	"github.com/cloudfn/cloudfn/shared/apperr"
)

// ConnectionLimits are what may be used through a connection, besides its actions and its quota. What is empty is not limited.
type ConnectionLimits struct {
	Images   []string `json:"images,omitempty"`   // ids
	Networks []string `json:"networks,omitempty"` // ids
	Flavors  []string `json:"flavors,omitempty"`  // ids or names
	Regions  []string `json:"regions,omitempty"`  // names
}

// MaxLimit is how many values one limit of a connection may have.
const MaxLimit = 100

// IsZero says whether nothing is limited.
func (l ConnectionLimits) IsZero() bool {
	return len(l.Images)+len(l.Networks)+len(l.Flavors)+len(l.Regions) == 0
}

// CheckImage refuses an image, by its id, that may not be used.
func (l ConnectionLimits) CheckImage(field, id string) error {
	return checkLimit(field, "image", id, l.Images, strings.ToLower(id))
}

// CheckNetwork refuses a network, by its id, that may not be used.
func (l ConnectionLimits) CheckNetwork(field, id string) error {
	return checkLimit(field, "network", id, l.Networks, strings.ToLower(id))
}

// CheckFlavor refuses a flavor that may not be used.
func (l ConnectionLimits) CheckFlavor(field, id, name string) error {
	if name == "" {
		name = id
	}
	return checkLimit(field, "flavor", name, l.Flavors, id, name)
}

// CheckRegion refuses a region that may not be used; "" is one that is not known.
func (l ConnectionLimits) CheckRegion(field, region string) error {
	return checkLimit(field, "region", region, l.Regions, region)
}

// CheckSpec refuses what a server is to be made of and may not be. An image that is still a name is not checked: nobody knows yet which it is.
func (l ConnectionLimits) CheckSpec(s LaunchSpec) error {
	if err := l.CheckFlavor("flavor", s.FlavorID, s.FlavorName); err != nil {
		return err
	}
	image := s.ImageID
	if image == "" && uuid.Validate(s.ImageRef) == nil {
		image = s.ImageRef
	}
	if image != "" {
		if err := l.CheckImage("image", image); err != nil {
			return err
		}
	}
	for n, id := range s.NetworkIDs {
		if err := l.CheckNetwork(fmt.Sprintf("networks[%d]", n), id); err != nil {
			return err
		}
	}
	return nil
}

// checkLimit refuses a value of which none of the names is allowed.
func checkLimit(field, what, value string, allowed []string, names ...string) error {
	if len(allowed) == 0 || slices.ContainsFunc(names, func(name string) bool { return name != "" && slices.Contains(allowed, name) }) {
		return nil
	}
	return NotAllowed(field, what, value, allowed)
}

// NotAllowed refuses a value that the limits of a connection do not have.
func NotAllowed(field, what, value string, allowed []string) error {
	only := strings.Join(allowed[:min(len(allowed), maxAllowed)], ", ")
	if len(allowed) > maxAllowed {
		only += ", ..."
	}
	e := apperr.InvalidField(field, fmt.Sprintf("the connection does not allow the %s %.100q, only %s", what, value, only), allowed...)
	e.Code = apperr.Forbidden
	return e
}

// maxAllowed is how many values the text of an error has, which may be all that is stored of it.
const maxAllowed = 10

// AllowedFlavors are those of the flavors that may be used.
func (l ConnectionLimits) AllowedFlavors(flavors []Flavor) []Flavor {
	return allowed(flavors, func(f Flavor) error { return l.CheckFlavor("flavor", f.ID, f.Name) })
}

// AllowedImages are those of the images that may be used.
func (l ConnectionLimits) AllowedImages(images []Image) []Image {
	return allowed(images, func(i Image) error { return l.CheckImage("image", i.ID) })
}

// AllowedNetworks are those of the networks that may be used.
func (l ConnectionLimits) AllowedNetworks(networks []Network) []Network {
	return allowed(networks, func(n Network) error { return l.CheckNetwork("networks", n.ID) })
}

// allowed keeps nil, which is a list that is not known, apart from an empty one.
func allowed[T any](list []T, check func(T) error) []T {
	return slices.DeleteFunc(slices.Clone(list), func(one T) bool { return check(one) != nil })
}

// UsableByName is who may act through a connection and was given by name, when that was looked up.
type UsableByName struct {
	ID      string `json:"id"`
	User    string `json:"user,omitempty"`
	Project string `json:"project,omitempty"`
	Domain  string `json:"domain,omitempty"` // as it was given; "" is that of the project that delegates
}
