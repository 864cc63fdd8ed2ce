package launch

import (
	"context"
	"encoding/json"
	"net/netip"
	"slices"

	"github.com/danielgtaylor/huma/v2"

	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/lookup"
	"github.com/cloudfn/cloudfn/shared/openstack"
)

// floatingIP is the floating IP of a server: true, an external network's id or name, or the address of one that the
// project has. false = none.
type floatingIP struct {
	isOn bool
	text string
}

// UnmarshalJSON implements json.Unmarshaler.
func (f *floatingIP) UnmarshalJSON(text []byte) error {
	*f = floatingIP{}
	if text[0] != '"' {
		return json.Unmarshal(text, &f.isOn)
	}
	err := json.Unmarshal(text, &f.text)
	f.isOn = f.text != ""
	return err
}

// MarshalJSON implements json.Marshaler. It goes into the hash.
func (f floatingIP) MarshalJSON() ([]byte, error) {
	if f.text == "" {
		return json.Marshal(f.isOn)
	}
	return json.Marshal(f.text)
}

// Schema implements huma.SchemaProvider.
func (floatingIP) Schema(huma.Registry) *huma.Schema {
	name, isOn := textSchema(domain.MaxNameLength), &huma.Schema{Type: huma.TypeBoolean}
	either := &huma.Schema{OneOf: []*huma.Schema{isOn, name}}
	for _, s := range []*huma.Schema{name, isOn, either} {
		s.PrecomputeMessages()
	}
	return either
}

// canonical is equal for two that mean the same.
func (f *floatingIP) canonical() *floatingIP {
	if f == nil || !f.isOn {
		return nil
	}
	return f
}

// check reports what no cloud takes.
func (f *floatingIP) check(wrong *faults, field string) {
	if f != nil {
		wrong.add(domain.CheckStorable(field, f.text))
		address, err := netip.ParseAddr(f.text)
		wrong.forbid(err == nil && !address.Is4(), field, "must be an IPv4 address, an external network, or true")
	}
}

// ordered is the floating IP as it is ordered, with the name of its network.
func (f *floatingIP) ordered() *domain.ServerFloatingIP {
	if f == nil || !f.isOn {
		return nil
	}
	if _, err := netip.ParseAddr(f.text); err == nil {
		return &domain.ServerFloatingIP{Address: f.text}
	}
	return &domain.ServerFloatingIP{NetworkID: f.text}
}

// floatingFacts are what the floating IPs of servers are compared with. They are read only if a server gets one.
type floatingFacts struct {
	external []domain.Network
	routes   map[string]domain.Route // by network
	own      map[string][]domain.FloatingIP
}

// resolveFloatingIPs looks up the networks of floating IPs, and rejects what cannot be: no router, several networks
// that fit, and an address that is not the project's or is in use.
func resolveFloatingIPs(ctx context.Context, cloud *openstack.Session, req createOrder, found []resolved) []error {
	if !req.spec.FloatingIPs {
		return nil
	}
	facts, err := readFloating(ctx, cloud, req, found)
	if err != nil {
		return []error{err}
	}
	var wrong faults
	for n, i := range req.items {
		if i.spec.FloatingIP == nil {
			continue
		}
		networkID, err := facts.pick(i)
		if err == nil {
			networkID, err = facts.route(i, networkID, found[n].spec.NetworkIDs)
		}
		wrong.add(err)
		resolvedTo := *i.spec.FloatingIP
		if resolvedTo.Address == "" {
			resolvedTo.NetworkID = networkID
		}
		found[n].spec.FloatingIP = &resolvedTo
	}
	return distinct(wrong)
}

func readFloating(
	ctx context.Context, cloud *openstack.Session, req createOrder, found []resolved,
) (facts floatingFacts, err error) {
	if facts.external, err = cloud.ExternalNetworks(ctx); err != nil {
		return facts, err
	}
	var networks []string
	for n, i := range req.items {
		if i.spec.FloatingIP == nil {
			continue
		}
		networks = append(networks, found[n].spec.NetworkIDs...)
		if address := i.spec.FloatingIP.Address; address != "" {
			if facts.own == nil {
				facts.own = map[string][]domain.FloatingIP{}
			}
			facts.own[address], err = cloud.FloatingIPs(ctx, domain.FloatingIPQuery{Address: address})
			if err != nil {
				return facts, err
			}
		}
	}
	if len(networks) == 0 {
		return facts, nil
	}
	subnets, err := cloud.Routes(ctx, networks)
	facts.routes = map[string]domain.Route{}
	for _, route := range subnets {
		of := facts.routes[route.NetworkID]
		of.External = append(of.External, route.External...)
		of.IsPartial = of.IsPartial || route.IsPartial
		facts.routes[route.NetworkID] = of
	}
	return facts, err
}

// pick is the external network that a server's floating IP is of; "" = the one that it reaches.
func (f floatingFacts) pick(i item) (networkID string, err error) {
	field, wanted := i.fields["floating_ip"], *i.spec.FloatingIP
	if wanted.Address != "" {
		own := f.own[wanted.Address]
		switch {
		case len(own) == 0:
			return "", apperr.InvalidField(field, "the project has no floating IP "+wanted.Address)
		case own[0].PortID != "":
			refused := apperr.InvalidField(field, "the floating IP "+wanted.Address+" is in use")
			refused.Code = apperr.Conflict
			return "", refused
		}
		return own[0].NetworkID, nil
	}
	if wanted.NetworkID == "" {
		return "", nil
	}
	network, err := lookup.PickExternalNetwork(f.external, lookup.Ref{Field: field, Value: wanted.NetworkID})
	return network.ID, err
}

// route rejects networks of a server that no router connects to the external network. A server with a port of its own
// is not checked: its network is not read.
func (f floatingFacts) route(i item, networkID string, networks []string) (string, error) {
	hasPort := func(n launchNetwork) bool { return n.PortID != "" }
	if slices.ContainsFunc(i.attachments, hasPort) {
		return networkID, nil
	}
	var all []domain.PortAddress
	for _, id := range networks {
		if route, hasIPv4 := f.routes[id]; hasIPv4 {
			all = append(all, domain.PortAddress{NetworkID: id, Address: "one of each server", Route: route})
		}
	}
	var err error
	if networkID == "" {
		networkID, err = domain.ChooseExternal(all, f.external)
	}
	if err == nil {
		_, err = domain.ChooseAddresses(all, networkID, "")
	}
	if err == nil {
		return networkID, nil
	}
	e := *apperr.As(err)
	e.Fields = []apperr.Field{{Field: i.fields["floating_ip"], Detail: e.Message}}
	return "", &e
}

// checkFloatingIPs compares the floating IPs that are made with the project's quota.
func (r *launchReport) checkFloatingIPs(req createOrder, quota domain.QuotaItem, withheld string) {
	need, field := 0, ""
	for _, i := range req.items {
		if i.spec.MakesFloatingIP() {
			need, field = need+1, i.fields["floating_ip"]
		}
	}
	switch {
	case need == 0:
	case withheld != "":
		r.unchecked(field, "quota of floating IPs: "+withheld)
	case !quota.Fits(need):
		left := max(0, quota.Max-quota.Used)
		r.add(field, apperr.Quota, "needs %d floating IPs, %d of %d are left", need, left, quota.Max)
	}
}
