package openstack

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"

	"github.com/gophercloud/gophercloud/v2"

	"github.com/cloudfn/cloudfn/shared/apperr"
)

// Finding is a setting that does not work, or that an operator should know of.
type Finding struct {
	Variable string // OS_REGION_NAME; OS_CLOUD when the value comes from clouds.yaml
	Detail   string // what is wrong, and what would be right
}

// finding names the variable that a value was read from.
func (c Config) finding(variable, format string, args ...any) Finding {
	f := Finding{Variable: variable, Detail: fmt.Sprintf(format, args...)}
	if c.Cloud != "" {
		key := strings.ToLower(strings.TrimPrefix(variable, "OS_"))
		f.Variable, f.Detail = "OS_CLOUD", fmt.Sprintf("%s of the cloud %s: %s", key, c.Cloud, f.Detail)
	}
	return f
}

// Check tries Keystone's address and, with an account, its login, the region, the interface and the endpoints of
// compute, image and network. session is the account's; nil without an account, or when it cannot log in. notes are
// what works, and may be a mistake.
func (c *Cloud) Check(ctx context.Context, cfg Config, account *Account) (session *Session, wrong, notes []Finding) {
	if err := c.Reachable(ctx); err != nil {
		return nil, []Finding{c.unreachable(cfg, err)}, nil
	}
	if account == nil {
		return nil, nil, nil
	}
	session, err := account.Login(ctx)
	if err != nil {
		return nil, []Finding{account.rejected(ctx, cfg, err)}, nil
	}
	return session, session.checkEndpoints(ctx, cfg), session.ambiguous(ctx, cfg)
}

// ambiguous notes the services with several endpoints to choose from.
func (s *Session) ambiguous(ctx context.Context, cfg Config) (notes []Finding) {
	all, err := s.services(ctx)
	if err != nil {
		return nil // checkEndpoints reports it
	}
	for _, service := range overridden {
		found := all.endpoints(service, s.cloud.region, s.cloud.iface)
		if len(found) < 2 || len(distinct(found, func(o offer) string { return o.region })) > 1 ||
			s.cloud.overrides.of(service) != "" {
			continue
		}
		notes = append(notes, cfg.finding("OS_INTERFACE", "the catalog has %d %s endpoints of %s in the region %s, "+
			"and the first one is used: %s", len(found), s.cloud.iface, service, found[0].region, found[0].url))
	}
	return notes
}

func (c *Cloud) unreachable(cfg Config, err error) Finding {
	if _, untrusted := errors.AsType[*tls.CertificateVerificationError](err); untrusted {
		return cfg.finding("OS_CACERT",
			"the certificate of %s is not accepted (%s): set it to the file with the authority that has signed "+
				"it", c.IdentityURL(), rootCause(err))
	}
	if wrong, ok := errors.AsType[notKeystoneError](err); ok {
		return cfg.finding("OS_AUTH_URL",
			"%s is not Keystone's API 3 (%s): set it to Keystone's URL, such as "+
				"https://keystone.example.com/v3", wrong.url, wrong.answer())
	}
	return cfg.finding("OS_AUTH_URL", "%s cannot be reached (%s): set it to Keystone's URL, or bring Keystone back",
		c.IdentityURL(), rootCause(err))
}

// rootCause is the last error of a chain: what the network said, without what each layer adds.
func rootCause(err error) string {
	for {
		inner := errors.Unwrap(err)
		if inner == nil {
			return err.Error()
		}
		err = inner
	}
}

// rejected says which part of the account Keystone does not accept. A login without a scope shows whether it is the
// password or the project.
func (a *Account) rejected(ctx context.Context, cfg Config, err error) Finding {
	variable := map[method]string{
		byPassword: "OS_PASSWORD", byToken: "OS_TOKEN", byCredential: "OS_APPLICATION_CREDENTIAL_SECRET",
	}[a.method]
	switch apperr.CodeOf(err) {
	case apperr.Unauthenticated, apperr.Forbidden, apperr.NotFound, apperr.Invalid:
	case apperr.Internal: // no call was made
		return cfg.finding(variable, "no login can be made of it: %s", rootCause(err))
	default:
		return cfg.finding("OS_AUTH_URL", "Keystone does not let the account log in for another reason: %s",
			apperr.As(err).Message)
	}
	if a.auth.Scope != nil && a.method == byPassword {
		unscoped := a.auth
		unscoped.Scope = nil
		if _, loginErr := a.cloud.login(ctx, &unscoped); loginErr == nil {
			return projectFinding(cfg, a)
		}
	}
	suggestion := ""
	if a.assumed && a.auth.DomainID != "" {
		name := "OS_USER_DOMAIN_NAME"
		if cfg.Cloud != "" {
			name = "user_domain_name"
		}
		suggestion = "; its domain is default, because " + name + " is not set"
	}
	return cfg.finding(variable,
		"Keystone does not accept %s with this secret: correct its name, its domain or its secret, or enable it%s", a,
		suggestion)
}

func projectFinding(cfg Config, a *Account) Finding {
	name := cmp.Or(a.auth.Scope.ProjectName, a.auth.Scope.ProjectID)
	f := cfg.finding("OS_PASSWORD",
		"%s may log in, but has no role in the project %q, or that project does not exist: correct the project or its "+
			"domain, or give it the role reader", a, name)
	if cfg.Cloud == "" {
		f.Variable = "OS_PROJECT_NAME"
	}
	return f
}

