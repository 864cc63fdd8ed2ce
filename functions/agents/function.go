// Package agents serves /v1/agents: an agent on an instance fetches its bundle once, and reports once that it is ready.
// Its callers have no Keystone token, and it does not call OpenStack.
package agents

import (
	"github.com/cloudfn/cloudfn/shared/agent"
	"github.com/cloudfn/cloudfn/shared/httpx"
	"github.com/cloudfn/cloudfn/shared/postgres"
	"github.com/cloudfn/cloudfn/shared/run"
)

// Config is what this function reads from its environment besides run.Config: nothing.
type Config struct{}

// Function declares agents. Instances call it when they boot, without a Keystone token. So it holds nothing but its
// database role, and reaches nothing but Postgres. It wakes nobody: deliver-events finds its events at the next tick.
var Function = run.HTTP[Config, service]{
	Name:    "agents",
	Summary: "What an agent fetches once when its instance boots, and its report that it is ready.",
	Reach: run.Reach{
		Tables: map[string]string{
			"connections": "select (id, project_id, status, expires_at, suspended_at)",
			"deployments": "select, update",
			"events":      "insert",
			"instances":   "select, update",
		},
	},
	// A guest retries for ten minutes, which is longer than replacing a pod takes. A deployment makes two calls, each
	// some milliseconds of Postgres.
	Scale:  run.Scale{MaxPods: 1, Concurrency: 100, Target: 70},
	Build:  build,
	Routes: httpx.Operations(routes),
}

func build(_ Config, d run.Deps) (service, error) {
	return service{store: postgres.Deployments{DB: d.DB}, hash: agent.Hash}, nil
}
