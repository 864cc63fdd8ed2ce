package domain

import (
	"encoding/json"
	"maps"
	"slices"
	"time"
)

// SeenResources is what can be ordered through a connection, as its delegation saw it at AsOf. A nil list could not be
// read.
type SeenResources struct {
	AsOf      time.Time          `json:"-"`
	Flavors   []Flavor           `json:"flavors"`
	Images    []Image            `json:"images"`
	Networks  []Network          `json:"networks"`
	Quota     *Quota             `json:"quota"`     // of the connection's project
	Truncated []string           `json:"truncated"` // the kinds whose lists are cut
	Problems  map[string]Problem `json:"problems"`  // why a kind could not be read, by kind
}

// The kinds of SeenResources.
const (
	SeenFlavors  = "flavors"
	SeenImages   = "images"
	SeenNetworks = "networks"
	SeenQuota    = "quota"
)

// SeenKinds lists the kinds that are read through a connection.
func SeenKinds() []string { return []string{SeenFlavors, SeenImages, SeenNetworks, SeenQuota} }

const (
	// MaxSeen is the most entries of one kind.
	MaxSeen = 1000
	// MaxSeenBytes is the largest size of all kinds together, as JSON.
	MaxSeenBytes = 1 << 20
	// SeenStale is the age at which the resources are reported as old: two checks of the connection did not renew them.
	SeenStale = 3 * CheckEvery
)

// Bound removes what the limits do not allow, and cuts lists that are too long. Truncated has their kinds.
func (s *SeenResources) Bound(limits ConnectionLimits) {
	s.Flavors, s.Images, s.Networks = limits.AllowedFlavors(s.Flavors), limits.AllowedImages(s.Images),
		limits.AllowedNetworks(s.Networks)
	cut := map[string]bool{}
	for most := MaxSeen; ; most /= 2 {
		s.Flavors, cut[SeenFlavors] = first(s.Flavors, most, cut[SeenFlavors])
		s.Images, cut[SeenImages] = first(s.Images, most, cut[SeenImages])
		s.Networks, cut[SeenNetworks] = first(s.Networks, most, cut[SeenNetworks])
		if text, err := json.Marshal(s); err != nil || len(text) <= MaxSeenBytes || most == 0 {
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
func (s SeenResources) Allowed(limits ConnectionLimits) SeenResources {
	s.Flavors, s.Images, s.Networks = limits.AllowedFlavors(s.Flavors), limits.AllowedImages(s.Images),
		limits.AllowedNetworks(s.Networks)
	return s
}

// Has reports whether the kind could be read.
func (s SeenResources) Has(kind string) bool {
	switch kind {
	case SeenFlavors:
		return s.Flavors != nil
	case SeenImages:
		return s.Images != nil
	case SeenNetworks:
		return s.Networks != nil
	}
	return s.Quota != nil
}

// IsCut reports whether the list of the kind is cut.
func (s SeenResources) IsCut(kind string) bool { return slices.Contains(s.Truncated, kind) }
