// Package agents serves /v1/agents: what an agent that was deployed to an instance fetches once, and that it says once that it is
// there. Its callers have no token of Keystone, and it asks OpenStack nothing.
package agents

import (
	"github.com/cloudfn/cloudfn/shared/agent"
	"github.com/cloudfn/cloudfn/shared/postgres"
	"github.com/cloudfn/cloudfn/shared/run"
)

// Config is what this function reads from its environment besides run.Config: nothing.
type Config struct{}

// Function declares agents. Instances call it when they boot, without a Keystone token. So it holds nothing but its database role and reaches nothing
// but Postgres: without EVENT_KEY it wakes nobody on Knative, and deliver-events finds the events at its next tick.
var Function = run.HTTP[Config, service]{
	Name:    "agents",
	Summary: "What an agent fetches once when its instance boots, and its report that it is ready.",
	Reach: run.Reach{
		Tables: map[string]string{
			"deployments": "select, update",
			"events":      "insert",
			"instances":   "select, update",
		},
	},
	Secrets: []string{"database"},
	// A guest tries for ten minutes, so it outlasts the moment in which a lost pod is replaced. A deployment makes two calls,
	// each some milliseconds of Postgres.
	Scale:  run.Scale{MaxPods: 1, Concurrency: 100, Target: 70},
	Build:  build,
	Routes: routes,
}

func build(_ Config, d run.Deps) (service, error) {
	return service{store: postgres.Deployments{DB: d.DB}, hash: agent.Hash, wake: d.Wake}, nil
}
