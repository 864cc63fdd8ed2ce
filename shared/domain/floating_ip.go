package domain

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"

	"github.com/cloudfn/cloudfn/shared/apperr"
)

// FloatingIP is an address of an external network, which Neutron maps to a fixed address of a port.
type FloatingIP struct {
	ID           string
	ProjectID    string
	Address      string
	NetworkID    string // the external network
	Description  string
	Status       string // Neutron's, raw: ACTIVE, DOWN or ERROR
	PortID       string // "" = it is free
	FixedAddress string // of the port
	ServerID     string // that has the port; "" = none, or it is not known
	CreatedAt    time.Time
	UpdatedAt    time.Time // the same until its first change
	Revision     int       // grows with each change
}

// FloatingIPQuery selects floating IPs of a project.
type FloatingIPQuery struct {
	Address     string // "" = any
	Description string // the whole text; "" = any
	PortIDs     []string
	IsAttached  *bool // nil = both
	Limit       int   // of a page
	Marker      string
}

// Selects applies what of the query Neutron does not.
func (q FloatingIPQuery) Selects(f FloatingIP) bool {
	return q.IsAttached == nil || *q.IsAttached == (f.PortID != "")
}

// FloatingIPRequest says what a floating IP is to be.
type FloatingIPRequest struct {
	NetworkID    string
	Address      string // "" = Neutron's choice
	Description  string
	PortID       string // that it is mapped to; "" = none
	FixedAddress string // of the port; "" = its only one
}

// PortAddress is an IPv4 address of a server's port.
type PortAddress struct {
	PortID    string
	NetworkID string
	SubnetID  string
	Address   string
	Route     Route
}

// Route is how a subnet is connected to external networks.
type Route struct {
	NetworkID string
	External  []string // the ids of the networks that a router connects it to
	// IsPartial reports whether the project may not see all routers of the subnet.
	IsPartial bool
}

// Reaches reports whether a router connects the subnet to the network.
func (r Route) Reaches(networkID string) bool { return slices.Contains(r.External, networkID) }

// FloatingIPAttach says which floating IP a server is to have: the project's with the ID or the Address, else one of
// the network.
type FloatingIPAttach struct {
	ID           string
	Address      string
	NetworkID    string // "" = the only external network that the server reaches
	FixedAddress string // of the server; "" = the only one that reaches the network
	Description  string // of a new floating IP
	Moves        bool   // one that is attached elsewhere is moved
}

// IsNew reports whether a floating IP may be made.
func (a FloatingIPAttach) IsNew() bool { return a.ID == "" && a.Address == "" }

// ChooseExternal chooses the only external network that routers connect the addresses to. external are those that the
// project sees: the only one of them is tried where not all routers can be seen.
func ChooseExternal(all []PortAddress, external []Network) (networkID string, err error) {
	var reached []string
	isPartial := false
	for _, a := range all {
		reached = append(reached, a.Route.External...)
		isPartial = isPartial || a.Route.IsPartial
	}
	slices.Sort(reached)
	switch reached = slices.Compact(reached); {
	case len(reached) == 1:
		return reached[0], nil
	case len(reached) == 0 && isPartial && len(external) == 1:
		return external[0].ID, nil
	case len(reached) == 0 && !isPartial:
		return "", apperr.New(apperr.Conflict,
			"no router connects a network of the server to an external network: %s", describe(all))
	}
	var names []string
	for _, n := range external {
		if len(reached) == 0 || slices.Contains(reached, n.ID) {
			names = append(names, n.Name)
		}
	}
	refused := apperr.InvalidField("network", "must be given: there are several external networks", names...)
	refused.Code = apperr.Conflict
	return "", refused
}

