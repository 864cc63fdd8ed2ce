// Package leases serves /v1/leases: instances and hosts that are reserved for a period.
package leases

import (
	"github.com/cloudfn/cloudfn/shared/delegation"
	"github.com/cloudfn/cloudfn/shared/httpx"
	"github.com/cloudfn/cloudfn/shared/leases"
	"github.com/cloudfn/cloudfn/shared/postgres"
	"github.com/cloudfn/cloudfn/shared/run"
)

// Config is what this function reads from its environment besides run.Config.
type Config struct {
	// To whom trusts are made.
	Trust delegation.Config

	Changes postgres.ChangeConfig

	Rules leases.RulesConfig
}

// Function declares leases.
var Function = run.HTTP[Config, service]{
	Name:    "leases",
	Summary: "Instances and hosts that are reserved for a period; when hosts are free.",
	Reach: run.Reach{
		Tables: postgres.MayTakeIDs(map[string]string{
			"actions":     "select, update (connection_id)",
			"allocations": "select, insert, update, delete",
			"connections": postgres.ReadConnections + ", insert, " +
				"update (status, reason, secret, suspended_at, revoked, seq, updated_at, last_used_at)",
			"create_calls":     "select, update",
			"events":           "select, insert",
			"idempotency_keys": "select, insert, update, delete",
			"instances":        "select, insert, update (" + postgres.ConnectInstances + ", lease_id)",
			"isolation":        "select",
			"leases":           "select, insert, update",
			"nodes":            "select, update",
			"orders":           "select",
			"rate_limits":      "select, insert, update",
			"reservations":     "select, insert, update",
			"trusts_to_revoke": "select, insert, update, delete",
		}),
		Network: []string{"compute", "identity", "volume"}, // compute: servers, flavors, and who may see hosts
		Wakes:   []string{"deliver-events", "run-connections", "run-leases"},
	},
	Secrets: []string{"events"},
	// A request takes some milliseconds of Postgres, and for a trust a call to Keystone.
	Scale:  run.Scale{MaxPods: 1, Concurrency: 50, Target: 35},
	Build:  build,
	Routes: httpx.Operations(routes),
}

func build(cfg Config, d run.Deps) (service, error) {
	return service{
		store: postgres.Leases{DB: d.DB}, connections: postgres.Connections{DB: d.DB},
		instances: postgres.Instances{DB: d.DB}, nodes: postgres.Nodes{DB: d.DB},
		isolations: postgres.Isolations{DB: d.DB},
		trusts: delegation.Trusts{
			Store: postgres.Connections{DB: d.DB}, Trustee: cfg.Trust.Trustee, Wake: d.Wake,
		},
		cloud: d.Cloud, rules: cfg.Rules.Rules(), changes: cfg.Changes.Limit(d.DB), wake: d.Wake,
	}, nil
}
