package runconnections

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cloudfn/cloudfn/shared/domain"
)

// countingAccount is a Keystone that takes a moment to delete a trust.
type countingAccount struct {
	session
	deleted atomic.Int64
}

func (n *countingAccount) WithTrust(context.Context, string) (session, error) { return n, nil }
func (n *countingAccount) CheckTrust(context.Context, string) error           { return nil }

func (n *countingAccount) FindTrusts(context.Context, string, string, time.Time) ([]string, error) {
	return nil, nil
}

func (n *countingAccount) Flavors(context.Context) ([]domain.Flavor, error) {
	return []domain.Flavor{}, nil
}

func (n *countingAccount) DeleteTrust(context.Context, string) error {
	time.Sleep(100 * time.Millisecond)
	n.deleted.Add(1)
	return nil
}

// TestLongManyConnectionsEndAtOnce: one event revokes all their trusts, although there are fewer workers than trusts.
// Ten minutes after their connection's end nobody can delete them any more.
func TestLongManyConnectionsEndAtOnce(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	const many = 3 * poolSize
	for n := range many {
		w.connect(t, func(c *domain.Connection) {
			c.Kind, c.DelegationID = domain.TrustConnection, fmt.Sprint("trust", n)
		})
	}
	w.exec(t, "update connections set expires_at = clock_timestamp()")
	keystone := &countingAccount{}
	s := newService(w.db, func(...string) {})
	s.cloud.login = func(context.Context) (account, error) { return keystone, nil }
	if err := s.run(t.Context(), newWorkers().batch()); err != nil {
		t.Fatal(err)
	}
	if left := w.text(t, "select count(*)::text from connections where not revoked"); left != "0" ||
		keystone.deleted.Load() != many {
		t.Errorf("%d of %d trusts were revoked, and %s connections wait", keystone.deleted.Load(), many, left)
	}
}
