package launch

import (
	"encoding/json"
	"strings"

	"github.com/google/uuid"

	"github.com/cloudfn/cloudfn/shared/domain"
)

// sizedSpecs resolves the servers' sizes, which count against the connection's quota. Names of images and networks are
// resolved by run-connections.
func sizedSpecs(
	c domain.Connection, req createOrder, reserved []domain.LeasedFlavor,
) ([]domain.LaunchSpec, []error) {
	sizes := catalog{flavors: c.Flavors, allowed: c.Limits.AllowedFlavors(c.Flavors)}
	sizes.reserve(reserved, c.Limits)
	specs := make([]domain.LaunchSpec, len(req.items))
	var wrong faults
	for n, i := range req.items {
		flavor, err := sizes.flavor(i, domain.Image{})
		wrong.add(err)
		specs[n] = i.spec
		sizes.sized(&specs[n], flavor)
		if specs[n].ImageRef = i.image.Value; uuid.Validate(i.image.Value) == nil {
			specs[n].ImageRef = strings.ToLower(i.image.Value)
		}
	}
	return specs, distinct(wrong)
}

// sealPayload encrypts what run-connections needs besides the instances' specs. It makes the order's key, too:
// run-connections gets its public half, and the caller the private one.
func (s service) sealPayload(order *domain.Order, req createOrder) (private domain.Secret, err error) {
	var payload domain.DelegatedOrder
	if req.generateKey {
		if payload.PublicKey, private, err = newKey(req.spec.GeneratedKey); err != nil {
			return "", err
		}
	}
	for n, i := range req.items {
		server := domain.DelegatedServer{Image: i.image.Value, UserData: domain.UserData(i.userData.Reveal())}
		for _, n := range i.networks {
			server.Networks = append(server.Networks, n.Value)
		}
		if req.spec.Reuse {
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
