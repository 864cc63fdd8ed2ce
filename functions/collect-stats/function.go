// Package collectstats is woken every hour and counts the servers of every project at that hour. Hours that
// were missed are rebuilt from Nova's own history. It also keeps the request log's partitions, and deletes old rows.
package collectstats

import (
	"context"
	"time"

	"github.com/cloudfn/cloudfn/shared/auth"
	"github.com/cloudfn/cloudfn/shared/eventx"
	"github.com/cloudfn/cloudfn/shared/openstack"
	"github.com/cloudfn/cloudfn/shared/postgres"
	"github.com/cloudfn/cloudfn/shared/run"
)

// Config is what this function reads from its environment besides run.Config.
type Config struct {
	// How far back missing hours are rebuilt.
	Backfill time.Duration `env:"STATS_BACKFILL, default=24h" min:"1h" max:"720h"`
	// How long a month of the request log is kept after its end.
	Retention time.Duration `env:"REQUESTS_RETENTION, default=2160h" min:"24h"`
	// By how many megabytes (MiB) the request log and the stored responses to requests with an Idempotency-Key may
	// grow within a day, with their indexes. Beyond that collect-stats logs an error each hour.
	DailyMB int64 `env:"REQUESTS_DAILY_MB, default=10240" min:"1"`
	// Rows is how long other rows are kept.
	Rows postgres.RetentionConfig
	// Claim is how long one replica keeps a tick's work to itself: as long as it may work on it.
	Claim time.Duration `env:"EVENT_TIMEOUT, default=5m"`

	Callers   auth.Config // the projects and domains that are served are those that are counted
	OpenStack openstack.Config
	Account   openstack.Credentials
}

// maxBackfill bounds the window of hours that may still be filled in; jobs are kept for longer than that.
const maxBackfill = 30 * 24 * time.Hour

// Function declares collect-stats. It deletes old rows of every kind.
var Function = run.Event[Config]{
	Name:     "collect-stats",
	Summary:  "Counts the servers of every project at each full hour.",
	Schedule: run.Hourly,
	Due:      postgres.DueStats(), // hours that are missing, and counts that are not finished
	Reach: run.Reach{
		Tables: postgres.MayListRemains(map[string]string{
			"actions":   "select, delete",
			"callbacks": postgres.ReadCallbacks + ", update, delete",
			"connections": postgres.ReadConnections +
				", update (suspended_at, resumed_at, reason, seq, updated_at)",
			"idempotency_keys":   "select (project_id, key_id, expires_at), delete",
			"leases":             "select",
			"managed":            "select (project_id, provider, schedule)",
			"managed_projects":   "select (project_id, domain_id)",
			"monitors":           "select, insert, update",
			"unserved_projects":  "select, insert, delete",
			"deployments":        "select (project_id, instance_id), delete",
			"deliveries":         "select",
			"events":             "select, insert, delete",
			"instances":          "select, update, delete",
			"jobs":               "select, insert, update, delete",
			"orders":             "select, update, delete",
			"rate_limits":        "select, update (used_up), delete",
			"request_log_sizes":  "select, insert, update, delete",
			"requests":           "select, delete",
			"retention_markers":  "select, insert, update, delete",
			"stats_hourly":       "select, insert, update, delete",
			"stats_projects":     "select, insert, update, delete",
			"stats_sums":         "select, insert, update, delete",
			"streams":            "select, update (next_at, attempts, failing_since), delete",
			"unexpected_objects": "select, update (missed_at), delete",
			"wake_failures":      "select (function, failed_at)",
			"function drop_requests_month(timestamptz)": "execute",
			"function make_requests_month(timestamptz)": "execute",
		}),
		Network: []string{"compute", "identity"},
		Wakes:   []string{"clock", "deliver-events", "run-connections"},
	},
	Secrets: []string{"events", "openstack"},
	// One replica works, and answers the events that come meanwhile immediately. Knative replaces its pod when a node
	// is lost.
	Scale: run.Scale{MaxPods: 1, Concurrency: 10},
	Build: build,
}

func build(cfg Config, d run.Deps) (eventx.Func, error) {
	account, err := d.Cloud.Account(cfg.OpenStack, cfg.Account)
	if err != nil {
		return nil, err
	}
	s := newService(d.DB, func(ctx context.Context) (session, error) {
		in, err := account.Login(ctx)
		return scoped{in}, err
	})
	s.rows.Config, s.allows, s.domains = cfg.Rows, cfg.Callers.Allows, cfg.Callers.AllowedDomains
	s.budget = cfg.DailyMB << 20
	s.unserved = cfg.Callers.Unserved
	s.backfill, s.retention, s.claim, s.wake = cfg.Backfill, cfg.Retention, cfg.Claim, d.Wake
	d.AtStart(s.start)
	return s.Handle, nil
}

// scoped shows a session as the part of OpenStack that this function needs.
type scoped struct{ *openstack.Session }

// In opens a session in one project.
func (s scoped) In(ctx context.Context, projectID string) (session, error) {
	in, err := s.Session.In(ctx, projectID)
	return scoped{in}, err
}
