// Package callbacks serves /v1/callbacks: webhook subscriptions and their deliveries.
package callbacks

import (
	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/httpx"
	"github.com/cloudfn/cloudfn/shared/postgres"
	"github.com/cloudfn/cloudfn/shared/run"
	"github.com/cloudfn/cloudfn/shared/seal"
	"github.com/cloudfn/cloudfn/shared/webhook"
)

// Config is what this function reads from its environment besides run.Config.
type Config struct {
	// Tests of callbacks a minute that all replicas together accept from one project.
	Tests int `env:"CALLBACK_TEST_RATE_LIMIT, default=60" min:"1" max:"100000"`
	// Redeliveries a minute that all replicas together accept from one project.
	Redeliveries int `env:"CALLBACK_REDELIVER_RATE_LIMIT, default=600" min:"1" max:"100000"`

	Seal   seal.Config
	Ranges webhook.Ranges
	Quota  webhook.Quota
}

// Function declares callbacks.
var Function = run.HTTP[Config, service]{
	Name:    "callbacks",
	Summary: "Webhook subscriptions: their deliveries, tests, redelivery and secrets.",
	Reach: run.Reach{
		Tables: map[string]string{
			"callbacks":        "select, insert, update, delete",
			"connections":      postgres.ReadConnections,
			"deliveries":       "select, insert, update",
			"events":           "select, insert",
			"idempotency_keys": "select, insert, update, delete",
			"instances":        "select",
			"orders":           "select",
			"rate_limits":      "select, insert, update",
			"streams":          "select, insert, update",
		},
		Network: []string{"identity"},
		Wakes:   []string{"deliver-events"},
	},
	Secrets: []string{"events"},
	// Calls are rare: one pod answers hundreds of calls a second, each some milliseconds of
	// Postgres.
	Scale:  run.Scale{MaxPods: 1, Concurrency: 50, Target: 35},
	Build:  build,
	Routes: httpx.Operations(routes),
}

func build(cfg Config, d run.Deps) (service, error) {
	guard, err := webhook.NewGuard(cfg.Ranges)
	if err != nil {
		return service{}, err
	}
	key, err := cfg.Seal.Key()
	if err != nil {
		return service{}, err
	}
	wake := func() { d.Wake("deliver-events") }
	return service{
		store: postgres.Callbacks{DB: d.DB}, connections: postgres.Connections{DB: d.DB},
		tests:        postgres.RateLimit{DB: d.DB, Limit: apperr.PerMinute("callback-test", cfg.Tests)},
		redeliveries: postgres.RateLimit{DB: d.DB, Limit: apperr.PerMinute("redeliver", cfg.Redeliveries)},
		key:          key, guard: guard, wake: wake, most: cfg.Quota.PerProject,
	}, nil
}
