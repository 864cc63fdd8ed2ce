// Package connections serves /v1/connections: what users delegate, to whom, how far and until when.
package connections

import (
	"context"
	"fmt"
	"regexp"
	"strings"

	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/openstack"
	"github.com/cloudfn/cloudfn/shared/postgres"
	"github.com/cloudfn/cloudfn/shared/run"
	"github.com/cloudfn/cloudfn/shared/seal"
)

// Config is what this function reads from its environment besides run.Config.
type Config struct {
	// User id of the service account of run-connections, to which trusts are made; `cloudfnd trustee` prints it. When
	// empty, a request for a trust is answered with 501.
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

// Function declares connections.
var Function = run.HTTP[Config, service]{
	Name:    "connections",
	Summary: "Delegations: who may act for whom, what, how much and until when.",
	Reach: run.Reach{
		Tables: map[string]string{
			"connection_requests":  "select, insert, update",
			"connection_resources": "select",
			"connections": postgres.ReadConnections + ", insert, " +
				"update (status, reason, secret, revoked, last_used_at, seq, updated_at, next_check_at, checked_at, suspended_at, " +
				"resumed_at, name, actions, quota, limits, usable_by, usable_names, expires_at, idle_timeout, delegation_id, acts_as, " +
				"flavors, trust_expires_at, credential_expires_at, generation)",
			"events":           "insert",
			"instances":        "select",
			"orders":           "select",
			"trusts_to_revoke": "select, insert, update, delete",
		},
		Network: []string{"compute", "identity"}, // compute: the flavors, which a connection remembers
		Wakes:   []string{"deliver-events", "run-connections"},
	},
	Secrets: []string{"database", "events"},
	// To delegate takes some calls to Keystone and Nova; all else is Postgres.
	Scale:  run.Scale{MaxPods: 2, Concurrency: 50, Target: 20},
	Build:  build,
	Routes: routes,
}

func build(cfg Config, d run.Deps) (service, error) {
	key, err := cfg.Seal.Key()
	if err != nil {
		return service{}, err
	}
	if err := d.Cloud.AddRemotes(cfg.Remotes); err != nil {
		return service{}, err
	}
	return service{
		store: stored{postgres.Connections{DB: d.DB}, postgres.Delegations{DB: d.DB}}, cloud: clouds{d.Cloud}, key: key,
		requests: postgres.ConnectionRequests{DB: d.DB},
		trustee:  cfg.Trustee, clouds: cfg.Remotes.URLs(), wake: d.Wake,
	}, nil
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
