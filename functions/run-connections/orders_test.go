package runconnections

import (
	"sync"
	"testing"

	"github.com/google/uuid"

	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/testkit"
)

// TestLongRollback deletes an order's servers and its key pair when one of the servers cannot be made.
func TestLongRollback(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	huge := w.TooLargeFlavor(t)
	c := w.trust(t)
	p := w.function(t, nil)
	order := w.finish(t, p, w.place(t, c, 2, func(o *domain.Order, d *domain.DelegatedOrder) {
		o.Spec.OnFailure, o.Spec.GeneratedKey, d.PublicKey = domain.Rollback, "rolled", publicKey
		for n := range o.Instances {
			o.Instances[n].Spec.KeyName = "rolled"
		}
		o.Instances[1].Spec.FlavorID = huge
	}).ID)
	if order.Status != domain.OrderRolledBack {
		t.Errorf("the order is %s: %+v", order.Status, order.Instances)
	}
	w.Await(t, order.Instances[0].ServerID, "DELETED")
	if servers, keys := w.Servers(t), w.KeyPairs(t); len(servers) != 0 || len(keys) != 0 {
		t.Errorf("left are the servers %+v and the keys %v", servers, keys)
	}
}

// publicKey is the public half of an SSH key.
const publicKey = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIJ2nrJo1qkVTnG2uVwaL2P0N6kWPlLCu1eDJ3bFzPn7p made"

// TestOtherKeyIsNotFatal: another key pair of the same name is neither overwritten nor deleted with the order, and no
// server is made with it.
func TestOtherKeyIsNotFatal(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	c := w.trust(t)
	p := w.function(t, nil)
	session, _ := w.member(t)
	const other = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIOMqqnkVzrm0SdG6UOoqKLsabgH5C9okWi0dh2l9GKJl other"
	if _, err := session.ImportKeyPair(t.Context(), "taken", other); err != nil {
		t.Fatal(err)
	}
	order := w.finish(t, p, w.place(t, c, 1, func(o *domain.Order, d *domain.DelegatedOrder) {
		o.Spec.GeneratedKey, d.PublicKey, o.Instances[0].Spec.KeyName = "taken", publicKey, "taken"
	}).ID)
	if i := order.Instances[0]; order.Status != domain.OrderFailed || i.Problem == nil || i.Problem.Code != "conflict" {
		t.Errorf("the order is %s: %+v", order.Status, i.Problem)
	}
	if keys := w.KeyPairs(t); len(keys) != 1 {
		t.Errorf("its owner's key pairs are %v", keys)
	}
}

// TestLongOldOrderFails: an order that is too old fails with the servers it still lacks.
func TestLongOldOrderFails(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	c := w.trust(t)
	placed := w.place(t, c, 1, nil)
	w.exec(t, "update orders set created_at = now() - interval '61 minutes'")
	order := w.finish(t, w.function(t, nil), placed.ID)
	if i := order.Instances[0]; order.Status != domain.OrderFailed || i.Problem == nil ||
		i.Problem.Code != "conflict" || len(w.Servers(t)) != 0 {
		t.Errorf("the order is %s: %+v", order.Status, i.Problem)
	}
}

// TestTwoReplicas, each woken several times: an order and an action are done once.
func TestTwoReplicas(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	c := w.trust(t)
	replicas := []*testkit.Client{w.function(t, nil), w.function(t, nil)}
	placed := w.place(t, c, 2, nil)
	nobody := w.ask(t, c, uuid.New(), domain.ActionRequest{Action: domain.Reboot}, nil)
	var all sync.WaitGroup
	for n := range 6 {
		all.Go(func() { tick(t, replicas[n%2]) })
	}
	all.Wait()
	order := w.finish(t, replicas[0], placed.ID)
	if servers := w.Servers(t); order.Status != domain.OrderDone || len(servers) != 2 {
		t.Errorf("the order is %s, and there are %d servers", order.Status, len(servers))
	}
	w.ends(t, order.ID, "running done")
	wants(t, w.done(t, replicas[1], nobody), "not_found")
	if got := w.eventsOf(t, nobody.ID); got != "running failed" {
		t.Errorf("the action's events are %q", got)
	}
}
