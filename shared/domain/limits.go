package domain

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"

	"github.com/cloudfn/cloudfn/shared/apperr"
)

// ConnectionLimits restrict what may be used through a connection, besides its actions and quota. An empty list does
// not restrict.
type ConnectionLimits struct {
	Images   []string `json:"images,omitempty"`   // ids
	Networks []string `json:"networks,omitempty"` // ids
	Flavors  []string `json:"flavors,omitempty"`  // ids or names
	Regions  []string `json:"regions,omitempty"`  // names
}

// IsZero reports whether nothing is limited.
func (l ConnectionLimits) IsZero() bool {
	return len(l.Images)+len(l.Networks)+len(l.Flavors)+len(l.Regions) == 0
}

// limitNames are the limits' names in the API.
var limitNames = [...]string{"images", "networks", "flavors", "regions"}

// lists are the limits in the order of limitNames.
func (l *ConnectionLimits) lists() [len(limitNames)]*[]string {
	return [...]*[]string{&l.Images, &l.Networks, &l.Flavors, &l.Regions}
}

func (l ConnectionLimits) equal(other ConnectionLimits) bool {
	for n, list := range l.lists() {
		if !slices.Equal(*list, *other.lists()[n]) {
			return false
		}
	}
	return true
}

// widens reports whether the other limits allow what these do not.
func (l ConnectionLimits) widens(to ConnectionLimits) bool {
	_, err := l.Narrow(to, true)
	return err != nil
}

// Narrow fails if other limits allow more than these. Empty lists of theirs are filled from here, or with isWhole count
// as unrestricted.
func (l ConnectionLimits) Narrow(to ConnectionLimits, isWhole bool) (ConnectionLimits, error) {
	given := to.lists()
	for at, requested := range l.lists() {
		name, into := limitNames[at], given[at]
		if len(*into) == 0 && !isWhole {
			*into = *requested
		}
		if len(*requested) == 0 {
			continue
		}
		if len(*into) == 0 {
			return to, apperr.InvalidField("limits."+name, "is not limited: must have some of these", *requested...)
		}
		for n, value := range *into {
			if !slices.Contains(*requested, value) {
				return to, apperr.InvalidField(fmt.Sprintf("limits.%s[%d]", name, n),
					fmt.Sprintf("%.100q was not requested", value), *requested...)
			}
		}
	}
	return to, nil
}

// CheckImage fails if the image may not be used.
func (l ConnectionLimits) CheckImage(field, id string) error {
	return checkLimit(field, "image", id, l.Images, strings.ToLower(id))
}

// CheckNetwork fails if the network may not be used.
func (l ConnectionLimits) CheckNetwork(field, id string) error {
	return checkLimit(field, "network", id, l.Networks, strings.ToLower(id))
}

// CheckFlavor fails if the flavor may not be used.
func (l ConnectionLimits) CheckFlavor(field, id, name string) error {
	if name == "" {
		name = id
	}
	return checkLimit(field, "flavor", name, l.Flavors, id, name)
}

// CheckSize fails if the spec's flavor may not be used. A reservation's copy may be if its base may.
func (l ConnectionLimits) CheckSize(field string, s LaunchSpec) error {
	if s.BaseFlavorID != "" {
		return l.CheckFlavor(field, s.BaseFlavorID, s.BaseFlavorName)
	}
	return l.CheckFlavor(field, s.FlavorID, s.FlavorName)
}

// CheckRegion fails if the region may not be used; "" is an unknown one.
func (l ConnectionLimits) CheckRegion(field, region string) error {
	return checkLimit(field, "region", region, l.Regions, region)
}

