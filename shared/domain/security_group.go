package domain

import (
	"cmp"
	"net/netip"
	"time"
)

// SecurityGroupRules is a security group with its rules.
type SecurityGroupRules struct {
	SecurityGroup

	ProjectID            string
	Rules                []SecurityGroupRule
	CreatedAt, UpdatedAt time.Time
}

// SecurityGroupRule lets packets through. Neutron has no other kind: what no rule lets through is dropped.
type SecurityGroupRule struct {
	ID          string
	Direction   string // ingress or egress
	Ethertype   string // IPv4 or IPv6
	Protocol    string // "" = any
	PortMin     *int   // of ICMP the type; nil = any
	PortMax     *int   // of ICMP the code
	RemoteCIDR  string // "" = any, or those of RemoteGroup
	RemoteGroup string // the id of a security group
	Description string
}

// protocolNames are other names of protocols that Neutron takes for the same.
var protocolNames = map[string]string{
	"1": "icmp", "6": "tcp", "17": "udp", "58": "ipv6-icmp", "icmpv6": "ipv6-icmp", "any": "", "0": "",
}

func canonicalProtocol(name string) string {
	if other, ok := protocolNames[name]; ok {
		return other
	}
	return name
}

// ParseCIDR reads a range of addresses, or one address.
func ParseCIDR(text string) (netip.Prefix, error) {
	if address, err := netip.ParseAddr(text); err == nil {
		return address.Unmap().Prefix(address.Unmap().BitLen())
	}
	prefix, err := netip.ParsePrefix(text)
	return prefix.Masked(), err
}

// EthertypeOf is that of a range of addresses.
func EthertypeOf(prefix netip.Prefix) string {
	if prefix.Addr().Is4() {
		return "IPv4"
	}
	return "IPv6"
}

// IsSame reports whether Neutron takes both for the same rule, whatever their descriptions.
func (r SecurityGroupRule) IsSame(other SecurityGroupRule) bool {
	samePort := func(a, b *int) bool { return (a == nil) == (b == nil) && Deref(a) == Deref(b) }
	return r.Direction == other.Direction && r.Ethertype == other.Ethertype &&
		canonicalProtocol(r.Protocol) == canonicalProtocol(other.Protocol) &&
		samePort(r.PortMin, other.PortMin) && samePort(r.PortMax, other.PortMax) &&
		r.RemoteGroup == other.RemoteGroup && r.remoteRange() == other.remoteRange()
}

// remoteRange is the range of addresses in one form; "" = any, also if it is written down.
func (r SecurityGroupRule) remoteRange() string {
	if r.RemoteCIDR == "" {
		return ""
	}
	prefix, err := ParseCIDR(r.RemoteCIDR)
	if err != nil {
		return r.RemoteCIDR
	}
	if prefix.Bits() == 0 {
		return ""
	}
	return prefix.String()
}

// Compare orders rules: by direction, then as people read them.
func (r SecurityGroupRule) Compare(other SecurityGroupRule) int {
	return cmp.Or(
		cmp.Compare(other.Direction, r.Direction), cmp.Compare(r.Ethertype, other.Ethertype),
		cmp.Compare(r.Protocol, other.Protocol), cmp.Compare(Deref(r.PortMin), Deref(other.PortMin)),
		cmp.Compare(r.ID, other.ID))
}
