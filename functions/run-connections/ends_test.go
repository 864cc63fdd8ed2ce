package runconnections

import (
	"context"
	"fmt"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/postgres"
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

// TestEndOfActionWakesLeases: an action through a connection that a lease names ends. The lease continues immediately;
// no lease is woken for an instance without one.
func TestEndOfActionWakesLeases(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	c := w.connect(t, func(c *domain.Connection) { c.Kind, c.DelegationID = domain.TrustConnection, "none" })
	for _, lease := range []uuid.UUID{uuid.Nil, uuid.New()} {
		nova, s := w.withFailingNova(c)
		nova.server = domain.Server{ID: "s", Status: "SHUTOFF"}
		s.actions = postgres.Actions{DB: w.db}
		var woken []string
		s.wake = func(functions ...string) { woken = append(woken, functions...) }
		id := uuid.New()
		w.exec(t, `insert into instances (project_id, id, position, name, server_id, state, origin, connection_id, lease_id)
  values ($1, $2, 0, 'x', 's', 'stopped', 'launched', $3, nullif($4, '00000000-0000-0000-0000-000000000000'::uuid))`,
			w.ID, id, c.ID, lease)
		a := w.ask(t, c, id, domain.ActionRequest{Action: domain.Stop}, nil)
		claim, taken, err := s.actions.Claim(t.Context(), w.ID, c.ID, time.Minute, 1)
		if err != nil || len(taken) != 1 {
			t.Fatal(taken, err)
		}
		s.workOnAction(t.Context(), c, claim, taken[0])
		a, err = s.actions.Get(t.Context(), domain.Filter{ProjectID: w.ID, ConnectionID: c.ID}, a.ID)
		if err != nil || a.Status != domain.ActionDone {
			t.Fatal(a, err)
		}
		if wakes := slices.Contains(woken, "run-leases"); wakes != (lease != uuid.Nil) {
			t.Errorf("the lease %s: woken are %q", lease, woken)
		}
		w.exec(t, "delete from instances where id = $1", id)
	}
}
