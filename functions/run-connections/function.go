// Package runconnections carries out the orders and actions of connections, with the credentials that were delegated.
// It revokes delegations when they end, and follows servers in other
// clouds.
package runconnections

import (
	"context"

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
	// Account is the trustee of all trusts: a user with a password, because an application credential cannot use
	// trusts.
	Account openstack.Credentials
	// Remotes are the other clouds that connections are to, and how each is reached.
	Remotes openstack.RemotesConfig
}

// Function declares run-connections. It alone decrypts delegated credentials. Its account of the cloud has no role
// anywhere: trusts are made to it, and without a trust it can do nothing.
var Function = run.Event[Config]{
	Name:    "run-connections",
	Summary: "Does what is ordered through connections, with what was delegated.",
	Due:     append(postgres.DueJobs(jobKind), postgres.DueConnections()...),
	Reach: run.Reach{
		Tables: postgres.MayTakeIDs(map[string]string{
			"actions":              "select, insert, update, delete",
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
		}),
		// image and network: orders name images and networks. volume: volumes of leases.
		Network: []string{"compute", "identity", "image", "network", "volume"},
		Wakes:   []string{"clock", "deliver-events", "poll-instances", "run-leases"},
	},
	Secrets: []string{"connections", "events", "openstack-delegate"},
	// Work is claimed, so two pods share it, and either continues if the other dies. A wake that arrives during a run
	// is a request, too.
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
	s := newService(d.DB, d.Wake)
	s.seal, s.region, s.readsResources = keys, d.Cloud.Region(), true
	s.pending = obs.Gauge("cloudfn.connections.revocations_pending",
		"Trusts of connections that have ended, which Keystone did not let us delete.")
	s.cloud.Current, s.cloud.Now = s.delegations.Current, d.DB.Now
	s.cloud.Accepted, s.cloud.First = s.accepted, s.readFlavors
	s.cloud.Login = func(ctx context.Context) (account, error) {
		session, err := own.Login(ctx)
		return trustee{session}, err
	}
	s.cloud.Credential = func(ctx context.Context, c domain.Connection) (session, error) {
		secret, err := keys.Open(c.SealedFor(), c.Secret)
		if err != nil {
			return nil, err // the operator's mistake
		}
		return d.Cloud.At(c.AuthURL, c.Region).Credential(ctx, c.DelegationID, secret)
	}
	d.AtStart(s.periodic.Register)
	return eventx.Do(s.Run), nil
}

// trustee adapts the service account's session to the interface account.
type trustee struct{ *openstack.Session }

// WithTrust opens a session with a trust.
func (t trustee) WithTrust(ctx context.Context, trust string) (session, error) {
	return t.Session.WithTrust(ctx, trust)
}
