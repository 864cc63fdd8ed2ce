// Package connections serves /v1/connections: delegations, with their permissions, limits and ends.
package connections

import (
	"context"
	"strings"

	"github.com/cloudfn/cloudfn/shared/delegation"
	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/httpx"
	"github.com/cloudfn/cloudfn/shared/openstack"
	"github.com/cloudfn/cloudfn/shared/postgres"
	"github.com/cloudfn/cloudfn/shared/run"
	"github.com/cloudfn/cloudfn/shared/seal"
)

// Config is what this function reads from its environment besides run.Config.
type Config struct {
	// To whom trusts are made.
	Trust delegation.Config
	// Remotes are the other clouds whose application credentials are accepted.
	Remotes openstack.RemotesConfig

	Seal seal.ConnectionConfig

	Changes postgres.ChangeConfig
}

// Function declares connections.
var Function = run.HTTP[Config, service]{
	Name:    "connections",
	Summary: "Delegations: whom a user authorizes, for what, how much and until when.",
	Reach: run.Reach{
		Tables: map[string]string{
			"connection_requests":  "select, insert, update",
			"connection_resources": "select",
			"connections": postgres.ReadConnections + ", insert, " +
				"update (status, reason, secret, revoked, last_used_at, seq, updated_at, next_check_at, checked_at, " +
				"suspended_at, " +
				"resumed_at, name, actions, quota, limits, usable_by, usable_names, expires_at, idle_timeout, " +
				"delegation_id, acts_as, flavors, trust_expires_at, credential_expires_at, generation)",
			"events":           "insert",
			"idempotency_keys": "select, insert, update, delete",
			"instances":        "select",
			"leases":           "select (project_id, id, status, ends_at, on_end, connection_id, shares_connection)",
			"orders":           "select",
			"rate_limits":      "select, insert, update",
			"trusts_to_revoke": "select, insert, update, delete",
		},
		Network: []string{"compute", "identity"}, // compute: the flavors, which a connection remembers
		Wakes:   []string{"deliver-events", "run-connections"},
	},
	Secrets: []string{"events"},
	// Delegating takes some calls to Keystone and Nova; everything else is Postgres.
	Scale:  run.Scale{MaxPods: 2, Concurrency: 50, Target: 20},
	Build:  build,
	Routes: httpx.Operations(routes),
}

func build(cfg Config, d run.Deps) (service, error) {
	key, err := cfg.Seal.Key()
	if err != nil {
		return service{}, err
	}
	if err := d.Cloud.AddRemotes(cfg.Remotes); err != nil {
		return service{}, err
	}
	connections, requests := postgres.Connections{DB: d.DB}, postgres.ConnectionRequests{DB: d.DB}
	return service{
		connections: connections, delegations: postgres.Delegations{DB: d.DB}, requests: requests, store: connections,
		grants: requests, trusts: delegation.Trusts{Store: connections, Trustee: cfg.Trust.Trustee, Wake: d.Wake},
		cloud: clouds{d.Cloud}, key: key, clouds: cfg.Remotes.URLs(), wake: d.Wake,
		changes: cfg.Changes.Limit(d.DB),
	}, nil
}

// clouds narrows *openstack.Cloud to what this function needs.
type clouds struct{ *openstack.Cloud }

// As opens a session with the caller's own token.
func (c clouds) As(token domain.Secret, scope string) session { return c.Cloud.As(token, scope) }

// Home reports whether a Keystone URL and a region are this cloud's own.
func (c clouds) Home(authURL, region string) (sameCloud, sameRegion bool) {
	return authURL == "" || bare(authURL) == bare(c.IdentityURL()), region == "" || region == c.Region()
}

// bare is a Keystone URL without its optional ending.
func bare(authURL string) string {
	return strings.TrimSuffix(strings.TrimSuffix(authURL, "/"), "/v3")
}

// Credential opens a session with an application credential, here or in another cloud.
func (c clouds) Credential(
	ctx context.Context, authURL, region, id string, secret domain.Secret,
) (session, error) {
	return c.At(authURL, region).Credential(ctx, id, secret)
}
