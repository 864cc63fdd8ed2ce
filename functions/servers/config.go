// Package servers serves /v1/servers: the servers of the caller's project, whoever made them, and those that are managed through a
// connection.
package servers

import (
	"fmt"
	"time"

	"github.com/cloudfn/cloudfn/shared/agent"
	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/httpx"
	"github.com/cloudfn/cloudfn/shared/openstack"
	"github.com/cloudfn/cloudfn/shared/postgres"
	"github.com/cloudfn/cloudfn/shared/run"
	"github.com/cloudfn/cloudfn/shared/seal"
)

// Config is what this function reads from its environment besides run.Config.
type Config struct {
	Seal   seal.ConnectionConfig
	Agents agent.Config
	// AgentTTL is for how long an instance may take from the rebuild to the agent's word that it is ready.
	AgentTTL time.Duration `env:"AGENT_TOKEN_TTL, default=30m"`
}

// Validate refuses a Config that cannot work.
func (c Config) Validate() error {
	if c.AgentTTL < time.Minute || c.AgentTTL > 24*time.Hour {
		return fmt.Errorf("AGENT_TOKEN_TTL is %s: it must be 1m to 24h", c.AgentTTL)
	}
	if err := c.Seal.Validate(); err != nil {
		return err
	}
	return c.Agents.Validate()
}

func init() { run.HTTP("servers", build) }

func build(cfg Config, d run.Deps) ([]httpx.Route, error) {
	key, _ := cfg.Seal.Key() // Validate has refused a wrong one; who only looks at the routes has none
	return routes(service{
		cloud: clouds{Cloud: d.Cloud}, instances: postgres.Instances{DB: d.DB}, connections: postgres.Connections{DB: d.DB},
		actions: postgres.Actions{DB: d.DB}, keyed: postgres.KeyedActions{DB: d.DB}, wake: d.Wake,
		agents: agents{config: cfg.Agents, validFor: cfg.AgentTTL, deployments: postgres.Deployments{DB: d.DB}, seal: key},
	}), nil
}

// clouds narrows *openstack.Cloud to what this function needs.
type clouds struct {
	*openstack.Cloud
	region string // "" = the one of this process
}

// As makes calls with the caller's own token.
func (c clouds) As(token domain.Secret, scope string) session {
	return c.Cloud.As(token, scope).InRegion(c.region)
}

// InRegion is the same in another region.
func (c clouds) InRegion(region string) openStack { return clouds{c.Cloud, region} }
