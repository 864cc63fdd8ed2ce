package connections

import (
	"fmt"
	"slices"
	"strings"

	"github.com/google/uuid"

	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/lookup"
)

// limitsRequest is `limits` of the body. A list that is absent is no limit, and an empty one would allow nothing.
type limitsRequest struct {
	Images   *[]string `json:"images"`
	Networks *[]string `json:"networks"`
	Flavors  *[]string `json:"flavors"`
	Regions  *[]string `json:"regions"`
}

// limit checks the limits as far as nobody has to be asked.
func (c creation) limit(w *wish) error {
	if c.Limits == nil {
		return nil
	}
	for _, l := range []struct {
		name  string
		given *[]string
		into  *[]string
		id    bool
	}{
		{"images", c.Limits.Images, &w.Limits.Images, true},
		{"networks", c.Limits.Networks, &w.Limits.Networks, true},
		{"flavors", c.Limits.Flavors, &w.Limits.Flavors, false},
		{"regions", c.Limits.Regions, &w.Limits.Regions, false},
	} {
		if l.given == nil {
			continue
		}
		values, err := limitValues("limits."+l.name, *l.given, l.id)
		if err != nil {
			return err
		}
		*l.into = values
	}
	return nil
}

// limitValues checks the values of one limit. A repeated one counts once; ids are UUIDs, in lower case.
func limitValues(field string, given []string, isID bool) (values []string, err error) {
	if len(given) == 0 || len(given) > domain.MaxLimit {
		return nil, apperr.InvalidField(field, fmt.Sprintf("has %d values: must have 1 to %d; leave it out if it is not to be limited", len(given), domain.MaxLimit))
	}
	for n, value := range given {
		at := fmt.Sprintf("%s[%d]", field, n)
		if isID {
			id, err := parseID(value)
			if err != nil || id == uuid.Nil {
				return nil, apperr.Malformed(at, "an id, a UUID", value)
			}
			value = id.String()
		} else if err := plain(at, value); err != nil {
			return nil, err
		}
		if value == "" {
			return nil, apperr.InvalidField(at, "is empty: must be an id or a name")
		}
		if !slices.Contains(values, value) {
			values = append(values, value)
		}
	}
	return values, nil
}

// checkLimits holds the limits against what the connection has: a flavor that its cloud does not have is a mistake, and so is a region in
// which it does not act. region is where it acts.
func checkLimits(w wish, region string) error {
	for n, flavor := range w.Limits.Flavors {
		if _, err := lookup.PickFlavor(w.Flavors, lookup.Ref{Field: fmt.Sprintf("limits.flavors[%d]", n), Value: flavor}); err != nil {
			return err
		}
	}
	switch {
	case len(w.Limits.Regions) == 0 || slices.Contains(w.Limits.Regions, region):
		return nil
	case region == "":
		return apperr.InvalidField("limits.regions", "cannot be kept, because the name of the connection's region is not known here: "+
			"give region, or leave limits.regions out: a connection acts in one region only")
	}
	return apperr.InvalidField("limits.regions", fmt.Sprintf("does not have %q, the region that the connection acts in, but %s",
		region, strings.Join(w.Limits.Regions, ", ")), region)
}

// regionOf is where the connection acts; "" when that is not known.
func (s service) regionOf(w wish) string {
	if w.AuthURL == "" && w.Region == "" {
		return s.cloud.Region()
	}
	return w.Region
}
