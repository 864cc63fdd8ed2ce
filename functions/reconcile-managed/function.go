// Package reconcilemanaged makes declared resources real: when a project is due it holds what is declared
// against what OpenStack has, and makes, changes, replaces or deletes what differs, in its user's name.
package reconcilemanaged

import (
	"encoding/json"
	"time"

	"github.com/cloudfn/cloudfn/shared/actions"
	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/eventx"
	"github.com/cloudfn/cloudfn/shared/managed"
	"github.com/cloudfn/cloudfn/shared/openstack"
	"github.com/cloudfn/cloudfn/shared/orders"
	"github.com/cloudfn/cloudfn/shared/postgres"
	"github.com/cloudfn/cloudfn/shared/run"
	"github.com/cloudfn/cloudfn/shared/seal"
)

// Config is what this function reads from its environment besides run.Config.
type Config struct {
	Keys      seal.ManagedOpenConfig
	OpenStack openstack.Config
	// Account is the trustee of all trusts: a user with a password, because an application credential cannot use
	// trusts.
	Account openstack.Credentials
}

// claimFor is how long a replica that has died keeps its projects. A round renews its claim.
const claimFor = 20 * time.Second

// Function declares reconcile-managed. Its account of the cloud has no role anywhere: anyone who declares a resource
// makes a trust to it, and without a trust it can do nothing.
var Function = run.Event[Config]{
	Name:    "reconcile-managed",
	Summary: "Makes declared resources real, and keeps them as declared.",
	Due:     []string{postgres.DueManaged()},
	Reach: run.Reach{
		Tables: postgres.MayTakeIDs(map[string]string{
			"actions": "select",
			"connections": postgres.ReadConnections +
				", update (status, reason, secret, suspended_at, revoked, seq, updated_at)",
			"create_calls":       "select, insert, update",
			"events":             "select, insert",
			"instances":          "select, insert, update",
			"managed":            "select, update, delete",
			"managed_members":    "select, insert, update, delete",
			"managed_projects":   "select, update, delete",
			"managed_revisions":  "select, delete",
			"nodes":              "select",
			"orders":             "select, insert, update",
			"unexpected_objects": "select, insert, update, delete",
			"unexpected_servers": "select, insert",
			"unserved_projects":  "select",
		}),
		Network: []string{
			"compute", "identity", "image", "key-manager", "load-balancer", "network", "volume",
		},
		Wakes: []string{"clock", "deliver-events", "poll-instances", "run-connections"},
	},
	Secrets: []string{"events", "managed", "openstack-delegate"},
	// Projects are claimed, so two pods share them, and either continues if the other dies.
	Scale:      run.Scale{MaxPods: 2, Concurrency: 10},
	CloudCalls: 8,
	Build:      build,
}

func build(cfg Config, d run.Deps) (eventx.Func, error) {
	keys, err := cfg.Keys.Keys()
	if err != nil {
		return nil, err
	}
	own, err := d.Cloud.Account(cfg.OpenStack, cfg.Account)
	if err != nil {
		return nil, err
	}
	store := postgres.Managed{DB: d.DB}
	engine := managed.Engine{
		Store: store, Sessions: newSessions(own, d.DB, d.Wake), Drivers: drivers(d), Nodes: postgres.Nodes{DB: d.DB},
		Wake: d.Wake,
		Unseal: func(m domain.Managed) (out domain.ManagedSecrets, err error) {
			text, err := keys.Open(m.SealedFor(), m.Secrets)
			if err != nil {
				return out, err
			}
			return out, json.Unmarshal([]byte(text.Reveal()), &out)
		},
	}
	return eventx.Do(newRunner(engine, store.Queue()).Run), nil
}

// drivers are the drivers by the kinds that they serve.
func drivers(d run.Deps) map[domain.Kind]managed.Driver {
	instances := postgres.Instances{DB: d.DB}
	machines := &managed.MachineDriver{
		Orders: orders.Engine{
			Orders: postgres.Orders{DB: d.DB}, Instances: instances, Fence: createFence,
			Wake: func() { d.Wake("deliver-events") },
		},
		Actions: actions.Engine{Instances: instances}, Instances: instances,
	}
	all := map[domain.Kind]managed.Driver{}
	for _, driver := range []managed.Driver{
		machines,
		managed.VolumeDriver{},
		managed.ImageDriver{},
		managed.NewBalancerDriver(),
		managed.SecretDriver{},
		managed.ConfigmapDriver{},
	} {
		for _, kind := range driver.Kinds() {
			all[kind] = driver
		}
	}
	return all
}
