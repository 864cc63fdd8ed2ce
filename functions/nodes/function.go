// Package nodes serves /v1/nodes: the cloud's hosts of compute, which of them take servers, which are drained, and
// which can be reserved.
package nodes

import (
	"github.com/cloudfn/cloudfn/shared/httpx"
	"github.com/cloudfn/cloudfn/shared/postgres"
	"github.com/cloudfn/cloudfn/shared/run"
	"github.com/cloudfn/cloudfn/shared/webhook"
)

// Config is what this function reads from its environment besides run.Config.
type Config struct {
	// Id of the operators' project: its callbacks get the events of nodes. Empty = only the broker gets them.
	ProjectID string `env:"NODES_PROJECT_ID"`

	StatusURLs webhook.StatusRanges
}

// Function declares nodes.
var Function = run.HTTP[Config, service]{
	Name:    "nodes",
	Summary: "Hosts of compute for the cloud's admins: cordon, drain, and which of them can be reserved.",
	Reach: run.Reach{
		Tables: map[string]string{
			"allocations":   "select",
			"drain_servers": "select",
			"drains":        "select, insert, update",
			"events":        "insert",
			"isolation":     "select, insert, update",
			"node_tokens":   "select, insert, update, delete",
			"nodes":         "select, insert, update, delete",
			"rate_limits":   "select",
			"reservations":  "select",
		},
		Network: []string{"compute", "identity", "image", "placement"}, // image: of the self-test's server
		Wakes:   []string{"deliver-events", "run-leases", "watch-nodes"},
	},
	Secrets: []string{"events"},
	// An answer of a thousand hosts takes Nova and Placement seconds, and this function next to nothing.
	Scale:  run.Scale{MaxPods: 1, Concurrency: 50, Target: 35},
	Build:  build,
	Routes: httpx.Operations(routes),
}

func build(cfg Config, d run.Deps) (service, error) {
	guard, err := webhook.NewGuard(webhook.Ranges(cfg.StatusURLs))
	if err != nil {
		return service{}, err
	}
	return service{
		nodes:      postgres.Nodes{DB: d.DB, EventProject: cfg.ProjectID},
		drains:     postgres.Drains{DB: d.DB, EventProject: cfg.ProjectID},
		isolations: postgres.Isolations{DB: d.DB},
		leases:     postgres.Leases{DB: d.DB},
		cloud:      d.Cloud,
		statusURLs: guard,
		wake:       d.Wake,
	}, nil
}
