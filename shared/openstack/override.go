package openstack

import (
	"cmp"
	"errors"
	"fmt"
	"strings"
)

// Overrides are endpoints that are used instead of the catalog's, in the region of this process.
type Overrides struct {
	// Nova's URL instead of the one in the catalog, with or without a version; in clouds.yaml
	// `compute_endpoint_override`.
	Compute string `env:"OS_COMPUTE_ENDPOINT_OVERRIDE"`
	// Neutron's URL, likewise.
	Network string `env:"OS_NETWORK_ENDPOINT_OVERRIDE"`
	// Glance's URL, likewise.
	Image string `env:"OS_IMAGE_ENDPOINT_OVERRIDE"`
	// Placement's URL, likewise.
	Placement string `env:"OS_PLACEMENT_ENDPOINT_OVERRIDE"`
	// Cinder's URL, likewise, without the id of a project.
	BlockStorage string `env:"OS_BLOCK_STORAGE_ENDPOINT_OVERRIDE"`
	// Octavia's URL, likewise.
	LoadBalancer string `env:"OS_LOAD_BALANCER_ENDPOINT_OVERRIDE"`
	// Barbican's URL, likewise.
	KeyManager string `env:"OS_KEY_MANAGER_ENDPOINT_OVERRIDE"`
}

// overridden are the services whose endpoints can be overridden, by the types that clientOf asks for.
var overridden = []string{"compute", "network", "image", "placement", "volumev3", "load-balancer", "key-manager"}

// of is the override of a service, with a / at its end; "" when it is not set.
func (o Overrides) of(service string) string {
	at := map[string]string{
		"compute": o.Compute, "network": o.Network, "image": o.Image, "placement": o.Placement,
		"volumev3": o.BlockStorage, "load-balancer": o.LoadBalancer, "key-manager": o.KeyManager,
	}[service]
	if at == "" {
		return ""
	}
	return strings.TrimSuffix(at, "/") + "/"
}

// validate names the overrides that are no URLs, each as name says of its key.
func (o Overrides) validate(name func(key string) string) error {
	var wrong []error
	for _, service := range overridden {
		if at := o.of(service); at != "" && !isURL(at) {
			wrong = append(wrong, fmt.Errorf("%s is %q: it must be a URL, such as https://%s.example.com",
				name(overrideKey(service)), at, projectName(service)))
		}
	}
	return errors.Join(wrong...)
}

func overrideVariable(service string) string {
	return "OS_" + strings.ToUpper(overrideKey(service))
}

// overrideKey is the key in clouds.yaml. Cinder's is that of its official type.
func overrideKey(service string) string {
	if service == "volumev3" {
		service = "block-storage"
	}
	return strings.ReplaceAll(service, "-", "_") + "_endpoint_override"
}

// endpointAliases are Cinder's types, by whose keys openstacksdk finds its endpoint, too.
var endpointAliases = map[string][]string{"volumev3": {"volumev3", "volumev2", "volume", "block_store"}}

// override is the endpoint of a service that clouds.yaml or the environment gives.
func (e entry) override(service string) string {
	keys := []string{overrideKey(service)}
	for _, alias := range endpointAliases[service] {
		keys = append(keys, alias+"_endpoint_override")
	}
	for _, key := range keys { // the older name
		keys = append(keys, strings.TrimSuffix(key, "_override"))
	}
	return e.expand(e.text(keys...))
}

func (e entry) overrides() Overrides {
	return Overrides{
		Compute: e.override("compute"), Network: e.override("network"), Image: e.override("image"),
		Placement: e.override("placement"), BlockStorage: e.override("volumev3"),
		LoadBalancer: e.override("load-balancer"), KeyManager: e.override("key-manager"),
	}
}

// InRegion is the same session in another region of the catalog; "" is the region of this process. A region that the
// catalog does not have is an Invalid request.
func (s *Session) InRegion(region string) *Session {
	return &Session{
		cloud: s.cloud, token: s.token, scope: s.scope, region: region, project: s.project, userID: s.userID,
		catalog: s.catalog, actsAs: s.actsAs,
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
	return s.overrideOf(service)
}

// overrideOf is the endpoint that is set for a service. Cinder's gets its version and the project, which the catalog's
// usually has: a Cinder before its microversion 3.67 cannot do without it.
func (s *Session) overrideOf(service string) string {
	at := s.cloud.overrides.of(service)
	if at == "" || service != "volumev3" {
		return at
	}
	return s.cinderEndpoint(at)
}

// cinderEndpoint adds the version and the project to an endpoint of Cinder that lacks them.
func (s *Session) cinderEndpoint(at string) string {
	if _, version := splitVersion(at); version == "" {
		at += "v3/"
	}
	project := s.project
	if s.catalog == nil { // it was opened with a caller's token, and not by a login
		project = cmp.Or(project, s.scope)
	}
	if project != "" && strings.HasSuffix(at, "/v3/") {
		at += project + "/"
	}
	return at
}
