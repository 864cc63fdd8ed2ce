// Package servers serves /v1/servers: the servers of the caller's project, whoever made them.
package servers

import (
	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/httpx"
	"github.com/cloudfn/cloudfn/shared/openstack"
	"github.com/cloudfn/cloudfn/shared/postgres"
	"github.com/cloudfn/cloudfn/shared/run"
)

// Config is what this function reads from its environment besides run.Config: nothing.
type Config struct{}

func init() { run.HTTP("servers", build) }

func build(_ Config, d run.Deps) ([]httpx.Route, error) {
	return routes(service{cloud: clouds{d.Cloud}, instances: postgres.Instances{DB: d.DB}, wake: d.Wake}), nil
}

// clouds narrows *openstack.Cloud to what this function needs.
type clouds struct{ *openstack.Cloud }

// As makes calls with the caller's own token.
func (c clouds) As(token domain.Secret, scope string) session { return c.Cloud.As(token, scope) }
