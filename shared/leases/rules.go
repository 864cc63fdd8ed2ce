package leases

import (
	"time"

	"github.com/cloudfn/cloudfn/shared/domain"
)

// RulesConfig is for functions that create or change leases.
type RulesConfig struct {
	// The longest lease, from its start to its end.
	Longest time.Duration `env:"LEASES_LONGEST, default=8784h" min:"1m" zero:"no limit"`
	// How far ahead a lease may begin.
	Ahead time.Duration `env:"LEASES_AHEAD, default=17568h" min:"1h" zero:"no limit"`
	// How many leases of a project may be open at the same time.
	PerProject int `env:"LEASES_PER_PROJECT, default=100" min:"1" zero:"no limit"`
	// How long a host stays free between two reservations.
	Cleaning time.Duration `env:"LEASES_CLEANING, default=0s" min:"0s" max:"24h"`
}

// Rules returns the rules.
func (c RulesConfig) Rules() domain.LeaseRules {
	return domain.LeaseRules{
		Longest: c.Longest, Ahead: c.Ahead, PerProject: c.PerProject, Cleaning: c.Cleaning,
	}
}
