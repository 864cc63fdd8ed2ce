package openstack

import (
	"reflect"
	"strings"

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
	// File with the client certificate that the cloud asks for, and its key if `OS_KEY` is empty.
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
