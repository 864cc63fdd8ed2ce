// Package runleases begins and ends leases: it does what is due. With a service
// account that may manage hosts it also keeps the pool of reservable hosts.
package runleases

import (
	"context"
	"time"

	"github.com/cloudfn/cloudfn/shared/eventx"
	"github.com/cloudfn/cloudfn/shared/leases"
	"github.com/cloudfn/cloudfn/shared/openstack"
	"github.com/cloudfn/cloudfn/shared/postgres"
	"github.com/cloudfn/cloudfn/shared/run"
)

// Config is what this function reads from its environment besides run.Config.
type Config struct {
	// For how long the start of a lease is retried before the lease is in error.
	RetryFor time.Duration `env:"LEASES_RETRY_FOR, default=15m" min:"0s" max:"24h"`
	// For how long the end of a lease is retried before the lease is in error; 0s = without a limit. It is tried
	// less often from then on.
	EndFor time.Duration `env:"LEASES_END_FOR, default=1h" min:"0s" max:"24h"`
	// How long a reserved host has to be down in Nova before another one takes its place. When watch-nodes
	// watches it, it has to be `down` there, too (`NODES_DOWN_AFTER`). One that an admin has forced down in Nova is
	// replaced immediately.
	HealAfter time.Duration `env:"LEASES_HEAL_AFTER, default=2m" min:"0s" max:"24h"`
	// Cloud name in clouds.yaml of the account that manages hosts, an admin. When empty, a function that runs alone
	// uses its own login, and the daemon has no account: no host can be reserved.
	AccountCloud string `env:"LEASES_OS_CLOUD"`
	Account      openstack.Credentials

	// Leases of servers that were made directly in Nova.
	Adopt AdoptConfig

	OpenStack openstack.Config
}

// claimFor is how long a replica that has died keeps its leases. Work renews its claim.
const claimFor = 45 * time.Second

// Function declares run-leases. What it does to instances goes through run-connections, with what their users have
// delegated. Its own account manages hosts, and is no other function's.
var Function = run.Event[Config]{
	Name:    "run-leases",
	Summary: "Begins and ends leases: instances are unshelved and shelved, hosts reserved and returned.",
	Due:     append(postgres.DueJobs(jobKind), postgres.DueLeases(), postgres.DuePool()),
	Reach: run.Reach{
		Tables: postgres.MayTakeIDs(map[string]string{
			"actions":     "select, insert, update",
			"allocations": "select, insert, update, delete",
			"connections": postgres.ReadConnections +
				", update (status, reason, secret, suspended_at, revoked, seq, updated_at, last_used_at)",
			"create_calls":      "select",
			"events":            "select, insert",
			"instances":         "select, insert, update",
			"isolation":         "select, insert, update",
			"jobs":              "select, insert, update, delete",
			"leases":            "select, insert, update, delete",
			"nodes":             "select, insert, update, delete",
			"orders":            "select",
			"pool_traits":       "select",
			"reservations":      "select, insert, update",
			"unserved_projects": "select",
		}),
		Network: []string{"compute", "identity", "image", "network", "placement"}, // network: what a deletion leaves
		Wakes:   []string{"clock", "deliver-events", "run-connections"},
	},
	Secrets: []string{"events", "openstack-leases"},
	// Leases are claimed, so two pods share them, and either continues if the other dies.
	Scale:      run.Scale{MaxPods: 2, Concurrency: 10},
	CloudCalls: 8,
	Build:      build,
}

func build(cfg Config, d run.Deps) (eventx.Func, error) {
	s := &service{
		db: d.DB, jobs: postgres.Jobs{DB: d.DB}, leases: postgres.Leases{DB: d.DB}, nodes: postgres.Nodes{DB: d.DB},
		isolation: postgres.Isolations{DB: d.DB}, adoption: cfg.Adopt, region: d.Cloud.Region(), wake: d.Wake,
	}
	s.engine = leases.Engine{
		Store: s.leases, Actions: postgres.Actions{DB: d.DB}, Instances: postgres.Instances{DB: d.DB},
		Connections: postgres.Delegations{DB: d.DB}, Nodes: s.nodes, Wake: d.Wake,
		RetryFor: cfg.RetryFor, EndFor: cfg.EndFor, ClaimFor: claimFor, HealAfter: cfg.HealAfter,
		Inventory: &leases.Inventory{},
	}
	own, err := d.Account("LEASES_OS_CLOUD", cfg.AccountCloud, cfg.OpenStack, cfg.Account)
	if err != nil {
		return nil, err
	}
	if own != nil {
		s.account = openstack.KeepSession(own)
		s.engine.Cloud = func(ctx context.Context) (leases.Cloud, error) { return s.account.Session(ctx) }
		s.engine.Forget = s.account.Forget
		s.engine.IsIsolated = func(ctx context.Context, then time.Time) (bool, error) {
			tested, err := s.isolation.Get(ctx, s.region)
			return tested.ProvenSince != nil && tested.ProvenSince.Before(then), err
		}
	}
	runner := s.newRunner()
	d.AtStart(runner.Chores.Register)
	return eventx.Do(runner.Run), nil
}
