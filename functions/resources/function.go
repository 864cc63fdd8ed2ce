// Package resources serves /v1/resources: what the caller's project can launch servers with, or what can be ordered
// through a connection.
package resources

import (
	"time"

	"github.com/cloudfn/cloudfn/shared/httpx"
	"github.com/cloudfn/cloudfn/shared/postgres"
	"github.com/cloudfn/cloudfn/shared/run"
)

// Config is what this function reads from its environment besides run.Config.
type Config struct {
	// Time limit per kind of resource; the others are answered without it.
	Timeout time.Duration `env:"RESOURCE_TIMEOUT, default=5s" min:"1s" max:"1m"`
}

// Function declares resources.
var Function = run.HTTP[Config, service]{
	Name:    "resources",
	Summary: "Flavors, images, networks and more to launch with.",
	Reach: run.Reach{
		Tables: map[string]string{
			"instances":            "select",
			"connection_resources": "select",
			"connections":          postgres.ReadConnections + ", update (next_check_at)",
			"idempotency_keys":     "select, insert, update, delete",
			"rate_limits":          "select, insert, update",
		},
		Network: []string{"compute", "identity", "image", "network"},
		Wakes:   []string{"run-connections"},
	},
	Secrets: []string{"events"},
	// A request makes up to seven concurrent calls to OpenStack.
	Scale:  run.Scale{MaxPods: 2, Concurrency: 50, Target: 20},
	Build:  build,
	Routes: httpx.Operations(routes),
}

func build(cfg Config, d run.Deps) (service, error) {
	return service{
		cloud: d.Cloud, connections: postgres.Connections{DB: d.DB}, wake: d.Wake, timeout: cfg.Timeout,
	}, nil
}
