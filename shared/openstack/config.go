package openstack

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/cloudfn/cloudfn/shared/domain"
)

// Config says where Keystone is and how to choose from its catalog. It holds no credentials.
type Config struct {
	// Cloud name in clouds.yaml; the other `OS_*` variables are then ignored, but `OS_PASSWORD` when the file has none.
	Cloud string `env:"OS_CLOUD"`
	// Path of clouds.yaml, if it is not in a standard place.
	ConfigFile string `env:"OS_CLIENT_CONFIG_FILE"`
	// Path of secure.yaml, if it is neither beside clouds.yaml nor in a standard place.
	SecureFile string `env:"OS_CLIENT_SECURE_FILE"`
	// Keystone, such as `https://keystone.example.com/v3`.
	AuthURL string `env:"OS_AUTH_URL"`
	// Region; required when the catalog has several.
	Region string `env:"OS_REGION_NAME"`
	// Endpoint interface of this cloud: public, internal or admin.
	Interface string `env:"OS_INTERFACE, default=public"`
	// The older name of `OS_INTERFACE`, which takes precedence.
	EndpointType string `env:"OS_ENDPOINT_TYPE"`
	// File with the certificate authority of the cloud.
	CACert string `env:"OS_CACERT"`
	// File with the client certificate that the cloud requires, and its key if `OS_KEY` is empty.
	Cert string `env:"OS_CERT"`
	// File with the key of that certificate.
	Key string `env:"OS_KEY"`
	// `true` accepts every certificate of the cloud: for tests only.
	Insecure string `env:"OS_INSECURE"`
	Overrides
}

// Validate refuses a Config that cannot work.
func (c Config) Validate() error {
	if c.Cloud != "" { // it takes files to know
		return nil
	}
	set, err := c.read(UserConfig{})
	if err != nil {
		return err
	}
	return set.validate()
}

// Credentials are a user's or a service account's. Of the functions only those of events have them.
type Credentials struct {
	// How to log in: password or v3applicationcredential; when empty, what the other variables allow.
	AuthType string `env:"OS_AUTH_TYPE"`
	// Service account, by id. That of run-connections is another one, which needs a password, no role and no project.
	UserID string `env:"OS_USER_ID"`
	// The same user by name, with its domain.
	Username string `env:"OS_USERNAME"`
	// Password of the service account.
	Password domain.Secret `env:"OS_PASSWORD"`
	// Domain of the service account, by name; when it is not named, `default`.
	UserDomain string `env:"OS_USER_DOMAIN_NAME"`
	// The service account's domain, by id.
	UserDomID string `env:"OS_USER_DOMAIN_ID"`
	// Project to log in to, by name.
	Project string `env:"OS_PROJECT_NAME"`
	// The project to log in to, by id.
	ProjectID string `env:"OS_PROJECT_ID"`
	// Domain of that project, by name; when it is not named, the user's.
	ProjectDom string `env:"OS_PROJECT_DOMAIN_NAME"`
	// That project's domain, by id.
	ProjectDoID string `env:"OS_PROJECT_DOMAIN_ID"`
	// Domain by name of the user and the project, where theirs are not named; without a project what to log in to.
	DomainName string `env:"OS_DOMAIN_NAME"`
	// That domain, by id.
	DomainID string `env:"OS_DOMAIN_ID"`
	// `3`, as in openrc files: domains that are not named are then `default`.
	IdentityVersion string `env:"OS_IDENTITY_API_VERSION"`
	// The older name of `OS_PROJECT_NAME`.
	Tenant string `env:"OS_TENANT_NAME"`
	// The older name of `OS_PROJECT_ID`.
	TenantID string `env:"OS_TENANT_ID"`
	// Application credential to log in with instead; it counts its own project only.
	AppCredID string `env:"OS_APPLICATION_CREDENTIAL_ID"`
	// The application credential by name, with its user.
	AppCredName string `env:"OS_APPLICATION_CREDENTIAL_NAME"`
	// Secret of that application credential.
	AppCred domain.Secret `env:"OS_APPLICATION_CREDENTIAL_SECRET"`
	// Trust to log in to.
	Trust string `env:"OS_TRUST_ID"`
	// `all` logs in to the whole system.
	System string `env:"OS_SYSTEM_SCOPE"`
}

