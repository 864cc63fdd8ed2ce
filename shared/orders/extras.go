package orders

import (
	"context"
	"log/slog"

	"github.com/google/uuid"

	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/lookup"
)

// RemoveExtra handles a server that carries the instance's tags and is not its own. One that a create call of the
// running order provably made is deleted: Nova took so long over the call that it was repeated. Any other is not
// touched, and one event reports it. The order must have been read after the server was listed.
func (e Engine) RemoveExtra(
	ctx context.Context, cloud Cloud, order domain.Order, i domain.Instance, s domain.Server,
) error {
	var err error
	call, isProven := order.Duplicate(i, s)
	if isProven {
		isProven, err = IsOldest(ctx, cloud, call.ID, s)
	}
	if isProven && err == nil {
		// A call makes one server. Once that is stored, no other server with its tags passes for it.
		isProven, err = e.Orders.MarkDuplicate(ctx, order, call, s.ID)
	}
	switch {
	case err != nil:
		return err
	case !isProven:
		return e.publishUnexpected(ctx, i, s)
	}
	err = cloud.DeleteServer(ctx, s.ID)
	slog.WarnContext(ctx, "deleting a server that was made twice", "project_id", order.ProjectID, "order_id", order.ID,
		"instance_id", i.ID, "server_id", s.ID, "call_id", call.ID, "error", err)
	return err
}

// IsOldest reports whether no older server carries the tag of the create call: a server with copied tags is younger.
func IsOldest(ctx context.Context, cloud lookup.Lister, call uuid.UUID, s domain.Server) (bool, error) {
	tagged, err := lookup.ServersByTag(ctx, cloud, domain.CallTag(call))
	return err == nil && s.IsOldest(tagged), err
}

func (e Engine) publishUnexpected(ctx context.Context, i domain.Instance, s domain.Server) error {
	published, err := e.Orders.PublishUnexpected(ctx, i, s)
	if published {
		slog.WarnContext(ctx, "a server carries the tags of an instance and is not its own: it is not touched",
			"project_id", i.ProjectID, "order_id", i.OrderID, "instance_id", i.ID, "server_id", s.ID,
			"server_name", s.Name)
	}
	return err
}

// removeExtras handles the servers among found that carry tags of the order's instances and are not theirs.
func (e Engine) removeExtras(ctx context.Context, cloud Cloud, order domain.Order, found []domain.Server) error {
	if !hasExtras(order, found) {
		return nil
	}
	// Only the order as it is now shows a call that began while Nova was queried.
	order, err := e.Orders.Get(ctx, order.ProjectID, order.ID)
	if err != nil {
		return err
	}
	for _, i := range order.Instances {
		for _, s := range order.Extras(i, found) {
			if err := e.RemoveExtra(ctx, cloud, order, i, s); err != nil {
				slog.WarnContext(ctx, "a server that its order does not need was not removed: it is retried later",
					"order_id", order.ID, "server_id", s.ID, "error", err)
			}
		}
	}
	return nil
}

func hasExtras(order domain.Order, found []domain.Server) bool {
	for _, i := range order.Instances {
		if len(order.Extras(i, found)) > 0 {
			return true
		}
	}
	return false
}
