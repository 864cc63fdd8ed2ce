// Package launch serves /v1/launch: orders of servers that are neither lost nor made twice, whatever process dies.
package launch

import (
	"errors"
	"time"

	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/delegation"
	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/httpx"
	"github.com/cloudfn/cloudfn/shared/leases"
	"github.com/cloudfn/cloudfn/shared/postgres"
	"github.com/cloudfn/cloudfn/shared/run"
	"github.com/cloudfn/cloudfn/shared/seal"
	"github.com/cloudfn/cloudfn/shared/webhook"
)

// Config is what this function reads from its environment besides run.Config.
type Config struct {
	// For how long servers that are launched without a lease get one: an ISO 8601 duration, such as P1M. At its end
	// they are shelved. Empty = they get none.
	DefaultLease domain.Period `env:"DEFAULT_LEASE"`

	// Launches a minute that all replicas together accept from one project.
	Launches int `env:"LAUNCH_RATE_LIMIT, default=600" min:"1" max:"100000"`

	// To whom trusts for leases are made.
	Trust delegation.Config
	Rules leases.RulesConfig

	Seal       seal.Config
	Connection seal.ConnectionConfig
	Ranges     webhook.Ranges
	Quota      webhook.Quota
}

// fence is for how long a create call without an answer delays the next one for its instance. A third of it is left to
// Nova to finish a call whose caller has disconnected, so it is well above what Nova takes for one server.
const fence = 45 * time.Second

// Function declares launch.
var Function = run.HTTP[Config, service]{
	Name:    "launch",
	Summary: "Orders of servers; `?dry_run=true` says what would fail.",
	Reach: run.Reach{
		Tables: postgres.MayTakeIDs(map[string]string{
			"actions":              "select",
			"callbacks":            postgres.ReadCallbacks + ", insert",
			"connection_resources": "select",
			"connections": postgres.ReadConnections + ", insert, " +
				"update (status, reason, secret, suspended_at, revoked, seq, updated_at, last_used_at, next_check_at)",
			"create_calls":       "select, insert, update",
			"events":             "select, insert",
			"idempotency_keys":   "select, insert, update, delete",
			"instances":          "select, insert, update",
			"leases":             "select, insert, update",
			"orders":             "select, insert, update",
			"allocations":        "select",
			"rate_limits":        "select, insert, update",
			"reservations":       "select, insert",
			"trusts_to_revoke":   "select, insert, update, delete",
			"unexpected_servers": "select, insert",
		}),
		Network: []string{"compute", "identity", "image", "network", "placement", "volume"},
		Wakes:   []string{"deliver-events", "poll-instances", "run-connections", "run-leases"},
	},
	Secrets: []string{"events"},
	// An order is many calls to Nova and takes seconds.
	Scale:  run.Scale{MaxPods: 3, Concurrency: 20, Target: 10},
	Build:  build,
	Routes: httpx.Operations(routes),
}

func build(cfg Config, d run.Deps) (service, error) {
	guard, noGuard := webhook.NewGuard(cfg.Ranges)
	key, noKey := cfg.Seal.Key()
	delegated, noDelegated := cfg.Connection.Key()
	return service{
		cloud: d.Cloud, orders: postgres.Orders{DB: d.DB}, instances: postgres.Instances{DB: d.DB},
		callbacks: postgres.Callbacks{DB: d.DB}, connections: postgres.Connections{DB: d.DB},
		launches: postgres.RateLimit{DB: d.DB, Limit: apperr.PerMinute("launch", cfg.Launches)},
		leases:   postgres.Leases{DB: d.DB}, rules: cfg.Rules.Rules(),
		trusts: delegation.Trusts{
			Store: postgres.Connections{DB: d.DB}, Trustee: cfg.Trust.Trustee, Wake: d.Wake,
		},
		defaultLease: cfg.DefaultLease,
		seal:         key, sealOrder: delegated, guard: guard, wake: d.Wake,
		mostCallbacks: cfg.Quota.PerProject,
	}, errors.Join(noGuard, noKey, noDelegated)
}