// CheckSpec fails if a part of the spec may not be used. An image that is still a name is not checked.
func (l ConnectionLimits) CheckSpec(s LaunchSpec) error {
	if err := l.CheckSize("flavor", s); err != nil {
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
	if s.FloatingIP != nil && (len(s.NetworkIDs) > 0 || uuid.Validate(s.FloatingIP.NetworkID) == nil) { // else a name
		return l.CheckNetwork("floating_ip", s.FloatingIP.NetworkID)
	}
	return nil
}

// checkLimit fails unless one of the names is allowed.
func checkLimit(field, what, value string, allowed []string, names ...string) error {
	if len(allowed) == 0 || slices.ContainsFunc(names, func(name string) bool {
		return name != "" && slices.Contains(allowed, name)
	}) {
		return nil
	}
	return NotAllowed(field, what, value, allowed)
}

// NotAllowed returns the error for a value outside the limits of a connection.
func NotAllowed(field, what, value string, allowed []string) error {
	only := strings.Join(allowed[:min(len(allowed), maxAllowed)], ", ")
	if len(allowed) > maxAllowed {
		only += ", ..."
	}
	e := apperr.InvalidField(field, fmt.Sprintf("the connection does not allow the %s %.100q, only %s", what, value,
		only), allowed...)
	e.Code = apperr.Forbidden
	return e
}

// maxAllowed is the most values in the text of an error.
const maxAllowed = 10

// AllowedFlavors returns the flavors that may be used.
func (l ConnectionLimits) AllowedFlavors(flavors []Flavor) []Flavor {
	return allowed(flavors, func(f Flavor) error { return l.CheckFlavor("flavor", f.ID, f.Name) })
}

// AllowedImages returns the images that may be used.
func (l ConnectionLimits) AllowedImages(images []Image) []Image {
	return allowed(images, func(i Image) error { return l.CheckImage("image", i.ID) })
}

// AllowedNetworks returns the networks that may be used.
func (l ConnectionLimits) AllowedNetworks(networks []Network) []Network {
	return allowed(networks, func(n Network) error { return l.CheckNetwork("networks", n.ID) })
}

// allowed filters a list. A nil list is unknown, and stays nil.
func allowed[T any](list []T, check func(T) error) []T {
	return slices.DeleteFunc(slices.Clone(list), func(one T) bool { return check(one) != nil })
}

// UsableByName is the name of an entry of UsableBy, when it was resolved.
type UsableByName struct {
	ID      string `json:"id"`
	User    string `json:"user,omitempty"`
	Project string `json:"project,omitempty"`
	Domain  string `json:"domain,omitempty"` // as given; "" = of the delegating project
}

// AvailableResources is what can be ordered through a connection, as its delegation read it at AsOf. A nil list could
// not be read.
type AvailableResources struct {
	AsOf      time.Time          `json:"-"`
	Flavors   []Flavor           `json:"flavors"`
	Images    []Image            `json:"images"`
	Networks  []Network          `json:"networks"`
	Quota     *Quota             `json:"quota"`     // of the connection's project
	Truncated []string           `json:"truncated"` // the kinds whose lists are cut
	Problems  map[string]Problem `json:"problems"`  // why a kind could not be read, by kind
}

// The kinds of AvailableResources.
const (
	ResourceFlavors  = "flavors"
	ResourceImages   = "images"
	ResourceNetworks = "networks"
	ResourceQuota    = "quota"
)

// ResourceKinds lists the kinds that are read through a connection.
func ResourceKinds() []string {
	return []string{ResourceFlavors, ResourceImages, ResourceNetworks, ResourceQuota}
}

const (
	// MaxResources is the most entries of one kind.
	MaxResources = 1000
	// MaxResourceBytes is the largest size of all kinds together, as JSON.
	MaxResourceBytes = 1 << 20
	// ResourcesStale is the age at which the resources are reported as old: two checks of the connection did not renew
	// them.
	ResourcesStale = 3 * CheckEvery
)

// Bound removes what the limits do not allow, and cuts lists that are too long. Truncated has their kinds.
func (s *AvailableResources) Bound(limits ConnectionLimits) {
	s.Flavors, s.Images, s.Networks = limits.AllowedFlavors(s.Flavors), limits.AllowedImages(s.Images),
		limits.AllowedNetworks(s.Networks)
	cut := map[string]bool{}
	for most := MaxResources; ; most /= 2 {
		s.Flavors, cut[ResourceFlavors] = first(s.Flavors, most, cut[ResourceFlavors])
		s.Images, cut[ResourceImages] = first(s.Images, most, cut[ResourceImages])
		s.Networks, cut[ResourceNetworks] = first(s.Networks, most, cut[ResourceNetworks])
		if text, err := json.Marshal(s); err != nil || len(text) <= MaxResourceBytes || most == 0 {
			break
		}
	}
	maps.DeleteFunc(cut, func(_ string, is bool) bool { return !is })
	s.Truncated = slices.Sorted(maps.Keys(cut))
}

func first[T any](list []T, most int, cut bool) ([]T, bool) {
	if len(list) <= most {
		return list, cut
	}
	return list[:most], true
}

// Allowed returns the resources that the limits allow.
func (s AvailableResources) Allowed(limits ConnectionLimits) AvailableResources {
	s.Flavors, s.Images, s.Networks = limits.AllowedFlavors(s.Flavors), limits.AllowedImages(s.Images),
		limits.AllowedNetworks(s.Networks)
	return s
}

// Has reports whether the kind could be read.
func (s AvailableResources) Has(kind string) bool {
	switch kind {
	case ResourceFlavors:
		return s.Flavors != nil
	case ResourceImages:
		return s.Images != nil
	case ResourceNetworks:
		return s.Networks != nil
	}
	return s.Quota != nil
}

// IsCut reports whether the list of the kind is cut.
func (s AvailableResources) IsCut(kind string) bool { return slices.Contains(s.Truncated, kind) }
