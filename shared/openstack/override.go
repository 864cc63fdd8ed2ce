package openstack

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"

	"sigs.k8s.io/yaml"
)

// Overrides are endpoints that are used instead of the catalog's, in the region of this process.
type Overrides struct {
	// Nova's URL instead of the one in the catalog, with or without a version; in clouds.yaml
	// `compute_endpoint_override`.
	Compute string `env:"OS_COMPUTE_ENDPOINT_OVERRIDE" json:"compute_endpoint_override"`
	// Neutron's URL, likewise.
	Network string `env:"OS_NETWORK_ENDPOINT_OVERRIDE" json:"network_endpoint_override"`
	// Glance's URL, likewise.
	Image string `env:"OS_IMAGE_ENDPOINT_OVERRIDE" json:"image_endpoint_override"`
	// Placement's URL, likewise.
	Placement string `env:"OS_PLACEMENT_ENDPOINT_OVERRIDE" json:"placement_endpoint_override"`
}

// of is the override of a service, with a / at its end; "" when it is not set.
func (o Overrides) of(service string) string {
	at := map[string]string{"compute": o.Compute, "network": o.Network, "image": o.Image, "placement": o.Placement}[service]
	if at == "" {
		return ""
	}
	return strings.TrimSuffix(at, "/") + "/"
}

// validate names the overrides that are no URLs, each as name says.
func (o Overrides) validate(name func(service string) string) error {
	var wrong []error
	for _, service := range []string{"compute", "network", "image", "placement"} {
		if at := o.of(service); at != "" && !isURL(at) {
			wrong = append(wrong, fmt.Errorf("%s is %q: it must be a URL, such as https://%s.example.com", name(service), at, service))
		}
	}
	return errors.Join(wrong...)
}

func overrideVariable(service string) string {
	return "OS_" + strings.ToUpper(service) + "_ENDPOINT_OVERRIDE"
}

// readOverrides reads those of a cloud of clouds.yaml; gophercloud does not know these keys.
func (c *Config) readOverrides() (Overrides, error) {
	_, file, err := readClouds(c.ConfigFile)
	if err != nil || file == "" {
		return Overrides{}, err
	}
	text, err := os.ReadFile(file) //nolint:gosec // the operator names it
	if err != nil {
		return Overrides{}, err
	}
	var known struct {
		Clouds map[string]Overrides `json:"clouds"`
	}
	if err := yaml.Unmarshal(text, &known); err != nil {
		return Overrides{}, fmt.Errorf("%s: %w", file, err)
	}
	o := known.Clouds[c.Cloud]
	return o, o.validate(func(service string) string {
		return fmt.Sprintf("OS_CLOUD is %q: its %s_endpoint_override", c.Cloud, service)
	})
}

// InRegion is the same session in another region of the catalog; "" is the region of this process. A region that the catalog does
// not have is an Invalid request.
func (s *Session) InRegion(region string) *Session {
	return &Session{
		cloud: s.cloud, token: s.token, scope: s.scope, region: region, project: s.project, userID: s.userID, catalog: s.catalog,
	}
}

// override is the endpoint that is set for a service, which holds in the region of this process only: without
// OS_REGION_NAME that is the only region of the catalog.
func (s *Session) override(all catalog, service string) string {
	own := s.cloud.region
	if regions := all.allRegions(); own == "" && len(regions) == 1 {
		own = regions[0]
	}
	if s.region != "" && s.region != own {
		return ""
	}
	return s.cloud.overrides.of(service)
}

// allRegions lists the regions of a catalog.
func (c catalog) allRegions() []string {
	var found []string
	for _, entry := range c {
		for _, e := range entry.Endpoints {
			if e.RegionID != "" && !slices.Contains(found, e.RegionID) {
				found = append(found, e.RegionID)
			}
		}
	}
	slices.Sort(found)
	return found
}
