// Package launch serves /v1/launch: orders of servers that are neither lost nor doubled, whatever dies.
package launch

import (
	"errors"
	"fmt"
	"time"

	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/openstack"
	"github.com/cloudfn/cloudfn/shared/postgres"
	"github.com/cloudfn/cloudfn/shared/run"
	"github.com/cloudfn/cloudfn/shared/seal"
	"github.com/cloudfn/cloudfn/shared/webhook"
)

// Config is what this function reads from its environment besides run.Config.
type Config struct {
	// For how long a create call without an answer delays the next one for its instance. A third of it is left to Nova to
	// finish a call whose caller is gone, so it must be well above what Nova takes for one server.
	Claim time.Duration `env:"LAUNCH_CLAIM, default=45s"`

	Seal       seal.Config
	Connection seal.ConnectionConfig
	Ranges     webhook.Ranges
}

// Validate refuses a Config that cannot work.
func (c Config) Validate() error {
	if c.Claim < 3*time.Second || c.Claim > 10*time.Minute {
		return fmt.Errorf("LAUNCH_CLAIM is %s: it must be 3s to 10m", c.Claim)
	}
	if err := errors.Join(c.Seal.Validate(), c.Connection.Validate()); err != nil {
		return err
	}
	return c.Ranges.Validate()
}

// Function declares launch.
var Function = run.HTTP[Config, service]{
	Name:    "launch",
	Summary: "Orders of servers; `?dry_run=true` says what would fail.",
	Reach: run.Reach{
		Tables: map[string]string{
			"actions":              "select",
			"callbacks":            "insert",
			"connection_resources": "select",
			"connections":          postgres.ReadConnections + ", update (last_used_at, next_check_at)",
			"create_calls":         "select, insert, update",
			"events":               "select, insert",
			"instances":            "select, insert, update",
			"orders":               "select, insert, update",
			"trusts_to_revoke":     "select",
			"unexpected_servers":   "select, insert",
		},
		Network: []string{"compute", "identity", "image", "network", "placement"},
		Wakes:   []string{"deliver-events", "poll-instances", "run-connections"},
	},
	Secrets: []string{"database", "events"},
	// An order is many calls to Nova and takes seconds.
	Scale:  run.Scale{MaxPods: 3, Concurrency: 20, Target: 10},
	Build:  build,
	Routes: routes,
}

func build(cfg Config, d run.Deps) (service, error) {
	guard, err := webhook.NewGuard(cfg.Ranges)
	if err != nil {
		return service{}, err
	}
	key, err := cfg.Seal.Key()
	if err != nil {
		return service{}, err
	}
	delegated, err := cfg.Connection.Key()
	if err != nil {
		return service{}, err
	}
	return service{
		cloud: clouds{d.Cloud}, orders: postgres.Orders{DB: d.DB}, instances: postgres.Instances{DB: d.DB}, callbacks: postgres.Callbacks{DB: d.DB},
		connections: postgres.Connections{DB: d.DB}, seal: key, sealOrder: delegated, guard: guard, wake: d.Wake, fence: cfg.Claim,
	}, nil
}

// clouds narrows *openstack.Cloud to what this function needs.
type clouds struct{ *openstack.Cloud }

// As makes calls with the caller's own token.
func (c clouds) As(token domain.Secret, scope string) session { return c.Cloud.As(token, scope) }