// checked are the services that are always needed.
var checked = []string{"compute", "image", "network"}

func (s *Session) checkEndpoints(ctx context.Context, cfg Config) (wrong []Finding) {
	all, err := s.services(ctx)
	if err != nil {
		return []Finding{cfg.finding("OS_AUTH_URL", "the service catalog cannot be read: %s", apperr.As(err).Message)}
	}
	if f := s.cloud.checkRegion(cfg, all); f != nil {
		return []Finding{*f}
	}
	var mu sync.Mutex
	var group sync.WaitGroup
	for _, service := range checked {
		group.Go(func() {
			if f := s.checkEndpoint(ctx, cfg, all, service); f != nil {
				mu.Lock()
				defer mu.Unlock()
				wrong = append(wrong, *f)
			}
		})
	}
	group.Wait()
	slices.SortFunc(wrong, func(a, b Finding) int { return strings.Compare(a.Detail, b.Detail) })
	return wrong
}

// checkRegion looks for the region among those of compute, which every catalog has.
func (c *Cloud) checkRegion(cfg Config, all catalog) *Finding {
	known := all.regions("compute")
	var f Finding
	switch {
	case c.region == "" && len(known) > 1:
		f = cfg.finding("OS_REGION_NAME", "the catalog has several regions: set it to one of %s",
			strings.Join(known, ", "))
	case c.region != "" && len(known) > 0 && !slices.Contains(known, c.region):
		f = cfg.finding("OS_REGION_NAME", "the catalog has no region %q: set it to one of %s", c.region,
			strings.Join(known, ", "))
	default:
		return nil
	}
	return &f
}

func (s *Session) checkEndpoint(ctx context.Context, cfg Config, all catalog, service string) *Finding {
	if at := s.cloud.overrides.of(service); at != "" {
		if f := s.checkVersion(ctx, cfg, service, at); f != nil {
			return f
		}
		return s.cloud.checkOverride(ctx, cfg, service, at)
	}
	if len(all.interfaces(service)) == 0 {
		f := cfg.finding("OS_AUTH_URL", "the catalog has no %s service, which is needed", service)
		return &f
	}
	found, err := all.endpoint(service, s.cloud.region, s.cloud.iface)
	if apperr.CodeOf(err) == apperr.Internal { // several regions, as of no other service
		f := cfg.finding("OS_REGION_NAME", "%s", apperr.As(err).Message)
		return &f
	}
	if err != nil {
		f := cfg.finding("OS_INTERFACE", "the catalog has no %s endpoint of the interface %s in the region %q: it "+
			"has %s",
			service,
			s.cloud.iface, s.cloud.region, strings.Join(all.interfaces(service), ", "))
		return &f
	}
	if f := s.checkVersion(ctx, cfg, service, found); f != nil {
		return f
	}
	if err := s.cloud.probe(ctx, found); err != nil {
		f := cfg.finding("OS_INTERFACE",
			"%s at %s (interface %s) cannot be reached from here (%s): choose another interface, or open the way",
			service, found, s.cloud.iface, rootCause(err))
		return &f
	}
	return nil
}

func (c *Cloud) checkOverride(ctx context.Context, cfg Config, service, at string) *Finding {
	err := c.probe(ctx, at)
	if err == nil {
		return nil
	}
	return cfg.overrideFinding(service, "%s cannot be reached (%s): correct the URL, or leave it to the catalog", at,
		rootCause(err))
}

// checkVersion reports an endpoint without the version that is needed. Its override can name another one.
func (s *Session) checkVersion(ctx context.Context, cfg Config, service, at string) *Finding {
	if _, err := s.versioned(ctx, service, at); apperr.CodeOf(err) == apperr.Unsupported {
		return cfg.overrideFinding(service, "%s: set it to the URL of that version, or correct the catalog",
			apperr.As(err).Message)
	}
	return nil
}

func (c Config) overrideFinding(service, format string, args ...any) *Finding {
	f := Finding{overrideVariable(service), fmt.Sprintf(format, args...)}
	if c.Cloud != "" {
		f = Finding{"OS_CLOUD", fmt.Sprintf("%s of the cloud %s: %s", overrideKey(service), c.Cloud, f.Detail)}
	}
	return &f
}

// probe calls a service's endpoint, without a token: nil when a server answers itself, and no proxy in its
// place.
func (c *Cloud) probe(ctx context.Context, endpoint string) error {
	anonymous := Session{cloud: c}
	client := &gophercloud.ServiceClient{ProviderClient: anonymous.provider(), Endpoint: endpoint}
	resp, err := client.Get(ctx, endpoint, nil, &gophercloud.RequestOpts{
		KeepResponseBody: true,
		OkCodes:          []int{http.StatusOK, http.StatusMultipleChoices},
	})
	if err == nil {
		return resp.Body.Close()
	}
	if refused, ok := errors.AsType[gophercloud.ErrUnexpectedResponseCode](err); ok &&
		refused.Actual < http.StatusBadGateway {
		return nil
	}
	return classify("the service", err)
}

// Exists looks up a project or a domain in Keystone: kind is "projects" or "domains". Forbidden means that the account
// may not know.
func (s *Session) Exists(ctx context.Context, kind, id string) error {
	keystone := s.keystone()
	var body struct{}
	_, err := keystone.Get(ctx, keystone.ServiceURL(kind, id), &body, nil)
	return classify("keystone", err)
}
