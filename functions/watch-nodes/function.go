// Package watchnodes watches the hosts of compute: it says which are up, suspect and down, cordons and drains those
// whose admins have said so, and does the drains that nodes has stored.
package watchnodes

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/eventx"
	"github.com/cloudfn/cloudfn/shared/nodes"
	"github.com/cloudfn/cloudfn/shared/openstack"
	"github.com/cloudfn/cloudfn/shared/postgres"
	"github.com/cloudfn/cloudfn/shared/run"
	"github.com/cloudfn/cloudfn/shared/webhook"
)

// Config is what this function reads from its environment besides run.Config.
type Config struct {
	// A node without a report for longer than this is suspect, 1s at least.
	Suspect time.Duration `env:"NODES_SUSPECT_AFTER, default=75s"`
	// A node without a report for longer than this is down; must be longer than `NODES_SUSPECT_AFTER`.
	Down time.Duration `env:"NODES_DOWN_AFTER, default=180s"`
	// The share of a zone's hosts that may be out of service while others are cordoned and drained automatically, 1 to
	// 100 percent; one host always may. Beyond it nothing is cordoned or drained automatically in the zone.
	Share int `env:"NODES_AUTO_SHARE, default=20"`
	// The project whose callbacks get the events of nodes; empty = only the operator's sink gets them.
	EventProject string `env:"NODES_PROJECT_ID"`
	// How many servers a drain moves at a time if its admin does not say it, 1 to 20.
	Parallel int `env:"NODES_DRAIN_PARALLEL, default=2"`
	// For how long a server of a drain may move if its admin does not say it, 10s to 24h.
	ServerTimeout time.Duration `env:"NODES_SERVER_TIMEOUT, default=10m"`
	// Cloud name in clouds.yaml of the account that watches nodes; the other `NODES_OS_*` variables are then ignored.
	AccountCloud string `env:"NODES_OS_CLOUD"`
	// The account that watches and drains nodes, an admin. Without it nothing is watched.
	Account openstack.Credentials `env:", prefix=NODES_"`

	StatusURLs webhook.StatusRanges
	OpenStack  openstack.Config
}

// Validate refuses a Config that cannot work.
func (c Config) Validate() error {
	if c.Suspect < time.Second {
		return fmt.Errorf("NODES_SUSPECT_AFTER is %s: it must be 1s at least", c.Suspect)
	}
	if c.Down <= c.Suspect {
		return fmt.Errorf("NODES_DOWN_AFTER is %s: it must be longer than NODES_SUSPECT_AFTER, %s", c.Down, c.Suspect)
	}
	if c.Share < 1 || c.Share > 100 {
		return fmt.Errorf("NODES_AUTO_SHARE is %d: it must be 1 to 100, in percent", c.Share)
	}
	if c.Parallel < 1 || c.Parallel > domain.MaxDrainParallel {
		return fmt.Errorf("NODES_DRAIN_PARALLEL is %d: it must be 1 to %d", c.Parallel, domain.MaxDrainParallel)
	}
	return errors.Join(
		domain.CheckTime("NODES_SERVER_TIMEOUT", c.ServerTimeout, domain.MinDrainServerTime, domain.MaxDrainServerTime),
		c.StatusURLs.Validate(),
	)
}

// hasAccount reports whether an account is configured.
func (c Config) hasAccount() bool {
	return c.AccountCloud != "" || c.Account.HasSecret()
}

// Function declares watch-nodes. Its account moves any server of the cloud, so no function that serves HTTP has it.
var Function = run.Event[Config]{
	Name:    "watch-nodes",
	Summary: "Watches nodes, and drains them: servers are migrated to other hosts.",
	Due:     append(postgres.DueJobs(jobKind), postgres.DueDrains()),
	Reach: run.Reach{
		Tables: map[string]string{
			"drain_servers":   "select, insert, update",
			"drains":          "select, insert, update, delete",
			"events":          "select, insert",
			"jobs":            "select, insert, update, delete",
			"managed_members": "select, update (node)",
			"monitors":        "select, insert, update",
			"nodes":           "select, insert, update",
		},
		Network: []string{"callbacks", "compute", "identity"}, // callbacks: status URLs
		Wakes:   []string{"clock", "deliver-events", "run-leases"},
	},
	Secrets: []string{"events", "openstack-nodes"},
	// Drains are claimed, so two pods share them, and either continues if the other dies.
	Scale:      run.Scale{MaxPods: 2, Concurrency: 10},
	CloudCalls: 8,
	Build:      build,
}

// probeTime bounds one call of a status URL.
const probeTime = 3 * time.Second

func build(cfg Config, d run.Deps) (eventx.Func, error) {
	prober, err := webhook.New(webhook.Config{Ranges: webhook.Ranges(cfg.StatusURLs), Timeout: probeTime})
	if err != nil {
		return nil, err
	}
	s := newService(d)
	s.nodes = postgres.Nodes{DB: d.DB, EventProject: cfg.EventProject}
	s.drains = postgres.Drains{DB: d.DB, EventProject: cfg.EventProject}
	s.watcher = nodes.Watcher{
		Nodes: s.nodes, Drains: s.drains, Now: d.DB.Now, Probe: prober.Probe, Suspect: cfg.Suspect, Down: cfg.Down,
		Share:    cfg.Share,
		Parallel: cfg.Parallel, ServerTimeout: cfg.ServerTimeout, Record: postgres.Managed{DB: d.DB}.RecordNodes,
	}
	s.engine = nodes.Engine{
		Drains: s.drains, Node: s.nodes.Get, Wake: d.Wake, Parallel: cfg.Parallel, ServerTimeout: cfg.ServerTimeout,
	}
	if cfg.hasAccount() {
		where := cfg.OpenStack
		where.Cloud = cfg.AccountCloud // never the account of OS_CLOUD
		own, err := d.Cloud.Account(where, cfg.Account)
		if err != nil {
			return nil, openstack.Prefixed("NODES_", err)
		}
		s.account = openstack.Keep(func(ctx context.Context) (session, error) { return own.Login(ctx) })
		s.engine.Cloud = func(ctx context.Context) (nodes.DrainCloud, error) { return s.account.Session(ctx) }
		s.engine.Forget = s.account.Forget
	}
	runner := s.newRunner()
	d.AtStart(runner.Chores.Register)
	return eventx.Do(runner.Run), nil
}
