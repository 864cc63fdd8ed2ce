package domain

import "time"

// LoadBalancer is a load balancer of Octavia with its listeners.
type LoadBalancer struct {
	ID        string
	Name      string
	Status    string // its provisioning status, raw; while it is PENDING_* it cannot be changed
	IsOff     bool   // its admin state: it serves nothing
	Address   string
	NetworkID string
	Tags      []string
	Listeners []Listener
	Unused    []ServerPool // that no listener has, without their members
	CreatedAt time.Time
	UpdatedAt time.Time // the same until its first change
}

// Listener is a port of a load balancer, with its default pool.
type Listener struct {
	ID       string // "" = not made yet
	Name     string
	Protocol string
	Port     int
	Status   string // its provisioning status, raw
	IsOff    bool   // its admin state
	Pool     *ServerPool
}

// ServerPool is where the requests of a listener go.
type ServerPool struct {
	ID        string
	Name      string
	Protocol  string
	Algorithm string
	IsOff     bool     // its admin state
	Status    string   // its provisioning status, raw; its members can be changed while it is ACTIVE
	MemberIDs []string // of those that exist; a member never changes its address or port
	Members   []PoolMember
}

// PoolMember is an address that requests go to.
type PoolMember struct {
	ID      string
	Name    string
	Address string
	Port    int
	Status  string // its provisioning status, raw
}

// LoadBalancerRequest says what a load balancer is to be.
type LoadBalancerRequest struct {
	Name      string
	NetworkID string
	Address   string // "" = any of the network
	Tags      []string
	Listeners []Listener
}
