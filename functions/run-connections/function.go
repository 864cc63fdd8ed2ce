// Package runconnections does what is asked for through connections, with what was delegated: it is woken when there is something
// to do, and every minute. It takes delegations back when their time is over, and follows servers in other clouds.
package runconnections

import (
	"context"
	"errors"
	"time"

	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/eventx"
	"github.com/cloudfn/cloudfn/shared/obs"
	"github.com/cloudfn/cloudfn/shared/openstack"
	"github.com/cloudfn/cloudfn/shared/postgres"
	"github.com/cloudfn/cloudfn/shared/run"
	"github.com/cloudfn/cloudfn/shared/seal"
)

// Config is what this function reads from its environment besides run.Config.
type Config struct {
	Keys      seal.ConnectionOpenConfig
	OpenStack openstack.Config
	// Account is the trustee of all trusts: a user with a password, because an application credential cannot use trusts.
	Account openstack.Credentials
	// Remotes are the other clouds that connections are to, and how each is reached.
	Remotes openstack.RemotesConfig
}

// Validate refuses a Config that cannot work.
func (c Config) Validate() error { return errors.Join(c.Keys.Validate(), c.Remotes.Validate()) }

// Function declares run-connections. It alone decrypts delegated credentials. Its account of the cloud has no role anywhere: trusts are made to it, and without a
// trust it can do nothing.
var Function = run.Event[Config]{
	Name:     "run-connections",
	Summary:  "Does what is ordered through connections, with what was delegated.",
	Schedule: run.Minutely,
	Reach: run.Reach{
		Tables: map[string]string{
			"actions":              "select, insert, update, delete",
			"callbacks":            "select",
			"connection_requests":  "select, update, delete",
			"connection_resources": "select, insert, update, delete",
			"connections":          "select, insert, update, delete",
			"create_calls":         "select, insert, update",
			"deployments":          "select, insert, update, delete",
			"events":               "select, insert",
			"instances":            "select, insert, update",
			"jobs":                 "select, insert, update, delete",
			"keyed_actions":        "select, delete",
			"orders":               "select, insert, update",
			"trusts_to_revoke":     "select, insert, update, delete",
			"unexpected_servers":   "select, insert",
		},
		Network: []string{"compute", "identity", "image", "network"}, // image: orders name images and networks
		Wakes:   []string{"deliver-events", "poll-instances"},
	},
	Secrets: []string{"connections", "database-events", "events", "openstack-delegate"},
	// Work is claimed, so two pods share it, and one makes up for the other's death. A wake that comes while it works is work too.
	Scale: run.Scale{MaxPods: 2, Concurrency: 10},
	Build: build,
}

func build(cfg Config, d run.Deps) (eventx.Func, error) {
	keys, err := cfg.Keys.Keys()
	if err != nil {
		return nil, err
	}
	if err := d.Cloud.AddRemotes(cfg.Remotes); err != nil {
		return nil, err
	}
	own, err := d.Cloud.Account(cfg.OpenStack, cfg.Account)
	if err != nil {
		return nil, err
	}
	delegations := postgres.Delegations{DB: d.DB}
	s := &service{
		clock: d.DB, jobs: postgres.Jobs{DB: d.DB}, connections: postgres.Connections{DB: d.DB}, delegations: delegations, remote: delegations,
		orders: postgres.Orders{DB: d.DB}, actions: postgres.Actions{DB: d.DB}, instances: postgres.Instances{DB: d.DB},
		requests: postgres.ConnectionRequests{DB: d.DB},
		seal:     keys, wake: d.Wake, workers: newWorkers(), running: make(chan struct{}, 1), waiting: make(chan struct{}, 1),
	}
	s.region, s.seeing = d.Cloud.Region(), true
	s.pending = obs.Gauge("cloudfn.connections.revocations_pending", "Trusts of connections that have ended, which Keystone did not let us delete.")
	s.cloud = newSessions(keys)
	s.cloud.current, s.cloud.accepted, s.cloud.readFlavors = delegations.Current, s.accepted, s.readFlavors
	s.cloud.login = func(ctx context.Context) (account, error) {
		session, err := own.Login(ctx)
		if err != nil {
			return nil, err
		}
		return trustee{session}, nil
	}
	s.cloud.credential = func(ctx context.Context, c domain.Connection, secret domain.Secret) (session, error) {
		return credential(ctx, d.Cloud.At(c.AuthURL, c.Region), c, secret)
	}
	return handler{s}.Handle, nil
}

// trustee shows *openstack.Session as what this function needs of its own account's.
type trustee struct{ own *openstack.Session }

// WithTrust opens a session with a trust.
func (t trustee) WithTrust(ctx context.Context, trust string) (session, error) {
	in, _, err := t.own.Trust(ctx, trust)
	if err != nil {
		return nil, err
	}
	return in, nil
}

// KnowsTrust looks at a trust.
func (t trustee) KnowsTrust(ctx context.Context, id string) error { return t.own.KnowsTrust(ctx, id) }

// FindTrusts finds trusts by the second of their end.
func (t trustee) FindTrusts(ctx context.Context, trustor, projectID string, end time.Time) ([]string, error) {
	return t.own.FindTrusts(ctx, trustor, projectID, end)
}

// credential opens a session with an application credential.
func credential(ctx context.Context, cloud *openstack.Cloud, c domain.Connection, secret domain.Secret) (session, error) {
	in, _, err := cloud.Credential(ctx, c.DelegationID, secret)
	if err != nil {
		return nil, err
	}
	return in, nil
}
