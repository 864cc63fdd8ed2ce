package domain

import (
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"
)

// Server is a Nova server as Nova shows it to the caller.
type Server struct {
	ID        string    `json:"id"`
	Name      string    `json:"name"`
	Status    string    `json:"status"` // Nova's status, raw
	Addresses []Address `json:"addresses"`
	Flavor    FlavorRef `json:"flavor"`
	Image     *ImageRef `json:"image"` // null for a server that boots from a volume
	Zone      string    `json:"zone"`
	KeyName   string    `json:"key_name,omitempty"`
	CreatedAt time.Time `json:"created_at"`
	UpdatedAt time.Time `json:"updated_at"`
	Fault     *Fault    `json:"fault,omitempty"`
	Instance  *Tracked  `json:"instance"` // null for a server that is not tracked
	ProjectID string    `json:"-"`
	UserID    string    `json:"-"` // its creator
	Task      string    `json:"-"` // Nova's task state; "" = none
	Locked    bool      `json:"locked,omitempty"`
	Host      string    `json:"-"`              // by default for admins only; "" = hidden, or on none
	HostID    string    `json:"-"`              // the same for a project's servers on one host; "" = on none
	Launched  bool      `json:"-"`              // it has been on a host once, so it may have data
	Tags      []string  `json:"tags,omitempty"` // the API shows them of a single server
	// AllowedActions are those of Allows; only of a single server.
	AllowedActions []Action `json:"allowed_actions,omitempty"`

	Partial   bool              `json:"partial,omitempty"` // its cell is down: only id, status and times are known
	Deleted   *time.Time        `json:"-"`
	Metadata  map[string]string `json:"metadata,omitempty"` // only of a single server, and of managed ones
	VolumeIDs []string          `json:"-"`                  // attached; as Metadata
	Volumes   []VolumeRef       `json:"volumes,omitempty"`  // the same with names; only of a single server
	// LoginUser is that of its image, or of the volume that it boots from; only of a single server.
	LoginUser string `json:"login_user,omitempty"`
	// Description is only of a single server.
	Description string `json:"description,omitempty"`
	// SecurityGroups are names, and ServerGroups those that Nova places it by; only of a single server.
	SecurityGroups []string      `json:"security_groups,omitempty"`
	ServerGroups   []ServerGroup `json:"server_groups,omitempty"`

	Ports  []Port      `json:"-"` // only of managed ones; nil = not known
	MadeOf *LaunchSpec `json:"-"` // only of managed ones; nil = not known
}

// VolumeRef is an attached volume. Its name is empty in Cinder, or while it cannot be read.
type VolumeRef struct {
	ID   string `json:"id"`
	Name string `json:"name"`
}

// Address is one IP address of a server.
type Address struct {
	Network string `json:"network"` // the network's name, as Nova labels it
	IP      string `json:"ip"`
	Version int    `json:"version"` // 4 or 6
	Type    string `json:"type"`    // fixed or floating
}

// FlavorRef is the flavor as it was when the server was made. Nova gives no id from 2.47 on.
type FlavorRef struct {
	ID     string `json:"id,omitempty"`
	Name   string `json:"name"`
	VCPUs  int    `json:"vcpus"`
	RAMMB  int    `json:"ram_mb"`
	DiskGB int    `json:"disk_gb"`
}

// ImageRef is the image of a server.
type ImageRef struct {
	ID   string `json:"id"`
	Name string `json:"name,omitempty"` // only of a single server, and while Glance shows it
}

// Fault is why a server is in ERROR, by Nova. If it got no host, its message goes on with what one must have.
type Fault struct {
	Code    int       `json:"code"`
	Message string    `json:"message"`
	Created time.Time `json:"created_at"`
}

// Tracked is the instance that a server is tracked as.
type Tracked struct {
	ID       uuid.UUID     `json:"id"`
	ServerID string        `json:"-"` // "" for an instance without a server
	State    InstanceState `json:"state"`
	Origin   string        `json:"origin"` // launched, or connected
	// ConnectionID is the connection that manages the instance.
	ConnectionID *uuid.UUID `json:"connection_id,omitempty"`
	// LeaseID is the open lease that the instance is in.
	LeaseID *uuid.UUID `json:"lease_id,omitempty"`
	// Agent is set for a single server only.
	Agent *Agent `json:"agent,omitempty"`
}

// Agent is the last deployment to an instance.
type Agent struct {
	DeploymentID uuid.UUID  `json:"deployment_id"`
	Image        string     `json:"image"` // the OCI reference
	DeployedAt   time.Time  `json:"deployed_at"`
	ReadyAt      *time.Time `json:"ready_at"` // null until it reports
}

// ServerQuery selects servers of the caller's project.
type ServerQuery struct {
	Status string
	Name   string // part of the name
	Tags   []string
	IP     string // part of an address
	Flavor Flavor // of no ID: any
	Image  string // id
	// Host is shown to admins only: Nova ignores it for others.
	Host         string
	KeyName      string    // Nova does not filter by it
	ChangedSince time.Time // deleted servers, too; zero = all that exist
	Sort         ServerSort
	Limit        int
	Marker       string // id of the last server of the page before
}

// Selects reports whether the server has what the query requires. It ignores the case of names, as Nova's usual
// database does; Nova also lists servers whose names or addresses differ in some characters, and for a moment those
// that it has just deleted.
func (q ServerQuery) Selects(s Server) bool {
	hasIP := func(a Address) bool { return strings.Contains(a.IP, q.IP) }
	const deleted = "DELETED"
	switch {
	case s.Status == deleted && q.Status != deleted && q.ChangedSince.IsZero(),
		!strings.Contains(strings.ToLower(s.Name), strings.ToLower(q.Name)),
		q.Status != "" && s.Status != q.Status,
		q.IP != "" && !slices.ContainsFunc(s.Addresses, hasIP),
		q.Flavor.ID != "" && s.Flavor.Name != q.Flavor.Name,
		q.Image != "" && (s.Image == nil || s.Image.ID != q.Image),
		q.Host != "" && s.Host != q.Host,
		q.KeyName != "" && s.KeyName != q.KeyName:
		return false
	}
	return true
}

// ServerSort is the order of a list of servers.
type ServerSort string

// ServerSorts lists the orders by their names. Those with a minus begin with the last name or the newest server.
func ServerSorts() []string {
	return []string{"name", "-name", "created_at", "-created_at", "updated_at", "-updated_at"}
}

// ServerStatuses lists the statuses that members may filter by (Nova: api/openstack/common.py).
func ServerStatuses() []string {
	return []string{
		"ACTIVE", "BUILD", "ERROR", "HARD_REBOOT", "MIGRATING", "PASSWORD", "PAUSED", "REBOOT", "REBUILD",
		"RESCUE", "RESIZE", "REVERT_RESIZE", "SHELVED", "SHELVED_OFFLOADED", "SHUTOFF", "SUSPENDED", "VERIFY_RESIZE",
	}
}

// ConsoleType is a type of remote console, as Nova names it.
type ConsoleType string

// The types of remote consoles.
const (
	ConsoleNoVNC  ConsoleType = "novnc"
	ConsoleSPICE  ConsoleType = "spice-html5"
	ConsoleRDP    ConsoleType = "rdp-html5"
	ConsoleSerial ConsoleType = "serial"
	ConsoleWebMKS ConsoleType = "webmks"
)
