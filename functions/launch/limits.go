package launch

import (
	"github.com/google/uuid"

	"github.com/cloudfn/cloudfn/shared/domain"
)

// withinLimits gives what the connection's limits do not allow, as far as the request says it by id: names of images and networks are looked
// up by run-connections, which holds what they mean against the limits, too.
func (s service) withinLimits(c domain.Connection, w wish, specs []domain.LaunchSpec) []error {
	var errs []error
	note := func(err error) {
		if err != nil {
			errs = append(errs, err)
		}
	}
	note(c.Limits.CheckRegion("connection_id", s.regionOf(c)))
	for n, i := range w.items {
		if specs[n].FlavorID != "" {
			note(c.Limits.CheckFlavor(i.sizeField(), specs[n].FlavorID, specs[n].FlavorName))
		}
		if isID(i.image.Value) {
			note(c.Limits.CheckImage(i.image.Field, i.image.Value))
		}
		for _, network := range i.networks {
			if isID(network.Value) {
				note(c.Limits.CheckNetwork(network.Field, network.Value))
			}
		}
	}
	return distinct(errs)
}

// regionOf is where a connection acts; "" when that is not known.
func (s service) regionOf(c domain.Connection) string {
	if c.Remote() {
		return c.Region
	}
	return s.cloud.Region()
}

// isID says whether a text has the form of an id of an image or a network.
func isID(text string) bool { return len(text) == 36 && uuid.Validate(text) == nil }
