// Package launch serves /v1/launch: orders of servers that are neither lost nor doubled, whatever dies.
package launch

import (
	"errors"
	"fmt"
	"time"

	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/httpx"
	"github.com/cloudfn/cloudfn/shared/openstack"
	"github.com/cloudfn/cloudfn/shared/postgres"
	"github.com/cloudfn/cloudfn/shared/run"
	"github.com/cloudfn/cloudfn/shared/seal"
	"github.com/cloudfn/cloudfn/shared/webhook"
)

// Config is what this function reads from its environment besides run.Config.
type Config struct {
	// Claim is for how long an unanswered create call keeps the next one for its instance back. A third of it is left to
	// Nova to finish a call whose caller is gone, so it must be well above what Nova takes for one server.
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

func init() { run.HTTP("launch", build) }

func build(cfg Config, d run.Deps) ([]httpx.Route, error) {
	guard, err := webhook.NewGuard(cfg.Ranges)
	if err != nil {
		return nil, err
	}
	key, _ := cfg.Seal.Key() // Validate has refused a wrong one; who only looks at the routes has none
	delegated, _ := cfg.Connection.Key()
	return routes(service{
		cloud: clouds{d.Cloud}, orders: postgres.Orders{DB: d.DB}, instances: postgres.Instances{DB: d.DB}, callbacks: postgres.Callbacks{DB: d.DB},
		connections: postgres.Connections{DB: d.DB}, seal: key, sealOrder: delegated, guard: guard, wake: d.Wake, fence: cfg.Claim,
	}), nil
}

// clouds narrows *openstack.Cloud to what this function needs.
type clouds struct{ *openstack.Cloud }

// As makes calls with the caller's own token.
func (c clouds) As(token domain.Secret, scope string) session { return c.Cloud.As(token, scope) }
