package launch

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"unicode/utf8"

	"github.com/danielgtaylor/huma/v2"
	"github.com/google/uuid"

	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/lookup"
	"github.com/cloudfn/cloudfn/shared/openstack"
	"github.com/cloudfn/cloudfn/shared/postgres"
)

// launchNetwork is a network of a server: the id or unique name, or an object that may have the address and security
// groups, or an existing port instead. Its JSON goes into the hash: a network alone is a text, as in orders that were
// stored before.
type launchNetwork struct {
	Network reference `json:"network,omitempty"`
	FixedIP string    `json:"fixed_ip,omitempty"`
	PortID  string    `json:"port_id,omitempty"`

	SecurityGroups []reference `json:"security_groups,omitempty"`
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
	if !n.isObject() {
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
			"security_groups": {
				Type: huma.TypeArray, Items: textSchema(domain.MaxNameLength),
				Description: "1 to 100 ids or unique names, for this network instead of the server's.",
			},
		},
	}
	either := &huma.Schema{OneOf: []*huma.Schema{name, object}}
	for _, s := range []*huma.Schema{name, object, either} {
		s.PrecomputeMessages()
	}
	return either
}

// maxPortGroups bounds the security groups of the port on a network.
const maxPortGroups = 100

// isObject reports whether the network has more than its name.
func (n launchNetwork) isObject() bool { return n.isSpecial() || n.SecurityGroups != nil }

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
	wrong.forbid(n.SecurityGroups != nil && n.PortID != "", field+".security_groups",
		"cannot be combined with port_id: an existing port keeps its own")
	wrong.forbid(n.SecurityGroups != nil && len(n.SecurityGroups) == 0 || len(n.SecurityGroups) > maxPortGroups,
		field+".security_groups", fmt.Sprintf("must name 1 to %d groups, or be left out", maxPortGroups))
	for k, group := range n.SecurityGroups {
		name := fmt.Sprintf("%s.security_groups[%d]", field, k)
		wrong.add(domain.CheckName(name, string(group), domain.MaxNameLength))
	}
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
	for n, v := range i.spec.Volumes {
		if !v.IsNew() {
			found[i.idField(n)] = v.ID
		}
	}
	if i.spec.FloatingIP != nil && i.spec.FloatingIP.Address != "" {
		found[i.fields["floating_ip"]] = "floating IP " + i.spec.FloatingIP.Address
	}
	return found
}

const notDelegable = "with connection_id a volume must be new and deleted with its server (delete_on_termination), " +
	"have no name, and no source but the order's image"

