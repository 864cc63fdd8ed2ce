// Package servers serves /v1/servers: all servers of the caller's project, and those that a
// connection manages.
package servers

import (
	"time"

	"github.com/cloudfn/cloudfn/shared/agent"
	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/httpx"
	"github.com/cloudfn/cloudfn/shared/postgres"
	"github.com/cloudfn/cloudfn/shared/run"
	"github.com/cloudfn/cloudfn/shared/seal"
)

// Config is what this function reads from its environment besides run.Config.
type Config struct {
	Seal   seal.ConnectionConfig
	Agents agent.Config
	// How long an instance may take from its deployment until its agent is ready.
	AgentTTL time.Duration `env:"AGENT_TOKEN_TTL, default=30m" min:"1m" max:"24h"`
}

// Function declares servers.
var Function = run.HTTP[Config, service]{
	Name: "servers",
	Summary: "The project's servers, no matter who made them: " +
		"list, connect, start, stop, reboot, shelve, snapshot, deploy, show the console, disconnect, delete.",
	Reach: run.Reach{
		Tables: postgres.MayTakeIDs(map[string]string{
			"actions":          "select, insert",
			"connections":      postgres.ReadConnections + ", update (last_used_at)",
			"create_calls":     "select, update",
			"deployments":      "select, insert, update, delete",
			"events":           "select, insert",
			"idempotency_keys": "select, insert, update, delete",
			"instances":        "select, insert, update",
			"keyed_actions":    "select, insert, update, delete",
			"orders":           "select",
			"rate_limits":      "select, insert, update",
			"trusts_to_revoke": "select",
		}),
		// image: whether a snapshot was made; network: floating IPs, interfaces; volume: names
		Network: []string{"compute", "identity", "image", "network", "volume"},
		Wakes:   []string{"deliver-events", "poll-instances", "run-connections"},
	},
	Secrets: []string{"events"},
	// It is called most. Answers are pages of up to 1000 servers, 2.7 MB each.
	Scale:  run.Scale{MaxPods: 5, Concurrency: 50, Target: 35},
	Build:  build,
	Routes: httpx.Operations(routes),
}

func build(cfg Config, d run.Deps) (service, error) {
	key, err := cfg.Seal.Key()
	if err != nil {
		return service{}, err
	}
	return service{
		session: func(token domain.Secret, scope, region string) session {
			return d.Cloud.As(token, scope).InRegion(region)
		},
		instances: postgres.Instances{DB: d.DB}, connections: postgres.Connections{DB: d.DB},
		actions: postgres.Actions{DB: d.DB}, keyed: postgres.KeyedActions{DB: d.DB}, wake: d.Wake,
		agents: agents{
			config: cfg.Agents, validFor: cfg.AgentTTL, deployments: postgres.Deployments{DB: d.DB}, key: key,
		},
	}, nil
}
