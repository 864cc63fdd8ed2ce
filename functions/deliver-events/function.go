// Package deliverevents is woken whenever something has happened, and when a pause ends, and brings the events of the
// outbox to callbacks and to the operator's sink. It alone dials callbacks, and it alone can open their secrets.
package deliverevents

import (
	"time"

	"github.com/cloudfn/cloudfn/shared/due"
	"github.com/cloudfn/cloudfn/shared/eventx"
	"github.com/cloudfn/cloudfn/shared/flow"
	"github.com/cloudfn/cloudfn/shared/obs"
	"github.com/cloudfn/cloudfn/shared/postgres"
	"github.com/cloudfn/cloudfn/shared/run"
	"github.com/cloudfn/cloudfn/shared/seal"
	"github.com/cloudfn/cloudfn/shared/webhook"
)

// Config is what this function reads from its environment besides run.Config.
type Config struct {
	// How long events are kept, delivered or not. A delivery is retried for 72h.
	Retention time.Duration `env:"EVENTS_RETENTION, default=168h" min:"73h"`
	// `required`, or `optional`: a receiver that does not know the handshake gets events too.
	Handshake string `env:"CALLBACK_HANDSHAKE, default=required" values:"required,optional"`

	Webhook webhook.Config
	Keys    seal.OpenConfig
	Sink    eventx.SinkConfig // who gets every event
}

const (
	tryFor  = 72 * time.Hour // from the first attempt of a delivery to its last one
	workers = 100            // concurrent attempts of a replica; four times as many may wait for slow receivers
)

// Function declares deliver-events. It wakes no function, so its pod reaches none. It alone connects to callbacks and
// decrypts their secrets; it holds no account of the cloud.
var Function = run.Event[Config]{
	Name:    "deliver-events",
	Summary: "Brings events to callbacks and to `K_SINK`.",
	Due:     append(postgres.DueJobs(jobKind), postgres.DueDeliveries()...),
	Reach: run.Reach{
		Tables: map[string]string{
			"callbacks":   "select, insert, update, delete",
			"connections": postgres.ReadConnections,
			"deliveries":  "select, insert, update, delete",
			"events":      "select, insert, update, delete",
			"instances":   "select",
			"jobs":        "select, insert, update, delete",
			"orders":      "select",
			"streams":     "select, insert, update, delete",
		},
		Network: []string{"callbacks"},
	},
	Secrets: []string{"events", "seal"},
	// Each pod makes many attempts concurrently. It works on one event, one waits, and others are answered
	// immediately.
	Scale: run.Scale{MaxPods: 2, Concurrency: 10},
	Build: build,
}

// claimSlack is what a claim outlasts an attempt by: for the end of the receiver's answer, and for writing it down.
const claimSlack = 5 * time.Second

func build(cfg Config, d run.Deps) (eventx.Func, error) {
	p := sender{optional: cfg.Handshake == "optional"}
	var err error
	if p.keys, err = cfg.Keys.Keys(); err != nil {
		return nil, err
	}
	if p.webhook, err = webhook.New(cfg.Webhook); err != nil {
		return nil, err
	}
	longest := cfg.Webhook.Timeout
	if cfg.Sink.URL != "" {
		if p.sink, err = eventx.NewSink(cfg.Sink); err != nil {
			return nil, err
		}
		longest = max(longest, eventx.SendTimeout)
	}
	s := &service{
		outbox: postgres.Outbox{DB: d.DB}, events: postgres.Events{DB: d.DB}, sender: p,
		sink: p.sink != nil, retention: cfg.Retention, claim: longest + claimSlack,
		pool: newPool(workers), runs: flow.NewGate(), keys: p.keys.IDs(),
		unsigned: obs.Gauge("cloudfn.callbacks.key_missing",
			"Secrets of callbacks that are encrypted with a key that SEAL_PRIVATE_KEY lacks."),
	}
	s.chores = &due.Chores{Jobs: postgres.Jobs{DB: d.DB}, Kind: jobKind, All: []*due.Chore{
		{Name: "retire", Every: retireEvery, Limit: retireTime, Do: s.retire},
	}}
	d.AtStart(s.start)
	return s.Handle, nil
}
