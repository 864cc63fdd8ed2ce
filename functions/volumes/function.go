// Package volumes serves /v1/volumes: all volumes of the project in Cinder.
package volumes

import (
	"github.com/cloudfn/cloudfn/shared/httpx"
	"github.com/cloudfn/cloudfn/shared/run"
)

// Config is what this function reads from its environment besides run.Config: nothing.
type Config struct{}

// Function declares volumes.
var Function = run.HTTP[Config, service]{
	Name:    "volumes",
	Summary: "All volumes of the project.",
	Reach: run.Reach{
		Tables: map[string]string{
			"idempotency_keys": "select, insert, update, delete",
			"rate_limits":      "select, insert, update",
		},
		Network: []string{"identity", "volume"},
	},
	// A request makes one or two calls to Cinder.
	Scale:  run.Scale{MaxPods: 1, Concurrency: 50, Target: 35},
	Build:  build,
	Routes: httpx.Operations(routes),
}

func build(_ Config, d run.Deps) (service, error) { return service{cloud: d.Cloud}, nil }
