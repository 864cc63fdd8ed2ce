package runconnections

import (
	"context"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/postgres"
)

// interrupted is a database in which something happens after an order was read and before it is claimed.
type interrupted struct {
	postgres.Orders
	before func()
}

func (i interrupted) Claim(ctx context.Context, order domain.Order, claimFor time.Duration) (domain.Claim, error) {
	i.before()
	return i.Orders.Claim(ctx, order, claimFor)
}

// TestAbandonTakesClaim: another replica sends a create call after the order was read, and dies. That instance is not
// abandoned while Nova may still make its server.
func TestAbandonTakesClaim(t *testing.T) {
	t.Parallel()
	w := fakes(t)
	c := w.remote(t, newFakeCloud(t))
	store := postgres.Orders{DB: w.db}
	order := domain.Order{
		ID: uuid.New(), ProjectID: w.ID, DomainID: "d", UserID: "u", BodySHA256: []byte{1},
		ConnectionID: c.ID, Payload: []byte{1},
	}
	order.Instances = []domain.Instance{{
		ID: uuid.New(), ProjectID: w.ID, Name: "web", State: domain.InstanceRequested,
		ConnectionID: c.ID, Remote: true,
	}}
	if _, err := store.Place(t.Context(), order, 0); err != nil {
		t.Fatal(err)
	}
	e := newService(w.db, func(...string) {}).engine(c)
	e.Orders = interrupted{store, func() {
		claim, err := store.Claim(t.Context(), order, time.Minute)
		if err != nil || !claim.Acquired {
			t.Errorf("got %+v %v", claim, err)
		}
		call := domain.CreateCall{ID: uuid.New(), InstanceID: order.Instances[0].ID, Name: "web"}
		// the claim ends with the replica
		if err := store.BeginCall(t.Context(), order, claim, call, 0, time.Minute); err != nil {
			t.Error(err)
		}
	}}
	if err := e.Abandon(t.Context(), c.ProjectID, order.ID, domain.ProblemOf(errTooLong)); err != nil {
		t.Error(err)
	}
	if got := w.order(t, order.ID); got.Status != domain.OrderRunning || got.Undecided() != 1 {
		t.Errorf("the order is %s, its instances %+v", got.Status, got.Instances)
	}
	if held := w.text(t, "select (claimed_until is not null)::text from orders"); held != "false" {
		t.Error("the order stays claimed")
	}
}
