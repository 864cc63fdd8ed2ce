package domain

import (
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"
)

// PoolState reports whether hosts can be reserved on a node.
type PoolState string

// The states of a node in the reservable pool; a node that is not in the table is in none.
const (
	NodeJoining    PoolState = "joining"    // run-leases is isolating it
	NodeReservable PoolState = "reservable" // only servers of active reservations land on it
	NodeLeaving    PoolState = "leaving"    // run-leases is opening it again
)

// NodeStatus reports whether a node reports.
type NodeStatus string

// The statuses of a node.
const (
	NodeUnknown NodeStatus = "unknown" // it was never polled
	NodeUp      NodeStatus = "up"
	NodeSuspect NodeStatus = "suspect" // it has not reported for a while, or its status URL says so
	NodeDown    NodeStatus = "down"
)

// NodeSettings are what admins set of a node.
type NodeSettings struct {
	Labels          map[string]string
	RegionZone      string
	NetworkZone     string
	Providers       []string
	StatusURL       string
	Alert           bool
	AutoCordonAfter time.Duration
	AutoDrainAfter  time.Duration
}

// The forms of labels of nodes and of declared resources, as Kubernetes has them.
var (
	labelName   = regexp.MustCompile(`^[A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?$`)
	labelPrefix = regexp.MustCompile(`^[a-z0-9]([a-z0-9-]*[a-z0-9])?(\.[a-z0-9]([a-z0-9-]*[a-z0-9])?)*$`)
)

const (
	maxLabelPrefix = 253
	labelNameRule  = "63 letters, digits, '-', '_' and '.' at most, with a letter or digit at both ends"
)

// CheckLabel returns what is wrong with a label, as Kubernetes would; "" = nothing.
func CheckLabel(key, value string) (fault string) {
	prefix, name, hasPrefix := strings.Cut(key, "/")
	if !hasPrefix {
		prefix, name = "", key
	}
	isPrefix := !hasPrefix || len(prefix) <= maxLabelPrefix && labelPrefix.MatchString(prefix)
	switch {
	case !isPrefix || !labelName.MatchString(name):
		return "the key of a label must have " + labelNameRule + "; a DNS name and '/' may stand before it"
	case value != "" && !labelName.MatchString(value):
		return "the value of a label must be empty or have " + labelNameRule
	}
	return ""
}

// NodeLimits say how the status of a node follows from its reports.
type NodeLimits struct {
	Suspect   time.Duration // no report for longer: the node is suspect
	Down      time.Duration // the same: it is down
	AsOf      time.Time     // when Nova was read, by the database's clock; zero = now
	Answering []string      // hosts whose status URL has just answered: they are at most suspect
}

// CordonMark begins the reason that Nova's service list shows of a host that cloudfn has cordoned.
const CordonMark = "cloudfn: "

// Node is a host of compute: what watch-nodes has observed of it, what its admins have set, and its part in the
// reservable pool.
type Node struct {
	Name            string
	Region          string
	Zone            string // by Nova
	Labels          map[string]string
	RegionZone      string        // where its admins say that it is
	NetworkZone     string        // the same, of the network
	Providers       []string      // what runs on it besides Nova's hypervisor
	StatusURL       string        // requested while it is not up; "" = none
	ProbedAt        time.Time     // when that was requested last
	AnsweredAt      time.Time     // when that answered; zero = it did not, the last time
	Alert           bool          // changes of status are events
	AutoCordonAfter time.Duration // suspect or down for so long; zero = never
	AutoDrainAfter  time.Duration // suspect for so long, and still up in Nova; zero = never
	Status          NodeStatus
	StatusReason    string
	StatusSince     time.Time
	NotUpSince      time.Time // suspect or down; zero = it is neither
	ServiceAt       time.Time // the last report of its nova-compute, by Nova's clock
	AgentAt         time.Time // the last heartbeat of the operator's own agent
	ServiceID       string    // of its nova-compute
	Enabled         bool
	DisabledReason  string
	CordonedAt      time.Time // by us; zero = we have not
	Servers         int
	Usage           HostUsage
	Version         int64 // of its ETag
	Seq             int64 // of its last event
	Pool            PoolState
	Reason          string // why it does not join or leave
	IsUp            bool   // by Nova's service list
	ForcedDown      bool   // an admin says so in Nova
	ProviderID      string // its resource provider in Placement
	VCPUs           int    // what servers may use: with Placement's ratios, without what it reserves
	RAMMB           int
	DiskGB          int
	Traits          []string
	Attributes      map[string]string // by name: hypervisor_type, cpu_info:arch, ...
	RequestedBy     string            // the user id of the admin
	SeenAt          time.Time
	DownSince       time.Time // zero = it is up
	UpdatedAt       time.Time
}

