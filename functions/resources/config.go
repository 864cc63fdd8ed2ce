// Package resources serves GET /v1/resources: what the caller's project can launch servers with.
package resources

import (
	"github.com/cloudfn/cloudfn/shared/httpx"
	"github.com/cloudfn/cloudfn/shared/run"
)

// Config is what this function reads from its environment besides run.Config: nothing.
type Config struct{}

func init() { run.HTTP("resources", build) }

func build(_ Config, d run.Deps) ([]httpx.Route, error) {
	return routes(service{cloud: clouds{d.Cloud}}), nil
}
