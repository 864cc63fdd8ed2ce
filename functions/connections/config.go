// Package connections serves /v1/connections: what users delegate, to whom, how far and until when.
package connections

import (
	"context"
	"fmt"
	"regexp"
	"strings"

	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/httpx"
	"github.com/cloudfn/cloudfn/shared/openstack"
	"github.com/cloudfn/cloudfn/shared/postgres"
	"github.com/cloudfn/cloudfn/shared/run"
	"github.com/cloudfn/cloudfn/shared/seal"
)

// Config is what this function reads from its environment besides run.Config.
type Config struct {
	// Trustee is the user to whom trusts are made: the service account of run-connections. Without one there are no trusts.
	Trustee string `env:"TRUSTEE_USER_ID"`
	// Remotes are the other clouds whose application credentials are taken.
	Remotes openstack.RemotesConfig

	Seal seal.ConnectionConfig
}

// trusteeID is what Keystone's ids of users look like: 32 or 64 hexadecimal digits by default, other letters with other backends.
var trusteeID = regexp.MustCompile(`^[0-9A-Za-z_.@:-]{0,255}$`)

// Validate refuses a Config that cannot work.
func (c Config) Validate() error {
	if !trusteeID.MatchString(c.Trustee) {
		return fmt.Errorf("TRUSTEE_USER_ID is %q: it must be the id of a user, as `cloudfnd trustee` prints it", c.Trustee)
	}
	if err := c.Remotes.Validate(); err != nil {
		return err
	}
	return c.Seal.Validate()
}

func init() { run.HTTP("connections", build) }

func build(cfg Config, d run.Deps) ([]httpx.Route, error) {
	key, _ := cfg.Seal.Key() // Validate has refused a wrong one; who only looks at the routes has none
	if err := d.Cloud.AddRemotes(cfg.Remotes); err != nil {
		return nil, err
	}
	return routes(service{
		store: stored{postgres.Connections{DB: d.DB}, postgres.Delegations{DB: d.DB}}, cloud: clouds{d.Cloud}, key: key,
		trustee: cfg.Trustee, clouds: cfg.Remotes.URLs(), wake: d.Wake,
	}), nil
}

// stored is the part of the database that this function needs.
type stored struct {
	postgres.Connections
	delegations postgres.Delegations
}

// MarkRevoked records that nothing of a connection is left in Keystone that could be taken back.
func (s stored) MarkRevoked(ctx context.Context, c domain.Connection) error {
	_, err := s.delegations.MarkRevoked(ctx, c) // it is only now that it ended: nobody was notified that its revocation is pending
	return err
}

// clouds narrows *openstack.Cloud to what this function needs.
type clouds struct{ *openstack.Cloud }

// As makes calls with the caller's own token.
func (c clouds) As(token domain.Secret, scope string) session { return c.Cloud.As(token, scope) }

// Home says whether a Keystone URL and a region are this cloud's own.
func (c clouds) Home(authURL, region string) (sameCloud, sameRegion bool) {
	return authURL == "" || bare(authURL) == bare(c.IdentityURL()), region == "" || region == c.Region()
}

// bare is a Keystone URL without what may be left out of it.
func bare(authURL string) string {
	return strings.TrimSuffix(strings.TrimSuffix(authURL, "/"), "/v3")
}

// Credential opens a session with an application credential, here or in another cloud.
func (c clouds) Credential(ctx context.Context, authURL, region, id string, secret domain.Secret) (session, domain.ActsAs, error) {
	return c.At(authURL, region).Credential(ctx, id, secret)
}