// ChooseAddresses chooses the address of a server that a floating IP of an external network is mapped to: that which a
// router connects to the network. Where the project cannot see which does, there may be several, which are to be tried
// in their order. fixed is the address that was requested; "" = any.
func ChooseAddresses(all []PortAddress, networkID, fixed string) ([]PortAddress, error) {
	if len(all) == 0 {
		return nil, apperr.New(apperr.Conflict, "the server has no IPv4 address, which a floating IP is mapped to")
	}
	var fits, may []PortAddress
	addresses := make([]string, len(all))
	for n, a := range all {
		addresses[n] = a.Address
		switch {
		case fixed != "" && a.Address != fixed:
		case a.Route.Reaches(networkID):
			fits = append(fits, a)
		case a.Route.IsPartial:
			may = append(may, a)
		}
	}
	switch {
	case fixed != "" && !slices.Contains(addresses, fixed):
		return nil, apperr.InvalidField("fixed_address", "the server does not have this IPv4 address", addresses...)
	case len(fits) == 1:
		return fits, nil
	case len(fits) > 1:
		fitting := make([]string, len(fits))
		for n, a := range fits {
			fitting[n] = a.Address
		}
		refused := apperr.InvalidField("fixed_address",
			fmt.Sprintf("must be given: %d addresses of the server reach the external network", len(fits)), fitting...)
		refused.Code = apperr.Conflict
		return nil, refused
	case len(may) > 0:
		return may, nil
	}
	return nil, apperr.New(apperr.Conflict,
		"no router connects a network of the server to the external network %s: %s", networkID, describe(all))
}

// describe lists addresses for an error.
func describe(all []PortAddress) string {
	text := "it has no IPv4 address"
	for n, a := range all {
		if n == 0 {
			text = "its addresses are "
		} else {
			text += ", "
		}
		text += a.Address + " (network " + a.NetworkID + ")"
	}
	return text
}

// ServerFloatingIP is a floating IP that an order gives a server once it runs.
type ServerFloatingIP struct {
	Address   string `json:"address,omitempty"`    // of one that the project has; "" = one is made
	NetworkID string `json:"network_id,omitempty"` // of a new one; "" = the only external network that is reached
}

// MakesFloatingIP reports whether a floating IP is made for the server, which is released with it.
func (s LaunchSpec) MakesFloatingIP() bool { return s.FloatingIP != nil && s.FloatingIP.Address == "" }

// Attaches reports whether the server gets volumes or a floating IP.
func (s LaunchSpec) Attaches() bool { return len(s.Volumes) > 0 || s.FloatingIP != nil }

// InstanceFloatingIP is the outcome of StepFloatingIP.
type InstanceFloatingIP struct {
	ID      string   `json:"id,omitempty"`
	Address string   `json:"address,omitempty"`
	Problem *Problem `json:"problem,omitempty"` // why the server has none
}

const floatingIPMark = "cloudfn:"

// FloatingIPMark is the description of a floating IP that was made for an instance.
func FloatingIPMark(instance uuid.UUID) string { return floatingIPMark + instance.String() }

// IsFloatingIPMark reports whether a floating IP with the description was made for an instance: it is released with it.
func IsFloatingIPMark(description string) bool {
	instance, hasMark := strings.CutPrefix(description, floatingIPMark)
	return hasMark && uuid.Validate(instance) == nil
}

// IsReleasedWith reports whether a floating IP of the server was made for it, and is released when it is deleted.
func (f FloatingIP) IsReleasedWith(s Server) bool {
	return s.Instance != nil && f.Description == FloatingIPMark(s.Instance.ID)
}

// FloatingIPRequest is what StepFloatingIP gives the instance's server.
func (i Instance) FloatingIPRequest() FloatingIPAttach {
	return FloatingIPAttach{
		Address: i.Spec.FloatingIP.Address, NetworkID: i.Spec.FloatingIP.NetworkID, Description: FloatingIPMark(i.ID),
	}
}

// floatingIPGrace is how long Nova may take to show an address of Neutron's.
const floatingIPGrace = 90 * time.Second

// AwaitsAddress reports whether Nova does not show the floating IP yet, and may still do so. now is the database's
// time.
func (i Instance) AwaitsAddress(f FloatingIP, now time.Time) bool {
	isShown := slices.ContainsFunc(i.Addresses, func(a Address) bool { return a.IP == f.Address })
	return !isShown && now.Sub(f.UpdatedAt).Abs() < floatingIPGrace // Neutron's clock may be wrong
}

// awaitsFloatingIP reports whether StepFloatingIP is to be taken for the instance. No address leads to ports without
// their security groups.
func (o Order) awaitsFloatingIP(i Instance) bool {
	switch i.State {
	case InstanceError, InstanceDeleting, InstanceDeleted:
		return false
	}
	return !i.lacksGroups() && o.Spec.FloatingIPs && i.Spec.FloatingIP != nil && i.FloatingIP == nil
}

// mayGiveFloatingIP reports whether StepFloatingIP can be taken now: as for StepVolumes.
func (o Order) mayGiveFloatingIP(i Instance) bool { return o.maySetVolumes(i) }
