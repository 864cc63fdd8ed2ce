package domain

import (
	"fmt"
)

// LaunchSpec describes a server, with names resolved to ids. It is stored with the instance, so it has no user_data or
// other secrets.
type LaunchSpec struct {
	FlavorID   string `json:"flavor_id"`
	FlavorName string `json:"flavor_name,omitempty"`
	// BaseFlavorID is the flavor that a reservation's flavor is a copy of; "" = it is no copy.
	BaseFlavorID   string `json:"base_flavor_id,omitempty"`
	BaseFlavorName string `json:"base_flavor_name,omitempty"`
	VCPUs          int    `json:"vcpus"` // the flavor's, for quotas and reuse
	RAMMB          int    `json:"ram_mb"`
	DiskGB         int    `json:"disk_gb,omitempty"`
	ImageID        string `json:"image_id"`
	// ImageRef is the image as an order through a connection gives it, for reuse.
	ImageRef   string   `json:"image,omitempty"`
	NetworkIDs []string `json:"network_ids"`
	// Attachments replace NetworkIDs if one of them has an address or is a port.
	Attachments    []Attachment      `json:"attachments,omitempty"`
	KeyName        string            `json:"key_name,omitempty"`
	SecurityGroups []string          `json:"security_groups,omitempty"`
	Zone           string            `json:"zone,omitempty"`
	Metadata       map[string]string `json:"metadata,omitempty"`
	ServerGroup    string            `json:"server_group,omitempty"` // the id of Nova's server group
	Tags           []string          `json:"tags,omitempty"`         // besides those of Order.ServerTags
	Description    string            `json:"description,omitempty"`
	ConfigDrive    bool              `json:"config_drive,omitempty"`
	Hints          map[string]any    `json:"scheduler_hints,omitempty"` // texts, and lists of them
	Volumes        []ServerVolume    `json:"volumes,omitempty"`         // that it has at its first boot
}

// ServerVolume is a volume that a server gets besides its disk. It stays when the server is deleted.
type ServerVolume struct {
	ID            string `json:"id"`
	IsMultiattach bool   `json:"multiattach,omitempty"` // several servers may have it
}

// Attachment is one connection of a server: to a network, with an address if it is given, or by an existing port.
type Attachment struct {
	NetworkID string `json:"network_id,omitempty"`
	FixedIP   string `json:"fixed_ip,omitempty"`
	PortID    string `json:"port_id,omitempty"`
}

// Sized sets the flavor and its sizes.
func (s *LaunchSpec) Sized(f Flavor) {
	s.FlavorID, s.FlavorName, s.VCPUs, s.RAMMB, s.DiskGB = f.ID, f.Name, f.VCPUs, f.RAMMB, f.DiskGB
}

// SpecOf returns the spec of an existing server.
func SpecOf(s Server) LaunchSpec {
	spec := LaunchSpec{
		FlavorName: s.Flavor.Name, VCPUs: s.Flavor.VCPUs, RAMMB: s.Flavor.RAMMB, DiskGB: s.Flavor.DiskGB,
		KeyName: s.KeyName, Zone: s.Zone, Metadata: s.Metadata,
	}
	if s.Image != nil {
		spec.ImageID = s.Image.ID
	}
	return spec
}

// The limits of an order. Nova's are 255 characters for names and metadata, 128 pairs by quota, and 65535 bytes of
// base64 for user_data.
const (
	MaxInstances  = 100
	MaxNameLength = 255
	MaxUserData   = 65535 / 4 * 3
	MaxMetadata   = 128
	MaxOrderName  = MaxNameLength - len("-100") // followed by the server's number
	maxTagLength  = 60
)

// InstanceName returns the name of the nth (from 0) of count servers: with its number unless it is the only one, as
// Nova does.
func InstanceName(name string, n, count int) string {
	if count == 1 {
		return name
	}
	return fmt.Sprintf("%s-%d", name, n+1)
}
