package domain

import (
	"cmp"
	"strings"
)

// MachineSpec declares a server. A flavor, image or network is an id or a unique name, which is resolved when the
// server is created.
type MachineSpec struct {
	Flavor         string            `json:"flavor"`
	Image          string            `json:"image"`
	Networks       []string          `json:"networks"`
	KeyName        string            `json:"key_name,omitempty"`
	SecurityGroups []string          `json:"security_groups,omitempty"`
	Metadata       map[string]string `json:"metadata,omitempty"`
	Tags           []string          `json:"tags,omitempty"`
	Volumes        []string          `json:"volumes,omitempty"`    // managed volumes of the project, by name
	Configmaps     []string          `json:"configmaps,omitempty"` // managed ones: files written at the first boot
	// Update says how a change of flavor or image is made: in_place (resize, rebuild; the default) or replace.
	Update string `json:"update,omitempty"`
}

// The ways to update a server.
const (
	UpdateInPlace = "in_place"
	UpdateReplace = "replace"
)

// DeploymentSpec declares count servers of one spec.
type DeploymentSpec struct {
	MachineSpec

	Count          int  `json:"count"`
	MaxUnavailable *int `json:"max_unavailable,omitempty"` // while it is updated; nil = 1
}

// VolumeSpec declares a volume. It grows in place, and never shrinks.
type VolumeSpec struct {
	SizeGB      int               `json:"size_gb"`
	Type        string            `json:"type,omitempty"`
	Image       string            `json:"image,omitempty"` // what it is filled with: id or unique name
	Zone        string            `json:"zone,omitempty"`
	Description string            `json:"description,omitempty"`
	Metadata    map[string]string `json:"metadata,omitempty"`
}

// ZoneIn is the availability zone of a volume: its own, or else that of its schedule; "" = any.
func (s VolumeSpec) ZoneIn(rule ScheduleRule) string { return cmp.Or(s.Zone, rule.Zone) }

// ImageSpec declares an image. A change of its source or formats replaces it.
type ImageSpec struct {
	DiskFormat      string            `json:"disk_format"`
	ContainerFormat string            `json:"container_format,omitempty"` // "" = bare
	MinDiskGB       int               `json:"min_disk_gb,omitempty"`
	MinRAMMB        int               `json:"min_ram_mb,omitempty"`
	Tags            []string          `json:"tags,omitempty"`
	Properties      map[string]string `json:"properties,omitempty"`
	SourceURL       string            `json:"source_url,omitempty"` // Glance downloads it (web-download)
	Content         string            `json:"content,omitempty"`    // base64, for small ones
}

// BalancerSpec declares a load balancer with its listeners.
type BalancerSpec struct {
	Network   string         `json:"network"` // of its address: id or unique name
	Address   string         `json:"address,omitempty"`
	Listeners []ListenerSpec `json:"listeners"`
}

// ListenerSpec declares a port of a load balancer, and where its requests go.
type ListenerSpec struct {
	Protocol   string   `json:"protocol"` // TCP, UDP, HTTP
	Port       int      `json:"port"`
	Algorithm  string   `json:"algorithm,omitempty"` // "" = ROUND_ROBIN
	MemberPort int      `json:"member_port"`
	Deployment string   `json:"deployment,omitempty"` // a managed deployment, whose servers it balances
	Machines   []string `json:"machines,omitempty"`   // managed servers
	Addresses  []string `json:"addresses,omitempty"`
}

// SecretSpec declares a secret; its payload is among the ManagedSecrets.
type SecretSpec struct {
	ContentType string `json:"content_type,omitempty"` // "" = text/plain
}

// IsText reports whether the payload is text. Others are bytes, and declared in base64.
func (s SecretSpec) IsText() bool {
	return s.ContentType == "" || strings.HasPrefix(strings.ToLower(s.ContentType), "text/")
}

// ConfigmapSpec declares files.
type ConfigmapSpec struct {
	Data map[string]string `json:"data"` // texts by file name
}

// ManagedSecrets are the secret parts of a spec. They are sealed to reconcile-managed and never shown.
type ManagedSecrets struct {
	UserData UserData `json:"user_data,omitempty"` // of a server
	Payload  string   `json:"payload,omitempty"`   // of a secret
}
