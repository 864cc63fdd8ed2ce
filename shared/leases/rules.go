package leases

import (
	"fmt"
	"time"

	"github.com/cloudfn/cloudfn/shared/domain"
)

// RulesConfig is for functions that create or change leases.
type RulesConfig struct {
	// The longest lease, from its start to its end; 0 = unlimited.
	Longest time.Duration `env:"LEASES_LONGEST, default=8784h"`
	// How far ahead a lease may begin; 0 = unlimited.
	Ahead time.Duration `env:"LEASES_AHEAD, default=17568h"`
	// How many leases of a project may be open at once; 0 = unlimited.
	PerProject int `env:"LEASES_PER_PROJECT, default=100"`
	// How long a host stays free between two reservations.
	Cleaning time.Duration `env:"LEASES_CLEANING, default=0s"`
}

// maxCleaning bounds LEASES_CLEANING.
const maxCleaning = 24 * time.Hour

// Validate rejects rules that cannot work.
func (c RulesConfig) Validate() error {
	switch {
	case c.Longest < 0 || c.Longest > 0 && c.Longest < time.Minute:
		return fmt.Errorf("LEASES_LONGEST is %s: it must be 1m or more, or 0 for no limit", c.Longest)
	case c.Ahead < 0 || c.Ahead > 0 && c.Ahead < time.Hour:
		return fmt.Errorf("LEASES_AHEAD is %s: it must be 1h or more, or 0 for no limit", c.Ahead)
	case c.PerProject < 0:
		return fmt.Errorf("LEASES_PER_PROJECT is %d: it must be 1 or more, or 0 for no limit", c.PerProject)
	case c.Cleaning < 0 || c.Cleaning > maxCleaning:
		return fmt.Errorf("LEASES_CLEANING is %s: it must be 0s to 24h", c.Cleaning)
	}
	return nil
}

// Rules returns the rules.
func (c RulesConfig) Rules() domain.LeaseRules {
	return domain.LeaseRules{
		Longest: c.Longest, Ahead: c.Ahead, PerProject: c.PerProject, Cleaning: c.Cleaning,
	}
}
