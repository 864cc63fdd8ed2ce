// Package stats serves GET /v1/stats, how many servers ran in each hour, and GET /v1/requests, the request log.
package stats

import (
	"github.com/danielgtaylor/huma/v2"

	"github.com/cloudfn/cloudfn/shared/httpx"
	"github.com/cloudfn/cloudfn/shared/postgres"
	"github.com/cloudfn/cloudfn/shared/run"
)

// Config is what this function reads from its environment besides run.Config: nothing.
type Config struct{}

func init() { run.HTTP("stats", build) }

func build(_ Config, d run.Deps) ([]httpx.Route, error) {
	s := service{stats: postgres.Stats{DB: d.DB}, requests: postgres.Requests{DB: d.DB}, clock: d.DB}
	return httpx.Routes(func(api huma.API) { routes(api, s) }), nil
}
