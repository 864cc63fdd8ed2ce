// Package watchnodes watches the hosts of compute: it says which are up, suspect and down, cordons and drains those
// whose admins have said so, and does the drains that nodes has stored.
package watchnodes

import (
	"context"
	"fmt"
	"time"

	"github.com/cloudfn/cloudfn/shared/eventx"
	"github.com/cloudfn/cloudfn/shared/nodes"
	"github.com/cloudfn/cloudfn/shared/openstack"
	"github.com/cloudfn/cloudfn/shared/postgres"
	"github.com/cloudfn/cloudfn/shared/run"
	"github.com/cloudfn/cloudfn/shared/webhook"
)

// Config is what this function reads from its environment besides run.Config.
type Config struct {
	// A node without a report for longer than this is suspect.
	Suspect time.Duration `env:"NODES_SUSPECT_AFTER, default=75s" min:"1s"`
	// A node without a report for longer than this is down; must be longer than `NODES_SUSPECT_AFTER`.
	Down time.Duration `env:"NODES_DOWN_AFTER, default=180s"`
	// The share of a zone's hosts that may be out of service while others are cordoned and drained automatically, in
	// percent; one host always may. Beyond it nothing is cordoned or drained automatically in the zone.
	Share int `env:"NODES_AUTO_SHARE, default=20" min:"1" max:"100"`
	// The project whose callbacks get the events of nodes; empty = only the operator's sink gets them.
	EventProject string `env:"NODES_PROJECT_ID"`
	// Cloud name in clouds.yaml of the account that watches and drains nodes, an admin. When empty, a function that
	// runs alone uses its own login, and the daemon has no account: nothing is watched.
	AccountCloud string `env:"NODES_OS_CLOUD"`
	Account      openstack.Credentials

	StatusURLs webhook.StatusRanges
	OpenStack  openstack.Config
}

// Validate refuses a Config that cannot work.
func (c Config) Validate() error {
	if c.Down <= c.Suspect {
		return fmt.Errorf("NODES_DOWN_AFTER is %s: it must be longer than NODES_SUSPECT_AFTER, %s", c.Down, c.Suspect)
	}
	return nil
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

// Of drains whose admin does not say it.
const (
	parallel      = 2                // servers that move at a time
	serverTimeout = 10 * time.Minute // for which one may move
)

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
		Parallel: parallel, ServerTimeout: serverTimeout, Record: postgres.Managed{DB: d.DB}.RecordNodes,
	}
	s.engine = nodes.Engine{
		Drains: s.drains, Node: s.nodes.Get, Wake: d.Wake, Parallel: parallel, ServerTimeout: serverTimeout,
	}
	own, err := d.Account("NODES_OS_CLOUD", cfg.AccountCloud, cfg.OpenStack, cfg.Account)
	if err != nil {
		return nil, err
	}
	if own != nil {
		s.account = openstack.Keep(func(ctx context.Context) (session, error) { return own.Login(ctx) })
		s.engine.Cloud = func(ctx context.Context) (nodes.DrainCloud, error) { return s.account.Session(ctx) }
		s.engine.Forget = s.account.Forget
	}
	runner := s.newRunner()
	d.AtStart(runner.Chores.Register)
	return eventx.Do(runner.Run), nil
}
