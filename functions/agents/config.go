// Package agents serves /v1/agents: what an agent that was deployed to an instance fetches once, and that it says once that it is
// there. Its callers have no token of Keystone, and it asks OpenStack nothing.
package agents

import (
	"github.com/cloudfn/cloudfn/shared/agent"
	"github.com/cloudfn/cloudfn/shared/httpx"
	"github.com/cloudfn/cloudfn/shared/postgres"
	"github.com/cloudfn/cloudfn/shared/run"
)

// Config is what this function reads from its environment besides run.Config: nothing.
type Config struct{}

func init() { run.HTTP("agents", build) }

func build(_ Config, d run.Deps) ([]httpx.Route, error) {
	return routes(service{store: postgres.Deployments{DB: d.DB}, hash: agent.Hash, wake: d.Wake}), nil
}
