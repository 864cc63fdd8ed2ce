// Package console serves the page at /console/, and lets it use the API: who signs in there has a session, whose token
// never reaches the browser.
package console

import (
	"time"

	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/auth"
	"github.com/cloudfn/cloudfn/shared/postgres"
	"github.com/cloudfn/cloudfn/shared/run"
)

// Config is what this function reads from its environment besides run.Config.
type Config struct {
	// Where the console finds the functions, such as `http://{function}.cloudfn.svc.cluster.local`; empty: in its own
	// process, as in the daemon.
	Upstream run.Upstream `env:"CONSOLE_UPSTREAM"`

	// How long a session lasts that no one uses. What the page reads on its own is no use. A session ends
	// with its token, and after 12 hours, in any case.
	Idle time.Duration `env:"CONSOLE_IDLE, default=1h" min:"5m" max:"12h"`

	// Sign-ins a minute that all replicas together accept from one address (IPv6: one /56).
	SignIns int `env:"SIGN_IN_RATE_LIMIT, default=60" min:"1" max:"100000"`

	Callers auth.Config // the projects and domains that are served
}

// Validate rejects a Config that cannot work.
func (c Config) Validate() error {
	if c.Upstream == "" {
		return nil
	}
	return c.Upstream.Validate("CONSOLE_UPSTREAM")
}

// Function declares console. It uses sessions only, which only a browser's cookie decrypts.
var Function = run.HTTP[Config, handler]{
	Name:    "console",
	Summary: "The page for people, and the session that lets it use all of the above.",
	Reach: run.Reach{
		Tables: map[string]string{
			"rate_limits": "select, insert, update",
			"sessions":    "select, insert, update (used_at), delete",
		},
		Network: []string{"functions", "identity"}, // identity: who signs in; no other call to the cloud
	},
	// A request waits for another function; the page's files are in memory. Answers are held whole: a page of 1000
	// servers takes 2.7 MB.
	Scale:  run.Scale{MaxPods: 2, Concurrency: 50, Target: 35},
	Build:  build,
	Routes: routes,
}

func build(cfg Config, d run.Deps) (handler, error) {
	functions, err := d.Functions.At("CONSOLE_UPSTREAM", cfg.Upstream)
	if err != nil {
		return handler{}, err
	}
	files, err := page()
	if err != nil {
		return handler{}, err
	}
	s := newService(postgres.Sessions{DB: d.DB}, d.Cloud, cfg.Callers.Admit, cfg.Idle)
	signIns := postgres.RateLimit{DB: d.DB, Limit: apperr.PerMinute("sign-in", cfg.SignIns)}
	return handler{s, signIns, functions, files}, nil
}
