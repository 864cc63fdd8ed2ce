// Package securitygroups serves /v1/security-groups: the project's security groups in Neutron, and their rules.
package securitygroups

import (
	"github.com/cloudfn/cloudfn/shared/httpx"
	"github.com/cloudfn/cloudfn/shared/run"
)

// Config is what this function reads from its environment besides run.Config: nothing.
type Config struct{}

// Function declares security-groups.
var Function = run.HTTP[Config, service]{
	Name:    "security-groups",
	Summary: "The project's security groups and their rules.",
	Reach: run.Reach{
		Tables: map[string]string{
			"idempotency_keys": "select, insert, update, delete",
			"rate_limits":      "select, insert, update",
		},
		Network: []string{"identity", "network"},
	},
	// A request makes one to three calls to Neutron.
	Scale:  run.Scale{MaxPods: 1, Concurrency: 50, Target: 35},
	Build:  build,
	Routes: httpx.Operations(routes),
}

func build(_ Config, d run.Deps) (service, error) { return service{cloud: d.Cloud}, nil }
