// Package agents serves /v1/agents: an agent on an instance fetches its bundle once, and reports once that it is ready.
// Its callers have no Keystone token, and it does not call OpenStack.
package agents

import (
	"github.com/cloudfn/cloudfn/shared/httpx"
	"github.com/cloudfn/cloudfn/shared/postgres"
	"github.com/cloudfn/cloudfn/shared/run"
)

// Config is what this function reads from its environment besides run.Config: nothing.
type Config struct{}

// Function declares agents. Instances call it when they boot, without a Keystone token. So it holds nothing but its
// database role, and reaches nothing but Postgres. It wakes no one: the clock finds its events.
var Function = run.HTTP[Config, postgres.Deployments]{
	Name:    "agents",
	Summary: "What an agent fetches once when its instance boots, and its report that it is ready.",
	Reach: run.Reach{
		Tables: map[string]string{
			"connections": "select (id, project_id, status, expires_at, suspended_at)",
			"deployments": "select (id, project_id, instance_id, connection_id, image, token_sha256, bundle, " +
				"created_at, expires_at, fetched_at, ready_at), update (fetched_at, ready_at, bundle)",
			"events": "insert",
			"instances": "select (id, project_id, server_id, order_id, connection_id, state, disconnected_at, seq), " +
				"update (seq)",
		},
	},
	// A guest retries for ten minutes, which is longer than replacing a pod takes. A deployment makes two calls, each
	// some milliseconds of Postgres.
	Scale:  run.Scale{MaxPods: 1, Concurrency: 100, Target: 70},
	Build:  build,
	Routes: httpx.Operations(routes),
}

func build(_ Config, d run.Deps) (postgres.Deployments, error) {
	return postgres.Deployments{DB: d.DB}, nil
}
