package domain

import (
	"slices"
	"time"

	"github.com/google/uuid"
)

// ServerFloatingIP is a floating IP that an order gives a server once it runs.
type ServerFloatingIP struct {
	Address   string `json:"address,omitempty"`    // of one that the project has; "" = one is made
	NetworkID string `json:"network_id,omitempty"` // of a new one; "" = the only external network that is reached
}

// MakesFloatingIP reports whether a floating IP is made for the server, which is released with it.
func (s LaunchSpec) MakesFloatingIP() bool { return s.FloatingIP != nil && s.FloatingIP.Address == "" }

// InstanceFloatingIP is the outcome of StepFloatingIP.
type InstanceFloatingIP struct {
	ID      string   `json:"id,omitempty"`
	Address string   `json:"address,omitempty"`
	Problem *Problem `json:"problem,omitempty"` // why the server has none
}

// FloatingIPMark is the description of a floating IP that was made for an instance.
func FloatingIPMark(instance uuid.UUID) string { return "cloudfn:" + instance.String() }

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

// lacksFloatingIP reports whether the server could not be given its floating IP.
func (i Instance) lacksFloatingIP() bool { return i.FloatingIP != nil && i.FloatingIP.Problem != nil }

// Failure is why the instance is not as ordered; nil = it is, or is not yet.
func (i Instance) Failure() *Problem {
	if i.Problem == nil && i.lacksFloatingIP() {
		return i.FloatingIP.Problem
	}
	return i.Problem
}

// awaitsFloatingIP reports whether StepFloatingIP is to be taken for the instance.
func (o Order) awaitsFloatingIP(i Instance) bool {
	switch i.State {
	case InstanceError, InstanceDeleting, InstanceDeleted:
		return false
	}
	return o.Spec.FloatingIPs && i.Spec.FloatingIP != nil && i.FloatingIP == nil
}

// mayGiveFloatingIP reports whether StepFloatingIP can be taken now: as for StepVolumes.
func (o Order) mayGiveFloatingIP(i Instance) bool { return o.maySetVolumes(i) }