// Isolation reports whether the cloud keeps servers without the trait off reservable hosts.
type Isolation struct {
	Result   string // proven or unproven
	Detail   string
	TestedAt time.Time // zero = never
	// Since when each self-test has proven it; nil = it is not proven.
	ProvenSince *time.Time
}

// The results of the isolation self-test.
const (
	IsolationProven   = "proven"
	IsolationUnproven = "unproven"
)

// ProbePrefix begins the names of the servers of the isolation self-test; the host's name follows.
const ProbePrefix = "cloudfn-probe-"

// HostUsage is what the hypervisors of a host have, and what servers use of it, by Nova: without Placement's ratios. It
// is zero until they were read.
type HostUsage struct {
	VCPUs      int `json:"vcpus"`
	RAMMB      int `json:"ram_mb"`
	DiskGB     int `json:"disk_gb"`
	UsedVCPUs  int `json:"used_vcpus"`
	UsedRAMMB  int `json:"used_ram_mb"`
	UsedDiskGB int `json:"used_disk_gb"`
}

// HeldZone is a zone in which too many hosts are out of service for any other to be cordoned or drained automatically.
type HeldZone struct {
	Zone    string
	Since   time.Time // zero = it is so no more
	EndedAt time.Time // when that ended last; zero = never
}

// NodeDetails say how far the hypervisors were read, which takes a page at a time.
type NodeDetails struct {
	At     time.Time // when the last page was read, by the database's clock; zero = never
	Marker string    // the hypervisor after which the next page begins; "" = all were read
}

// ComputeHost is a host of compute as Nova and Placement show it now.
type ComputeHost struct {
	Name           string
	Zone           string
	IsUp           bool
	IsEnabled      bool
	ForcedDown     bool // an admin says so in Nova; HostReports does not have it
	CellDown       bool // Nova shows only its name, because its cell does not answer
	IsBrief        bool // its hypervisors were not read: its servers and sizes are unknown
	Servers        int  // that run on it
	ServerIDs      []string
	ServiceID      string // of its nova-compute
	DisabledReason string
	ProviderID     string // the same as the hypervisor's id
	VCPUs          int    // what servers may use
	RAMMB          int
	DiskGB         int
	UsedVCPUs      int
	UsedRAMMB      int
	UsedDiskGB     int
	Traits         []string
	Attributes     map[string]string
	SeenAt         time.Time // of the service's last report
}

// Substitutes are the hosts that take new servers in the place of one: those that are up, enabled and of its zone.
// Reservable hosts, which are pooled, and ordinary ones do not replace one another.
func Substitutes(name string, hosts []ComputeHost, pooled map[string]bool) (found []ComputeHost) {
	at := slices.IndexFunc(hosts, func(h ComputeHost) bool { return h.Name == name })
	for _, h := range hosts {
		isNear := at < 0 || h.Zone == hosts[at].Zone
		if h.Name != name && h.IsUp && h.IsEnabled && isNear && pooled[h.Name] == pooled[name] {
			found = append(found, h)
		}
	}
	return found
}

