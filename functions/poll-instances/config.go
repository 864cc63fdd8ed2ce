// Package pollinstances is woken every minute, reads what changed in Nova since the last time, and turns it into the states
// of tracked instances, each change with its event. While Nova is at work on some of them it goes on looking.
package pollinstances

import (
	"context"
	"fmt"
	"time"

	"github.com/cloudfn/cloudfn/shared/eventx"
	"github.com/cloudfn/cloudfn/shared/openstack"
	"github.com/cloudfn/cloudfn/shared/postgres"
	"github.com/cloudfn/cloudfn/shared/run"
)

// Config is what this function reads from its environment besides run.Config.
type Config struct {
	// Full is how long after all servers were read, changed or not, they are read again.
	Full time.Duration `env:"POLL_FULL, default=10m"`
	// UnknownAfter is for how long a project may not be readable before its instances count as unknown.
	UnknownAfter time.Duration `env:"POLL_UNKNOWN_AFTER, default=3m"`
	// Follow is for how long one event looks again while Nova is at work on instances; 0 is one look for each event.
	Follow time.Duration `env:"POLL_FOLLOW, default=45s"`
	// Pause is the time between these looks at first; it grows to 5 s.
	Pause time.Duration `env:"POLL_PAUSE, default=2s"`

	OpenStack openstack.Config
	Account   openstack.Credentials
}

// Validate refuses a Config that cannot work.
func (c Config) Validate() error {
	switch {
	case c.Full < time.Minute || c.Full > 24*time.Hour:
		return fmt.Errorf("POLL_FULL is %s: it must be 1m to 24h", c.Full)
	case c.UnknownAfter < time.Second || c.UnknownAfter > 24*time.Hour:
		return fmt.Errorf("POLL_UNKNOWN_AFTER is %s: it must be 1s to 24h", c.UnknownAfter)
	case c.Follow < 0 || c.Follow > 5*time.Minute:
		return fmt.Errorf("POLL_FOLLOW is %s: it must be 0s to 5m", c.Follow)
	case c.Pause < 100*time.Millisecond || c.Pause > longestPause:
		return fmt.Errorf("POLL_PAUSE is %s: it must be 100ms to %s", c.Pause, longestPause)
	}
	return nil
}

func init() { run.Event("poll-instances", run.Minutely, build) }

func build(cfg Config, d run.Deps) (eventx.Func, error) {
	account, err := d.Cloud.Account(cfg.OpenStack, cfg.Account)
	if err != nil {
		return nil, err
	}
	s := &service{
		cloud: &sessions{
			login: func(ctx context.Context) (session, error) { return narrow(account.Login(ctx)) },
			kept:  map[string]session{},
		},
		clock: d.DB, jobs: postgres.Jobs{DB: d.DB}, polls: postgres.Polls{DB: d.DB},
		instances: postgres.Instances{DB: d.DB}, orders: postgres.Orders{DB: d.DB},
		wake: func() { d.Wake("deliver-events") },
		full: cfg.Full, unknownAfter: cfg.UnknownAfter, followFor: cfg.Follow, pause: cfg.Pause,
	}
	return handler{s}.Handle, nil
}

// narrowed shows *openstack.Session as what this function needs of it.
type narrowed struct{ *openstack.Session }

// In opens a session in one project.
func (n narrowed) In(ctx context.Context, projectID string) (session, error) {
	return narrow(n.Session.In(ctx, projectID))
}

func narrow(s *openstack.Session, err error) (session, error) {
	if err != nil {
		return nil, err
	}
	return narrowed{s}, nil
}
