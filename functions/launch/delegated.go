package launch

import (
	"context"
	"encoding/json"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"

	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/ordering"
)

// connectionStore is where connections are looked up.
type connectionStore interface {
	ordering.SeenStore
	Usable(ctx context.Context, who domain.Identity, id uuid.UUID) (found domain.Connection, now time.Time, err error)
}

// delegatedStore is the part of the database that orders through connections need.
type delegatedStore interface {
	PlaceDelegated(ctx context.Context, order domain.Order) (fresh bool, err error)
	GetThrough(ctx context.Context, through domain.Through, id uuid.UUID) (domain.Order, error)
}

// checkReuse refuses what an idle server cannot be given any more.
func (in request) checkReuse() error {
	const booted = "does not go with reuse: an idle server has booted already"
	switch {
	case in.ConnectionID == "":
		return apperr.InvalidField("reuse", "goes with connection_id only")
	case in.OnFailure == domain.Rollback:
		return apperr.InvalidField("on_failure", "must be keep with reuse: what was idle before is not to be deleted", string(domain.Keep))
	case in.GenerateKey:
		return apperr.InvalidField("generate_key", booted)
	case in.UserData != "":
		return apperr.InvalidField("user_data", booted)
	}
	for n, o := range in.Instances {
		at := inInstance(n)
		switch {
		case o.ID != "":
			return apperr.InvalidField(at("id"), "does not go with reuse: an idle instance keeps its id")
		case value(o.UserData) != "":
			return apperr.InvalidField(at("user_data"), booted)
		}
	}
	return nil
}

// LaunchThrough stores an order that run-connections works on with what was delegated to it, and wakes it. The answer is the order
// as it is stored.
func (s service) LaunchThrough(ctx context.Context, who domain.Identity, w wish) (out launched, err error) {
	connection, now, err := s.connections.Usable(ctx, who, w.connectionID)
	if err != nil {
		return out, err
	}
	through := domain.Through{ProjectID: connection.ProjectID, ConnectionID: connection.ID}
	out.order, err = s.orders.GetThrough(ctx, through, w.id)
	switch {
	case apperr.CodeOf(err) == apperr.NotFound:
		if err := connection.Permits(now, w.permissions()...); err != nil {
			return out, err
		}
		if out, err = s.delegate(who, connection, w); err != nil {
			return out, err
		}
	case err != nil:
		return out, err
	}
	out.order.BodySHA256 = w.hash[:] // PlaceDelegated compares it with the stored one
	if out.fresh, err = s.orders.PlaceDelegated(ctx, out.order); err != nil {
		return out, err
	}
	if !out.fresh {
		out.privateKey, out.callbackSecret = "", "" // another request was first
	}
	if out.order, err = s.orders.GetThrough(ctx, through, w.id); err != nil {
		return out, err
	}
	if out.order.Status == domain.OrderRunning {
		s.wake("run-connections", "deliver-events")
	}
	out.callback, err = s.callback(ctx, who, out.order)
	return out, err
}

// permissions are what the connection must permit. Servers that are not to be stopped are started.
func (w wish) permissions() []domain.Permission {
	if w.spec.Stopped {
		return []domain.Permission{domain.MayAllocate}
	}
	return []domain.Permission{domain.MayAllocate, domain.MayStart}
}

// delegate makes the order that the request asks for. It belongs to the connection's project, because its servers will.
func (s service) delegate(who domain.Identity, c domain.Connection, w wish) (out launched, err error) {
	if err := s.checkCallback(w.callback); err != nil {
		return out, err
	}
	specs, errs := specsThrough(c, w)
	if err := first(append(errs, s.withinLimits(c, w, specs)...)); err != nil {
		return out, err
	}
	out.order = domain.Order{
		ID: w.id, ProjectID: c.ProjectID, DomainID: c.DomainID, UserID: who.UserID, Spec: w.spec, ConnectionID: c.ID,
		Actor: domain.ActorOf(who, c.ID),
	}
	for n, i := range w.items {
		out.order.Instances = append(out.order.Instances, domain.Instance{
			ID: i.id, ProjectID: c.ProjectID, Name: i.name, State: domain.InstanceRequested, Spec: specs[n], KeyName: specs[n].KeyName,
			ConnectionID: c.ID, Remote: c.Remote(),
		})
	}
	if out.privateKey, err = s.sealPayload(&out.order, w); err != nil {
		return out, err
	}
	out.callbackSecret, err = s.newCallback(who, &out.order, w.callback)
	return out, err
}

// specsThrough are what is known at once of what the servers are made of: their sizes, which count against the quota. Names of
// images and networks are looked up by run-connections.
func specsThrough(c domain.Connection, w wish) ([]domain.LaunchSpec, []error) {
	sizes := lookup{flavors: c.Flavors, allowed: c.Limits.AllowedFlavors(c.Flavors)}
	specs := make([]domain.LaunchSpec, len(w.items))
	var errs []error
	for n, i := range w.items {
		flavor, err := sizes.flavor(i, domain.Image{})
		if err != nil {
			errs = append(errs, err)
		}
		specs[n] = i.spec
		specs[n].Sized(flavor)
		if specs[n].ImageRef = i.image.Value; uuid.Validate(i.image.Value) == nil {
			specs[n].ImageRef = strings.ToLower(i.image.Value)
		}
		if w.generateKey {
			specs[n].KeyName = w.spec.GeneratedKey
		}
	}
	return specs, distinct(errs)
}

// sealPayload gives the order what run-connections needs besides its instances' specs, sealed. It makes the order's key, too: run-connections
// gets its public half, and the caller the private one.
func (s service) sealPayload(order *domain.Order, w wish) (private domain.Secret, err error) {
	var payload domain.DelegatedOrder
	if w.generateKey {
		if payload.PublicKey, private, err = newKey(w.spec.GeneratedKey); err != nil {
			return "", err
		}
	}
	for n, i := range w.items {
		server := domain.DelegatedServer{Image: i.image.Value, UserData: i.userData.Reveal()}
		for _, n := range i.networks {
			server.Networks = append(server.Networks, n.Value)
		}
		if w.spec.Reuse {
			server.Name, server.Spec = i.name, &order.Instances[n].Spec
		}
		payload.Servers = append(payload.Servers, server)
	}
	text, err := json.Marshal(payload)
	if err != nil {
		return "", err
	}
	order.Payload, err = s.sealOrder.Seal(order.SealedFor(), domain.Secret(text))
	return private, err
}

// GetThrough reads an order that was placed through the connection, as it is stored.
func (s service) GetThrough(ctx context.Context, who domain.Identity, connection, id uuid.UUID) (domain.Order, *domain.Callback, error) {
	c, _, err := s.connections.Usable(ctx, who, connection)
	if err != nil {
		return domain.Order{}, nil, err
	}
	order, err := s.orders.GetThrough(ctx, domain.Through{ProjectID: c.ProjectID, ConnectionID: c.ID}, id)
	if err != nil {
		return order, nil, err
	}
	callback, err := s.callback(ctx, who, order)
	return order, callback, err
}

// watch writes down what Nova says of servers that were ordered through a connection, for a caller of the project that they are in.
// All else about them is run-connections' work, and only it can look into another cloud.
func (s service) watch(ctx context.Context, cloud session, order domain.Order) (domain.Order, error) {
	if slices.ContainsFunc(order.Instances, func(i domain.Instance) bool { return i.Remote }) {
		return order, nil
	}
	return s.worker().Observe(ctx, cloud, order)
}
