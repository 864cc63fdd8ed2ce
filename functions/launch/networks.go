package launch

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"slices"

	"github.com/danielgtaylor/huma/v2"
	"github.com/google/uuid"

	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/lookup"
)

// launchNetwork is a network of a server: the id or unique name, or an object that may have the address, or an existing
// port instead. Its JSON goes into the hash: a network alone is a text, as in orders that were stored before.
type launchNetwork struct {
	Network reference `json:"network,omitempty"`
	FixedIP string    `json:"fixed_ip,omitempty"`
	PortID  string    `json:"port_id,omitempty"`
}

// UnmarshalJSON implements json.Unmarshaler.
func (n *launchNetwork) UnmarshalJSON(text []byte) error {
	*n = launchNetwork{}
	if text[0] == '"' {
		return json.Unmarshal(text, &n.Network)
	}
	type object launchNetwork
	return json.Unmarshal(text, (*object)(n))
}

// MarshalJSON implements json.Marshaler.
func (n launchNetwork) MarshalJSON() ([]byte, error) {
	if !n.isSpecial() {
		return json.Marshal(n.Network)
	}
	type object launchNetwork
	return json.Marshal(object(n))
}

// Schema implements huma.SchemaProvider.
func (launchNetwork) Schema(huma.Registry) *huma.Schema {
	name, least := textSchema(domain.MaxNameLength), 1
	object := &huma.Schema{
		Type: huma.TypeObject, AdditionalProperties: false, MinProperties: &least,
		Properties: map[string]*huma.Schema{
			"network":  textSchema(domain.MaxNameLength),
			"fixed_ip": {Type: huma.TypeString, Description: "An address of the network, for this one server."},
			"port_id":  {Type: huma.TypeString, Format: "uuid", Description: "An existing port, instead of a network."},
		},
	}
	either := &huma.Schema{OneOf: []*huma.Schema{name, object}}
	for _, s := range []*huma.Schema{name, object, either} {
		s.PrecomputeMessages()
	}
	return either
}

// isSpecial reports whether the network is for one server only.
func (n launchNetwork) isSpecial() bool { return n.FixedIP != "" || n.PortID != "" }

// check reports what Nova rejects by its format.
func (n launchNetwork) check(wrong *faults, field string) {
	_, err := netip.ParseAddr(n.FixedIP)
	wrong.add(domain.CheckStorable(field, string(n.Network)))
	wrong.forbid(n.Network == "" && n.PortID == "", field, "must have a network or a port_id")
	wrong.forbid(n.Network != "" && n.PortID != "", field+".port_id", "cannot be combined with network")
	wrong.forbid(n.FixedIP != "" && n.PortID != "", field+".fixed_ip", "cannot be combined with port_id")
	wrong.forbid(n.FixedIP != "" && err != nil, field+".fixed_ip", "must be an IP address")
	wrong.forbid(n.PortID != "" && !isID(n.PortID), field+".port_id", "must be a UUID")
}

// setNetworks sets a server's networks, each with its field.
func (i *item) setNetworks(networks []launchNetwork, field string) {
	i.attachments = networks
	for k, n := range networks {
		if n.PortID == "" {
			i.networks = append(i.networks, n.Network.at(fmt.Sprintf("%s[%d]", field, k)))
		}
	}
}

// special lists the server's fields with an address or a port, by what no two servers can have.
func (i item) special() map[string]string {
	found := map[string]string{}
	for k, n := range i.attachments {
		field := fmt.Sprintf("%s[%d]", i.fields["networks"], k)
		if n.PortID != "" {
			found[field+".port_id"] = n.PortID
		} else if n.FixedIP != "" {
			found[field+".fixed_ip"] = string(n.Network) + " " + n.FixedIP
		}
	}
	return found
}

// checkSpecial reports addresses and ports that several servers would get, or that a connection does not permit.
func (req createOrder) checkSpecial() []error {
	var wrong faults
	taken := map[string]bool{}
	for _, i := range req.items {
		special := i.special()
		for field, what := range special {
			wrong.forbid(req.connectionID != uuid.Nil, field, "cannot be combined with connection_id")
			wrong.forbid(taken[what], field, "is for one server only: give each of instances its own networks")
		}
		for _, what := range special {
			taken[what] = true
		}
	}
	return distinct(wrong)
}

// attach sets the networks of a server whose names are resolved to ids, in order.
func (i item) attach(spec *domain.LaunchSpec, networks []lookup.Ref) {
	for _, n := range networks {
		spec.NetworkIDs = append(spec.NetworkIDs, n.Value)
	}
	if !slices.ContainsFunc(i.attachments, launchNetwork.isSpecial) {
		return
	}
	for _, n := range i.attachments {
		a := domain.Attachment{FixedIP: n.FixedIP, PortID: n.PortID}
		if n.PortID == "" && len(networks) > 0 { // none when a name is unknown
			a.NetworkID, networks = networks[0].Value, networks[1:]
		}
		spec.Attachments = append(spec.Attachments, a)
	}
}

// checkPorts lists ports that do not exist, or are in use.
func (n names) checkPorts(i item) []error {
	var wrong faults
	for k, network := range i.attachments {
		if network.PortID == "" {
			continue
		}
		field := fmt.Sprintf("%s[%d].port_id", i.fields["networks"], k)
		switch port, found := n.ports[network.PortID]; {
		case !found:
			wrong.forbid(true, field, fmt.Sprintf("there is no port %q", network.PortID))
		case port.DeviceID != "":
			err := apperr.InvalidField(field, "is in use by "+port.DeviceID)
			err.Code = apperr.Conflict
			wrong.add(err)
		}
	}
	return wrong
}

// checkFixedIPs rejects addresses that no subnet of their network has.
func (r *launchReport) checkFixedIPs(i item, refs []lookup.Ref, networks []domain.Network) {
	for k, attachment := range i.attachments {
		if attachment.FixedIP == "" || attachment.PortID != "" {
			continue
		}
		field := fmt.Sprintf("%s[%d]", i.fields["networks"], k)
		at := slices.IndexFunc(refs, func(ref lookup.Ref) bool { return ref.Field == field })
		n := slices.IndexFunc(networks, func(n domain.Network) bool { return at >= 0 && n.ID == refs[at].Value })
		if n < 0 || hasAddress(networks[n], attachment.FixedIP) {
			continue
		}
		var ranges []string
		for _, s := range networks[n].Subnets {
			ranges = append(ranges, s.CIDR)
		}
		r.addError(apperr.InvalidField(field+".fixed_ip", "is in no subnet of the network", ranges...))
	}
}

func hasAddress(n domain.Network, text string) bool {
	address, err := netip.ParseAddr(text)
	return err == nil && slices.ContainsFunc(n.Subnets, func(s domain.Subnet) bool {
		prefix, err := netip.ParsePrefix(s.CIDR)
		return err == nil && prefix.Contains(address)
	})
}
