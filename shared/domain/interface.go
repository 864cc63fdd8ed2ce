package domain

import (
	"net/netip"
	"slices"
)

// Interface is a port of a server in Neutron.
type Interface struct {
	ID, NetworkID, MAC, Status string
	Addresses                  []FixedIP
	Groups                     []string // ids of its security groups
	IsSecured                  bool     // false: it takes no security groups
	Revision                   int      // grows with each change
}

// FixedIP is an address of a port.
type FixedIP struct {
	SubnetID string `json:"subnet_id" format:"uuid"`
	IP       string `json:"ip" minLength:"2"`
}

// InterfaceRequest is an interface that a server gets: on a network, or an existing port.
type InterfaceRequest struct {
	NetworkID string
	FixedIP   string // "" = any of the network
	PortID    string
}

// Matches reports whether the request is for what the interface is already.
func (r InterfaceRequest) Matches(i Interface) bool {
	if r.PortID != "" {
		return r.PortID == i.ID
	}
	return r.NetworkID == i.NetworkID && (r.FixedIP == "" || i.HasAddress(r.FixedIP))
}

// HasAddress reports whether the interface has an address, however it is written.
func (i Interface) HasAddress(ip string) bool {
	wanted, err := netip.ParseAddr(ip)
	return err == nil && slices.ContainsFunc(i.Addresses, func(a FixedIP) bool {
		has, err := netip.ParseAddr(a.IP)
		return err == nil && has == wanted
	})
}

// HasAddress reports whether one of the network's subnets has an address.
func (n Network) HasAddress(ip string) bool {
	address, err := netip.ParseAddr(ip)
	return err == nil && slices.ContainsFunc(n.Subnets, func(s Subnet) bool {
		prefix, err := netip.ParsePrefix(s.CIDR)
		return err == nil && prefix.Contains(address)
	})
}

// Ranges are the addresses of the network's subnets.
func (n Network) Ranges() (ranges []string) {
	for _, s := range n.Subnets {
		ranges = append(ranges, s.CIDR)
	}
	return ranges
}
