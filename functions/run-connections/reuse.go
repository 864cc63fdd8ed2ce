package runconnections

import (
	"context"
	"log/slog"
	"time"

	"github.com/google/uuid"

	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/lookup"
)

// maxReplacements is how often the instances of an order are replaced before the next event continues.
const maxReplacements = 10

// checkReused checks the idle servers that the order reuses before they are started. A server that is gone, or has
// another image than the order's, is replaced: by another idle server, or by a new one.
func (p preparing) checkReused(ctx context.Context, order domain.Order) (domain.Order, error) {
	images := map[string]domain.Image{}
	for range maxReplacements {
		replaced := false
		for n, i := range order.Instances {
			if !order.IsReplaced(i) && (!order.IsReused(i) || i.State != domain.InstanceStopped || i.ServerID == "") {
				continue
			}
			done, err := p.replace(ctx, order, n, images)
			if err != nil {
				return order, err
			}
			replaced = replaced || done
		}
		if !replaced {
			return order, nil
		}
		var err error
		if order, err = p.orders.Get(ctx, order.ProjectID, order.ID); err != nil {
			return order, err
		}
	}
	return order, apperr.New(apperr.Unavailable, "%d idle servers were gone, one after the other", maxReplacements)
}

// replace replaces the nth instance of the order, unless its server is there and has the image.
func (p preparing) replace(
	ctx context.Context, order domain.Order, n int, images map[string]domain.Image,
) (done bool, err error) {
	wanted, taken := p.replacement(order, n), order.Instances[n]
	image, err := p.image(ctx, p.wanted.Servers[n].Image, images)
	switch {
	case apperr.Final(err):
		wanted.Problem = domain.ProblemOf(err)
	case err != nil:
		return false, err
	default:
		wanted.Spec.ImageID = image.ID
	}
	server, err := p.cloud.Server(ctx, taken.ServerID)
	there := err == nil && server.Status != "DELETED" &&
		domain.StateOf(server.Status, server.Task) != domain.InstanceDeleting
	has := ""
	switch {
	case err != nil && apperr.CodeOf(err) != apperr.NotFound:
		return false, err
	case there && server.Partial:
		return false, apperr.New(apperr.Unavailable, "the cell of the server %s is down", server.ID)
	case there:
		if server.Image != nil {
			has = server.Image.ID
		}
		if wanted.Problem == nil && has == image.ID {
			return false, nil
		}
	default:
		if err != nil {
			server = domain.Server{ID: taken.ServerID, Status: "DELETED", Partial: true}
		}
		if err := p.recordDeleted(ctx, taken, server); err != nil {
			return false, err
		}
	}
	slog.InfoContext(ctx, "an idle server is replaced", "order_id", order.ID, "instance_id", taken.ID, "server_id",
		taken.ServerID, "is_there", there,
		"has_image", has, "wants_image", wanted.Spec.ImageID)
	return true, p.orders.ReplaceReused(ctx, order, p.claim, n, has, wanted)
}

// recordDeleted records that the instance's server is deleted, or is being deleted, so that no order reuses it.
func (p preparing) recordDeleted(ctx context.Context, i domain.Instance, server domain.Server) error {
	if !i.Found(server) {
		return nil
	}
	i.SeenAt = time.Time{} // now
	_, err := p.instances.Change(ctx, []domain.Instance{i})
	return err
}

// replacement is the new instance for the nth place of the order.
func (p preparing) replacement(order domain.Order, n int) domain.Instance {
	taken, server := order.Instances[n], p.wanted.Servers[n]
	i := domain.Instance{
		ID: uuid.New(), ProjectID: order.ProjectID, OrderID: order.ID, Name: server.Name,
		State: domain.InstanceRequested, Spec: *server.Spec, ConnectionID: order.ConnectionID, Remote: taken.Remote,
	}
	i.Spec.ImageID, i.Spec.NetworkIDs, i.KeyName = "", nil, i.Spec.KeyName // they are looked up anew
	return i
}

// image is the image of that name, looked up unless it is known.
func (p preparing) image(ctx context.Context, name string, known map[string]domain.Image) (domain.Image, error) {
	if image, ok := known[name]; ok {
		return image, nil
	}
	found, err := lookup.FindImages(ctx, p.cloud, name)
	if err != nil {
		return domain.Image{}, err
	}
	image, err := lookup.PickAllowedImage(found, lookup.Ref{Field: "image", Value: name}, p.connection.Limits)
	if err == nil {
		known[name] = image
	}
	return image, err
}