// checkSpecial reports addresses and ports that several servers would get, or that a connection does not permit.
func (req createOrder) checkSpecial() []error {
	var wrong faults
	taken := map[string]bool{}
	for _, i := range req.items {
		for n, field := range i.volumeFields {
			wrong.forbid(req.connectionID != uuid.Nil && !i.spec.Volumes[n].IsDelegable(), field, notDelegable)
		}
		for k, n := range i.attachments {
			wrong.forbid(req.connectionID != uuid.Nil && n.SecurityGroups != nil, i.groupsField(k),
				"cannot be combined with connection_id: give security_groups of the order")
		}
		special := i.special()
		for field, what := range special {
			wrong.forbid(req.connectionID != uuid.Nil, field, "cannot be combined with connection_id")
			wrong.forbid(taken[what], field, "is for one server only: give each of instances its own")
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
	if !slices.ContainsFunc(i.attachments, launchNetwork.isObject) {
		return
	}
	for _, n := range i.attachments {
		a := domain.Attachment{FixedIP: n.FixedIP, PortID: n.PortID, SecurityGroups: texts(n.SecurityGroups)}
		if n.PortID == "" && len(networks) > 0 { // none when a name is unknown
			a.NetworkID, networks = networks[0].Value, networks[1:]
		}
		spec.Attachments = append(spec.Attachments, a)
	}
}

// hasNetworkGroups reports whether a network of the server has security groups of its own.
func (i item) hasNetworkGroups() bool {
	return slices.ContainsFunc(i.attachments, func(n launchNetwork) bool { return n.SecurityGroups != nil })
}

// groupsField is where the request has the security groups of the server's kth network.
func (i item) groupsField(k int) string {
	return fmt.Sprintf("%s[%d].security_groups", i.fields["networks"], k)
}

// checkGroups rejects security groups of a network that the server has twice: its ports could not be distinguished.
func (i item) checkGroups(attachments []domain.Attachment) (wrong faults) {
	sorted := func(a domain.Attachment) []string { return slices.Sorted(slices.Values(a.SecurityGroups)) }
	for k, a := range attachments {
		isTwin := func(b domain.Attachment) bool {
			return a.NetworkID != "" && b.NetworkID == a.NetworkID && (a.FixedIP == "" || b.FixedIP == "") &&
				!slices.Equal(sorted(a), sorted(b))
		}
		wrong.forbid(a.SecurityGroups != nil && slices.ContainsFunc(attachments, isTwin), i.groupsField(k),
			"are for a network that the server has twice: give each a fixed_ip, or the same security_groups")
	}
	return wrong
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
		if n < 0 || networks[n].HasAddress(attachment.FixedIP) {
			continue
		}
		r.addError(apperr.InvalidField(field+".fixed_ip", "is in no subnet of the network", networks[n].Ranges()...))
	}
}

// userData is text for cloud-init.
type userData struct{ domain.Secret }

// Schema implements huma.SchemaProvider.
func (userData) Schema(huma.Registry) *huma.Schema {
	maxLength := domain.MaxUserData
	return &huma.Schema{Type: huma.TypeString, MaxLength: &maxLength}
}

// userDataBase64 is user_data that need not be text.
type userDataBase64 struct{ domain.Secret }

// Schema implements huma.SchemaProvider.
func (userDataBase64) Schema(huma.Registry) *huma.Schema {
	return &huma.Schema{Type: huma.TypeString, ContentEncoding: "base64"}
}

// decode returns the bytes. Line breaks are skipped, because the command base64 makes them.
func (d *userDataBase64) decode() (domain.Secret, error) {
	data, err := base64.StdEncoding.DecodeString(domain.Deref(d).Reveal())
	return domain.Secret(data), err
}

// checkUserData reports what is wrong with either form of an instance's user_data.
func (o launchInstance) checkUserData(wrong *faults, at func(field string) string) {
	data, err := o.UserDataBase64.decode()
	wrong.forbid(err != nil, at("user_data_base64"), "must be base64 with padding")
	wrong.forbid(o.UserDataBase64 != nil && domain.Deref(o.UserData).Secret != "", at("user_data_base64"),
		"cannot be combined with user_data")
	for field, size := range map[string]int{
		"user_data": len(domain.Deref(o.UserData).Secret), "user_data_base64": len(data),
	} {
		wrong.forbid(size > domain.MaxUserData, at(field),
			fmt.Sprintf("must have at most %d bytes", domain.MaxUserData))
	}
}

// hashedSecrets returns the request's secrets for its hash, and removes the encoded form of user_data from the request:
// it is hashed like the same text. Bytes that are no text are hashed in base64, under a key of their own.
func (in *launchRequest) hashedSecrets() []string {
	text, encoded := split(in.UserData.Secret, in.UserDataBase64)
	secrets := []string{text}
	if in.UserDataBase64 = nil; encoded != "" {
		secrets = append(secrets, "base64", encoded)
	}
	for n := range in.Instances {
		i := &in.Instances[n]
		if i.UserData == nil && i.UserDataBase64 == nil {
			continue
		}
		text, encoded := split(domain.Deref(i.UserData).Secret, i.UserDataBase64)
		secrets = append(secrets, strconv.Itoa(n), text)
		if encoded != "" {
			secrets = append(secrets, "base64", encoded)
		}
		i.UserData, i.UserDataBase64 = &userData{}, nil
	}
	return secrets
}

// split returns user_data as text, or in base64 if it is no text.
func split(plain domain.Secret, d *userDataBase64) (text, encoded string) {
	data, err := d.decode()
	switch {
	case d == nil:
		return plain.Reveal(), ""
	case err == nil && utf8.ValidString(data.Reveal()):
		return data.Reveal(), ""
	}
	return "", base64.StdEncoding.EncodeToString([]byte(data))
}

// keyPair makes the key pair of an order.
type keyPair struct {
	cloud   *openstack.Session
	userID  string // whose key pairs the cloud has
	orders  postgres.Orders
	private domain.Secret // set by prepare when it has made a pair
}

// prepare makes the order's key pair before its first server. A pair that a replica left behind before it died is
// replaced: no one has its private half. A pair of that name that another user has is not the order's.
func (k *keyPair) prepare(ctx context.Context, order domain.Order, claim domain.Claim) (domain.Order, error) {
	name := order.Spec.GeneratedKey
	if name == "" || order.Undecided() < len(order.Instances) {
		return order, nil
	}
	public, private, err := openstack.NewKey(name)
	if err != nil {
		return order, err
	}
	if !claim.Fresh && order.UserID == k.userID {
		if err := k.cloud.DeleteKeyPair(ctx, name); err != nil {
			return order, err
		}
	}
	made, err := k.cloud.ImportKeyPair(ctx, name, public)
	if err != nil {
		return order, err
	}
	order.Instances = slices.Clone(order.Instances)
	for n := range order.Instances {
		order.Instances[n].KeyFingerprint = made.Fingerprint
	}
	if err := k.orders.RecordFingerprint(ctx, order, claim, made.Fingerprint); err != nil {
		return order, err // after ErrFenced another replica makes a pair of its own
	}
	k.private = private
	return order, nil
}
