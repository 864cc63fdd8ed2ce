package runconnections

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/postgres"
)

// notary is a Keystone that takes a moment to delete a trust.
type notary struct {
	session
	deleted atomic.Int64
}

func (n *notary) WithTrust(context.Context, string) (session, error) { return n, nil }
func (n *notary) KnowsTrust(context.Context, string) error           { return nil }

func (n *notary) FindTrusts(context.Context, string, string, time.Time) ([]string, error) {
	return nil, nil
}

func (n *notary) Flavors(context.Context) ([]domain.Flavor, error) { return []domain.Flavor{}, nil }

func (n *notary) DeleteTrust(context.Context, string) error {
	time.Sleep(100 * time.Millisecond)
	n.deleted.Add(1)
	return nil
}

// TestManyEndAtOnce: one event takes back the trusts of all, however many hands there are: ten minutes after their connection's end
// nobody can delete them any more.
func TestManyEndAtOnce(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	const many = 3 * poolSize
	for n := range many {
		w.connect(t, func(c *domain.Connection) { c.Kind, c.DelegationID = domain.TrustConnection, fmt.Sprint("trust", n) })
	}
	w.exec(t, "update connections set expires_at = clock_timestamp()")
	keystone := &notary{}
	delegations := postgres.Delegations{DB: w.db}
	s := &service{
		clock: w.db, jobs: postgres.Jobs{DB: w.db}, connections: postgres.Connections{DB: w.db}, delegations: delegations, remote: delegations,
		instances: postgres.Instances{DB: w.db}, wake: func(...string) {}, pending: func(context.Context, int64) {},
		requests: postgres.ConnectionRequests{DB: w.db},
	}
	s.cloud = newSessions(nil)
	s.cloud.login = func(context.Context) (account, error) { return keystone, nil }
	if err := s.run(t.Context(), newWorkers().batch()); err != nil {
		t.Fatal(err)
	}
	if left := w.text(t, "select count(*)::text from connections where not revoked"); left != "0" || keystone.deleted.Load() != many {
		t.Errorf("%d of %d trusts were taken back, and %s connections wait", keystone.deleted.Load(), many, left)
	}
}
