// Package stats serves GET /v1/stats, how many servers ran in each hour, and GET /v1/requests, the request log.
package stats

import (
	"github.com/cloudfn/cloudfn/shared/httpx"
	"github.com/cloudfn/cloudfn/shared/postgres"
	"github.com/cloudfn/cloudfn/shared/run"
)

// Config is what this function reads from its environment besides run.Config: nothing.
type Config struct{}

// Function declares stats.
var Function = run.HTTP[Config, service]{
	Name:    "stats",
	Summary: "Servers per hour, and the request log.",
	Reach: run.Reach{
		Tables: map[string]string{
			"requests":       "select",
			"stats_hourly":   "select",
			"stats_projects": "select",
			"stats_sums":     "select",
		},
		Network: []string{"identity"},
	},
	// A request is some milliseconds of Postgres.
	Scale:  run.Scale{MaxPods: 2, Concurrency: 100, Target: 70},
	Build:  build,
	Routes: httpx.Operations(routes),
}

func build(_ Config, d run.Deps) (service, error) {
	return service{stats: postgres.Stats{DB: d.DB}, requests: postgres.Requests{DB: d.DB}, clock: d.DB}, nil
}