// Aggregate is a host aggregate of Nova.
type Aggregate struct {
	ID       int
	UUID     string // its name in Placement
	Name     string
	Hosts    []string
	Metadata map[string]string
}

// PrivateFlavor is a flavor that is only for some projects.
type PrivateFlavor struct {
	ID         string
	Name       string
	BaseID     string            // the flavor whose sizes and extra specs it has
	ExtraSpecs map[string]string // besides the base's
}

// DrainStatus is how far a drain is.
type DrainStatus string

// The statuses of a drain. Only a running one changes.
const (
	DrainRunning   DrainStatus = "running"
	DrainCancelled DrainStatus = "cancelled" // what Nova was requested to move already is followed to its end
	DrainDone      DrainStatus = "done"      // every server has moved or is skipped
	DrainFailed    DrainStatus = "failed"    // the host is down, or is not cordoned any more
)

// The limits of a drain, and of its defaults in watch-nodes' settings.
const (
	MaxDrainParallel   = 20
	MinDrainServerTime = 10 * time.Second
	MaxDrainServerTime = 24 * time.Hour
)

// Drain moves the servers off a host.
type Drain struct {
	ID            uuid.UUID
	Node          string
	Status        DrainStatus
	Reason        string
	IsAutomatic   bool   // after the node's auto_drain_after
	RequestedBy   string // the user id of the admin
	Actor         *Actor
	Parallel      int           // how many servers move at a time; 0 = as watch-nodes has it
	ServerTimeout time.Duration // for how long one server may move; 0 = as watch-nodes has it
	Attempts      int           // of reading the host, which fails
	DueAt         time.Time     // zero = it has ended
	CreatedAt     time.Time
	UpdatedAt     time.Time
	EndedAt       time.Time
	Servers       []DrainServer
}

// DrainServerStatus is how far one server of a drain is.
type DrainServerStatus string

// The statuses of a server of a drain. The last two are final, but for a server that comes back.
const (
	DrainPending    DrainServerStatus = "pending"
	DrainMigrating  DrainServerStatus = "migrating"  // Nova was requested to move it
	DrainConfirming DrainServerStatus = "confirming" // it has moved, and its migration is to be confirmed
	DrainMoved      DrainServerStatus = "moved"      // Nova shows it on another host
	DrainSkipped    DrainServerStatus = "skipped"
)

// The methods of moving a server.
const (
	LiveMigration = "live"
	ColdMigration = "cold"
)

// DrainServer is a server of a drain.
type DrainServer struct {
	ServerID  string
	Name      string
	ProjectID string
	Method    string // "" = not chosen yet, or skipped
	Status    DrainServerStatus
	Reason    string // why it is skipped, or waits
	Target    string // the host that it is on now
	Attempts  int
	BegunAt   time.Time // when Nova was called
	EndedAt   time.Time
}

// Counts returns how many servers of the drain are done, left and skipped.
func (d Drain) Counts() (moved, left, skipped int) {
	for _, s := range d.Servers {
		switch s.Status {
		case DrainMoved:
			moved++
		case DrainSkipped:
			skipped++
		default:
			left++
		}
	}
	return moved, left, skipped
}

// DrainProgress is how many servers of a drain have moved, are still to move, and stay.
type DrainProgress struct {
	Node        string
	IsAutomatic bool
	Moved       int
	Unmoved     int
	Skipped     int
}

// Migration is Nova's record of a server that moves to another host.
type Migration struct {
	Status   string // Nova's, raw
	Target   string
	IsResize bool // its owner has requested it
}

// IsOver reports whether Nova works on the migration no more.
func (m Migration) IsOver() bool {
	return slices.Contains([]string{
		"completed", "confirmed", "reverted", "error", "failed", "cancelled", "done", "finished",
	}, m.Status)
}

// HasFailed reports whether the server stayed where it was.
func (m Migration) HasFailed() bool {
	return slices.Contains([]string{"error", "failed", "cancelled"}, m.Status)
}