// HasSecret reports whether there is anything to log in with.
func (c Credentials) HasSecret() bool { return c.Password != "" || c.AppCred != "" }

// environment is the entry of the OS_* variables: OS_AUTH_URL is auth_url.
func environment(c UserConfig) entry {
	e := entry{}
	e.add(reflect.ValueOf(c))
	return e
}

func (e entry) add(s reflect.Value) {
	for i := range s.NumField() {
		if s.Field(i).Kind() == reflect.Struct {
			e.add(s.Field(i))
			continue
		}
		name, _, _ := strings.Cut(s.Type().Field(i).Tag.Get("env"), ",")
		if value := s.Field(i).String(); value != "" {
			e[strings.ToLower(strings.TrimPrefix(name, "OS_"))] = value
		}
	}
}

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

// overridden are the services whose endpoints can be overridden, by the types that clientOf uses.
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

// entry is what clouds.yaml says of a cloud, or what the environment says: by openstacksdk's keys. A value is a string,
// a list, or a map[string]any such as auth.
type entry map[string]any

// knownClouds is a clouds.yaml together with its secure.yaml.
type knownClouds struct {
	path   string // "" = no clouds.yaml
	clouds map[string]any
}

// suffixes are the names that openstacksdk reads. JSON is YAML, too.
var suffixes = []string{".yaml", ".yml", ".json"}

// configDirs are where openstacksdk looks for its files.
func configDirs() []string {
	dirs := []string{""}
	if xdg := os.Getenv("XDG_CONFIG_HOME"); xdg != "" {
		dirs = append(dirs, filepath.Join(xdg, "openstack"))
	}
	if home, err := os.UserHomeDir(); err == nil {
		dirs = append(dirs, filepath.Join(home, ".config", "openstack"))
	}
	return append(dirs, "/etc/xdg/openstack", "/etc/openstack")
}

// readFirst reads the first of these files that there is: those that are named, and then name in each directory. A file
// that cannot be read is passed over, and reported when there is no other.
func readFirst(named []string, name string) (path string, content map[string]any, err error) {
	files := slices.DeleteFunc(named, func(file string) bool { return file == "" })
	for _, dir := range configDirs() {
		for _, suffix := range suffixes {
			files = append(files, filepath.Join(dir, name+suffix))
		}
	}
	var unreadable error
	for _, file := range files {
		text, err := os.ReadFile(file) //nolint:gosec // the user names it
		switch {
		case errors.Is(err, fs.ErrNotExist):
		case err != nil:
			unreadable = cmp.Or(unreadable, err)
		default:
			content, err := parseYAML(text)
			if err != nil {
				return file, nil, fmt.Errorf("%s: %w", file, err)
			}
			return file, content, nil
		}
	}
	return "", nil, unreadable
}

// parseYAML reads a file whose scalars are all texts: a password of digits is no number.
func parseYAML(text []byte) (content map[string]any, err error) {
	var root yaml.Node
	if err := yaml.Unmarshal(text, &root); err != nil || root.IsZero() {
		return nil, err
	}
	asTexts(&root)
	if err := root.Decode(&content); err != nil {
		return nil, err
	}
	return content, nil
}

func asTexts(n *yaml.Node) {
	if n.Kind == yaml.ScalarNode && slices.Contains([]string{"!!int", "!!float", "!!bool", "!!timestamp"}, n.Tag) {
		n.Tag = "!!str"
	}
	for _, inner := range n.Content {
		asTexts(inner)
	}
}

// readClouds reads clouds.yaml and secure.yaml, which goes before it. It finds secure.yaml also beside clouds.yaml.
func (c Config) readClouds() (knownClouds, error) {
	path, content, err := readFirst([]string{c.ConfigFile}, "clouds")
	if err != nil {
		return knownClouds{path: path}, err
	}
	beside := ""
	if path != "" {
		beside = filepath.Join(filepath.Dir(path), "secure.yaml")
	}
	_, secrets, err := readFirst([]string{c.SecureFile, beside}, "secure")
	if err != nil {
		return knownClouds{path: path}, err
	}
	known, _ := merged(content, secrets)["clouds"].(map[string]any)
	return knownClouds{path, known}, nil
}

