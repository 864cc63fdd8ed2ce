// Package managed serves /v1/managed and /v1/flavors: resources that are declared, with their revisions, and the
// templates that they may begin with. reconcile-managed makes what is declared.
package managed

import (
	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/delegation"
	"github.com/cloudfn/cloudfn/shared/httpx"
	"github.com/cloudfn/cloudfn/shared/postgres"
	"github.com/cloudfn/cloudfn/shared/run"
	"github.com/cloudfn/cloudfn/shared/seal"
)

// Config is what this function reads from its environment besides run.Config.
type Config struct {
	// To whom trusts are made.
	Trust delegation.Config

	Delegation delegation.ManagedConfig

	Seal seal.ManagedConfig

	// How many managed resources, and how many templates, a project may have.
	PerProject int `env:"MANAGED_PER_PROJECT, default=1000" min:"1" zero:"no limit"`

	// Declarations a minute that make a revision or have a secret, which all replicas together accept from one
	// project.
	Declarations int `env:"DECLARATION_RATE_LIMIT, default=600" min:"1" max:"100000"`
}

// Function declares managed.
var Function = run.HTTP[Config, service]{
	Name:    "managed",
	Summary: "Servers, pods, volumes, images, load balancers, secrets and files that are declared, with revisions.",
	Reach: run.Reach{
		Tables: map[string]string{
			"connections": postgres.ReadConnections + ", insert, " +
				"update (status, reason, secret, suspended_at, revoked, seq, updated_at, last_used_at)",
			"events":            "select, insert",
			"flavors":           "select, insert, update, delete",
			"instances":         "select (project_id, id, state, addresses)",
			"managed":           "select, insert, update",
			"managed_members":   "select, update (attempts, retry_at, writes)",
			"managed_projects":  "select, insert, update",
			"managed_revisions": "select, insert, delete",
			"rate_limits":       "select, insert, update",
			"trusts_to_revoke":  "select, insert, update, delete",
		},
		Network: []string{"compute", "identity", "image", "network", "volume"}, // what a dry run's declaration names
		Wakes:   []string{"deliver-events", "reconcile-managed", "run-connections"},
	},
	Secrets: []string{"events"},
	// A request takes some milliseconds of Postgres; the first of a user a call to Keystone, for a trust, and more
	// servers calls to Nova, for their quota.
	Scale:  run.Scale{MaxPods: 2, Concurrency: 50, Target: 35},
	Build:  build,
	Routes: httpx.Operations(routes),
}

func build(cfg Config, d run.Deps) (service, error) {
	key, err := cfg.Seal.Key()
	if err != nil {
		return service{}, err
	}
	roles, err := cfg.Delegation.KindRoles()
	if err != nil {
		return service{}, err
	}
	return service{
		store: postgres.Managed{DB: d.DB}, flavors: postgres.ResourceFlavors{DB: d.DB},
		instances: postgres.Instances{DB: d.DB},
		trusts: delegation.Trusts{
			Store: postgres.Connections{DB: d.DB}, Trustee: cfg.Trust.Trustee, Roles: roles, Wake: d.Wake,
		},
		cloud: d.Cloud, key: key, trustFor: cfg.Delegation.For, perProject: cfg.PerProject, wake: d.Wake,
		declarations: postgres.RateLimit{DB: d.DB, Limit: apperr.PerMinute("declaration", cfg.Declarations)},
	}, nil
}
