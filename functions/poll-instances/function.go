// Package pollinstances is woken every minute while there are instances to follow, reads what changed in Nova since the
// last time, and turns it into the states of tracked instances, each change with its event. While Nova works on some of
// them it keeps polling.
package pollinstances

import (
	"cmp"
	"context"
	"time"

	"github.com/cloudfn/cloudfn/shared/eventx"
	"github.com/cloudfn/cloudfn/shared/openstack"
	"github.com/cloudfn/cloudfn/shared/postgres"
	"github.com/cloudfn/cloudfn/shared/run"
)

// Config is what this function reads from its environment besides run.Config.
type Config struct {
	OpenStack openstack.Config
	Account   openstack.Credentials

	Follow time.Duration // for tests: how long an event polls again while Nova is at work; 0 = followFor
}

const (
	fullEvery    = 10 * time.Minute // between two reads of all servers
	unknownAfter = 3 * time.Minute  // a project that cannot be read for so long has unknown instances
	followFor    = 45 * time.Second
	firstPause   = 2 * time.Second // between two polls of one event; it grows to longestPause
)

// Function declares poll-instances.
var Function = run.Event[Config]{
	Name:    "poll-instances",
	Summary: "Follows what Nova does with the instances.",
	Due:     append(postgres.DueJobs(jobKind), postgres.DueFollowed(), postgres.DueReleases()),
	Reach: run.Reach{
		Tables: map[string]string{
			"actions":            "select",
			"connections":        postgres.ReadConnections,
			"create_calls":       "select, insert, update",
			"events":             "select, insert",
			"instances":          "select, insert, update",
			"jobs":               "select, insert, update, delete",
			"orders":             "select, insert, update",
			"polls":              "select, insert, update, delete",
			"unexpected_servers": "select, insert",
			"unserved_projects":  "select",
		},
		Network: []string{"compute", "identity", "network", "volume"}, // of orders: floating IPs, names of volumes
		Wakes:   []string{"clock", "deliver-events"},
	},
	Secrets: []string{"events", "openstack"},
	// Projects are claimed, so two pods share them when reading them takes most of a minute. An event is a round, and
	// one more may wait: a pod that nearly always has both gets help.
	Scale: run.Scale{MaxPods: 2, Concurrency: 10, Target: 2},
	Build: build,
}

func build(cfg Config, d run.Deps) (eventx.Func, error) {
	account, err := d.Cloud.Account(cfg.OpenStack, cfg.Account)
	if err != nil {
		return nil, err
	}
	login := func(ctx context.Context) (session, error) {
		in, err := account.Login(ctx)
		return scoped{in}, err
	}
	s := newService(d.DB, login, func() { d.Wake("deliver-events") })
	s.full, s.unknownAfter, s.followFor, s.pause = fullEvery, unknownAfter, cmp.Or(cfg.Follow, followFor), firstPause
	d.AtStart(s.chores.Register)
	return eventx.Do(s.Poll), nil
}

// scoped shows a session as the part of OpenStack that this function needs.
type scoped struct{ *openstack.Session }

// In opens a session in one project.
func (s scoped) In(ctx context.Context, projectID string) (session, error) {
	in, err := s.Session.In(ctx, projectID)
	return scoped{in}, err
}