// CloudNames are the clouds that clouds.yaml knows, and the file's name; none when there is no such file.
func CloudNames(c Config) (names []string, file string, err error) {
	found, err := c.readClouds()
	return slices.Sorted(maps.Keys(found.clouds)), found.path, err
}

// merged returns base with what more says. It merges maps within, and passes over what is null.
func merged(base, more map[string]any) map[string]any {
	out := maps.Clone(base)
	if out == nil {
		out = map[string]any{}
	}
	for key, value := range more {
		inner, isMap := value.(map[string]any)
		old, _ := out[key].(map[string]any)
		switch {
		case isMap:
			out[key] = merged(old, inner)
		case value != nil:
			out[key] = value
		}
	}
	return out
}

// readCloud reads the cloud c.Cloud: its profile, then its own entry, then the values of its region.
func (c Config) readCloud() (e entry, warnings []string, err error) {
	found, err := c.readClouds()
	if err != nil {
		return nil, nil, err
	}
	if found.path == "" && found.clouds == nil {
		return nil, nil, errors.New("there is no clouds.yaml: it is looked for in this directory, " +
			"in ~/.config/openstack and in /etc/openstack, or where OS_CLIENT_CONFIG_FILE says")
	}
	own, ok := found.clouds[c.Cloud].(map[string]any)
	if _, known := found.clouds[c.Cloud]; !ok && known {
		own, ok = map[string]any{}, true
	}
	if !ok {
		return nil, nil, fmt.Errorf("%s has no such cloud; expected one of %s", cmp.Or(found.path, "secure.yaml"),
			strings.Join(slices.Sorted(maps.Keys(found.clouds)), ", "))
	}
	own = normalized(own)
	base, warning, err := readProfile(cmp.Or(entry(own).text("profile"), entry(own).text("cloud")))
	if err != nil {
		return nil, nil, err
	}
	if warning != "" {
		warnings = []string{fmt.Sprintf("the cloud %s has %s: only its own settings are used", c.Cloud, warning)}
	}
	region, values := firstRegion(own)
	if region == "" {
		region, values = firstRegion(base)
	}
	all := merged(merged(base, own), values)
	all["region_name"] = region
	return all, warnings, nil
}

// readProfile reads the settings of a vendor, which clouds-public.yaml may have.
func readProfile(name string) (profile map[string]any, warning string, err error) {
	if name == "" {
		return nil, "", nil
	}
	_, content, err := readFirst(nil, "clouds-public")
	if err != nil {
		return nil, "", err
	}
	known, _ := content["public-clouds"].(map[string]any)
	found, ok := known[name].(map[string]any)
	if !ok {
		return nil, fmt.Sprintf("the profile %q, which no clouds-public.yaml has", name), nil
	}
	return normalized(found), "", nil
}

// normalized has _ for - in its keys, as openstacksdk has.
func normalized(cloud map[string]any) map[string]any {
	out := map[string]any{}
	for key, value := range cloud {
		if inner, ok := value.(map[string]any); ok {
			value = normalized(inner)
		}
		out[strings.ReplaceAll(key, "-", "_")] = value
	}
	return out
}

// firstRegion is the region that is used when none is requested, and what is different there.
func firstRegion(cloud map[string]any) (name string, values map[string]any) {
	regions, ok := cloud["regions"]
	if !ok {
		regions = cloud["region_name"]
	}
	if list, ok := regions.([]any); ok && len(list) > 0 {
		regions = list[0]
	}
	switch first := regions.(type) {
	case string:
		name, _, _ = strings.Cut(first, ",") // several in one text are an old form
	case map[string]any:
		name = entry(first).text("name")
		values, _ = first["values"].(map[string]any)
	}
	return name, normalized(values)
}

// text is the value of the first of these keys that is set.
func (e entry) text(keys ...string) string {
	for _, key := range keys {
		if value, _ := e[key].(string); value != "" {
			return value
		}
	}
	return ""
}

// login is the value of the first of these keys that is set, in auth or beside it.
func (e entry) login(keys ...string) string {
	inside, _ := e["auth"].(map[string]any)
	for _, key := range keys {
		if value := cmp.Or(entry(inside).text(key), e.text(key)); value != "" {
			return value
		}
	}
	return ""
}
