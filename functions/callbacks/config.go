// Package callbacks serves /v1/callbacks: who is told of what happens to a project's instances and orders.
package callbacks

import (
	"github.com/danielgtaylor/huma/v2"

	"github.com/cloudfn/cloudfn/shared/httpx"
	"github.com/cloudfn/cloudfn/shared/postgres"
	"github.com/cloudfn/cloudfn/shared/run"
	"github.com/cloudfn/cloudfn/shared/seal"
	"github.com/cloudfn/cloudfn/shared/webhook"
)

// Config is what this function reads from its environment besides run.Config.
type Config struct {
	Seal   seal.Config
	Ranges webhook.Ranges
}

// Validate refuses a Config that cannot work.
func (c Config) Validate() error {
	if err := c.Seal.Validate(); err != nil {
		return err
	}
	return c.Ranges.Validate()
}

func init() { run.HTTP("callbacks", build) }

func build(cfg Config, d run.Deps) ([]httpx.Route, error) {
	guard, err := webhook.NewGuard(cfg.Ranges)
	if err != nil {
		return nil, err
	}
	key, _ := cfg.Seal.Key() // Validate has refused a wrong one; who only looks at the routes has none
	wake := func() { d.Wake("deliver-events") }
	s := service{store: postgres.Callbacks{DB: d.DB}, connections: postgres.Connections{DB: d.DB}, key: key, guard: guard, wake: wake}
	return httpx.Routes(func(api huma.API) { routes(api, s) }), nil
}
