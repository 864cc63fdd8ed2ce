package connections

import (
	"fmt"
	"slices"
	"strings"

	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/lookup"
)

// checkLimits checks that the connection's cloud has the flavors, and that the connection acts in one of the regions.
// region is where it acts.
func checkLimits(d draft, region string) error {
	for n, flavor := range d.Limits.Flavors {
		ref := lookup.Ref{Field: fmt.Sprintf("limits.flavors[%d]", n), Value: flavor}
		if _, err := lookup.PickFlavor(d.Flavors, ref); err != nil {
			return err
		}
	}
	switch {
	case len(d.Limits.Regions) == 0 || slices.Contains(d.Limits.Regions, region):
		return nil
	case region == "":
		return apperr.InvalidField("limits.regions", "cannot be checked, because the connection's region is unknown: "+
			"give region, or leave limits.regions out")
	}
	return apperr.InvalidField("limits.regions",
		fmt.Sprintf("must have %q, the region that the connection acts in, and has %s",
			region, strings.Join(d.Limits.Regions, ", ")), region)
}

// regionOf is where the connection acts; empty when that is unknown.
func (s service) regionOf(d draft) string {
	if d.AuthURL == "" && d.Region == "" {
		return s.cloud.Region()
	}
	return d.Region
}
