package launch

import (
	"encoding/json"
	"strings"

	"github.com/google/uuid"

	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/domain"
)

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

// sizedSpecs are what is known at once of what the servers are made of: their sizes, which count against the quota.
// Names of images and networks are looked up by run-connections.
func sizedSpecs(c domain.Connection, req createOrder) ([]domain.LaunchSpec, []error) {
	sizes := catalog{flavors: c.Flavors, allowed: c.Limits.AllowedFlavors(c.Flavors)}
	specs := make([]domain.LaunchSpec, len(req.items))
	var errs []error
	for n, i := range req.items {
		flavor, err := sizes.flavor(i, domain.Image{})
		if err != nil {
			errs = append(errs, err)
		}
		specs[n] = i.spec
		specs[n].Sized(flavor)
		if specs[n].ImageRef = i.image.Value; uuid.Validate(i.image.Value) == nil {
			specs[n].ImageRef = strings.ToLower(i.image.Value)
		}
	}
	return specs, distinct(errs)
}

// sealPayload gives the order what run-connections needs besides its instances' specs, sealed. It makes the order's
// key, too: run-connections gets its public half, and the caller the private one.
func (s service) sealPayload(order *domain.Order, req createOrder) (private domain.Secret, err error) {
	var payload domain.DelegatedOrder
	if req.generateKey {
		if payload.PublicKey, private, err = newKey(req.spec.GeneratedKey); err != nil {
			return "", err
		}
	}
	for n, i := range req.items {
		server := domain.DelegatedServer{Image: i.image.Value, UserData: i.userData.Reveal()}
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
