// Package console serves the page at /console/, and lets it use the API: who signs in there has a session, whose token never
// reaches the browser.
package console

import (
	"github.com/cloudfn/cloudfn/shared/auth"
	"github.com/cloudfn/cloudfn/shared/httpx"
	"github.com/cloudfn/cloudfn/shared/postgres"
	"github.com/cloudfn/cloudfn/shared/run"
)

// Config is what this function reads from its environment besides run.Config.
type Config struct {
	// Upstream is where the functions are that the page uses; "" is this process, which then has to serve them.
	Upstream run.Upstream `env:"CONSOLE_UPSTREAM"`

	Callers auth.Config // the projects and domains that are served
}

// Validate refuses a Config that cannot work.
func (c Config) Validate() error {
	if c.Upstream == "" {
		return nil
	}
	return c.Upstream.Validate("CONSOLE_UPSTREAM")
}

func init() { run.HTTP("console", build) }

func build(cfg Config, d run.Deps) ([]httpx.Route, error) {
	functions, err := d.Functions.At("CONSOLE_UPSTREAM", cfg.Upstream)
	if err != nil {
		return nil, err
	}
	files, err := page()
	if err != nil {
		return nil, err
	}
	s := service{store: postgres.Sessions{DB: d.DB}, cloud: d.Cloud, admit: cfg.Callers.Admit}
	return routes(handler{s, functions, files}), nil
}
