// Package resources serves GET /v1/resources: what the caller's project can launch servers with, or what can be ordered through a connection.
package resources

import (
	"fmt"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/httpx"
	"github.com/cloudfn/cloudfn/shared/openstack"
	"github.com/cloudfn/cloudfn/shared/postgres"
	"github.com/cloudfn/cloudfn/shared/run"
)

// Config is what this function reads from its environment besides run.Config.
type Config struct {
	// Timeout is how long one kind may take, so that a service that hangs does not hold up the others.
	Timeout time.Duration `env:"RESOURCE_TIMEOUT, default=5s"`
}

// Validate refuses a Config that cannot work.
func (c Config) Validate() error {
	if c.Timeout < time.Second || c.Timeout > time.Minute {
		return fmt.Errorf("RESOURCE_TIMEOUT is %s: it must be 1s to 1m", c.Timeout)
	}
	return nil
}

func init() { run.HTTP("resources", build) }

func build(cfg Config, d run.Deps) ([]httpx.Route, error) {
	s := service{cloud: clouds{d.Cloud}, connections: postgres.Connections{DB: d.DB}, wake: d.Wake, timeout: cfg.Timeout}
	return httpx.Routes(func(api huma.API) { routes(api, s) }), nil
}

// clouds narrows *openstack.Cloud to what this function needs.
type clouds struct{ *openstack.Cloud }

// As makes calls with the caller's own token.
func (c clouds) As(token domain.Secret, scope, region string) session {
	return c.Cloud.As(token, scope).InRegion(region)
}
