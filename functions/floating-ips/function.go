// Package floatingips serves /v1/floating-ips: all floating IPs of the project in Neutron.
package floatingips

import (
	"github.com/cloudfn/cloudfn/shared/httpx"
	"github.com/cloudfn/cloudfn/shared/run"
)

// Config is what this function reads from its environment besides run.Config: nothing.
type Config struct{}

// Function declares floating-ips.
var Function = run.HTTP[Config, service]{
	Name:    "floating-ips",
	Summary: "All floating IPs of the project.",
	Reach: run.Reach{
		Tables: map[string]string{
			"idempotency_keys": "select, insert, update, delete",
			"rate_limits":      "select, insert, update",
		},
		Network: []string{"identity", "network"},
	},
	// A request makes one or two calls to Neutron.
	Scale:  run.Scale{MaxPods: 1, Concurrency: 50, Target: 35},
	Build:  build,
	Routes: httpx.Operations(routes),
}

func build(_ Config, d run.Deps) (service, error) { return service{cloud: d.Cloud}, nil }
