package domain

import "time"

// Flavor is a size that a server may have.
type Flavor struct {
	ID     string `json:"id" minLength:"1"`
	Name   string `json:"name"`
	VCPUs  int    `json:"vcpus" minimum:"1"`
	RAMMB  int    `json:"ram_mb" minimum:"0"`
	DiskGB int    `json:"disk_gb" minimum:"0"` // 0: the image decides, or a volume is needed
	Public bool   `json:"public"`
}

// Image is something a server can boot.
type Image struct {
	ID         string `json:"id" minLength:"1"`
	Name       string `json:"name"`
	Status     string `json:"status" minLength:"1"` // active, queued, saving, deactivated, ...
	Visibility string `json:"visibility" enum:"public,private,shared,community"`
	SizeBytes  int64  `json:"size_bytes" minimum:"0"` // 0 until it is uploaded
	MinDiskGB  int    `json:"min_disk_gb" minimum:"0"`
	MinRAMMB   int    `json:"min_ram_mb" minimum:"0"`
	DiskFormat string `json:"disk_format"`
	ProjectID  string `json:"-"` // its owner

	UpdatedAt time.Time `json:"-"`
	ServerID  string    `json:"-"` // that it was made of; "" = none, or it is not known
}

// Network is something a server can have a port on.
type Network struct {
	ID       string   `json:"id" format:"uuid"`
	Name     string   `json:"name"`
	Status   string   `json:"status" minLength:"1"`
	Shared   bool     `json:"shared"`
	External bool     `json:"external"` // floating IPs come from here; members usually cannot boot on it
	Subnets  []Subnet `json:"subnets"`
}

// Port is a server's connection to a network.
type Port struct {
	ID       string `json:"id"`
	DeviceID string `json:"device_id"` // that uses it; "" = none

	NetworkID string   `json:"network_id"`
	Groups    []string `json:"security_groups"`       // their ids
	IsSecured *bool    `json:"port_security_enabled"` // nil = a port cannot be without security groups
}

// Subnet is a range of addresses of a network.
type Subnet struct {
	ID        string `json:"id" format:"uuid"`
	Name      string `json:"name"`
	CIDR      string `json:"cidr" minLength:"1"`
	IPVersion int    `json:"ip_version" enum:"4,6"`
}

// KeyPair is an SSH key that Nova puts on a server.
type KeyPair struct {
	Name        string `json:"name"`
	Fingerprint string `json:"fingerprint"`
	Type        string `json:"type" enum:"ssh"` // ssh or x509
}

// ServerGroup is a group of servers that Nova places by a policy.
type ServerGroup struct {
	ID   string `json:"id"`
	Name string `json:"name"`
}

// SecurityGroup is a set of packet filter rules.
type SecurityGroup struct {
	ID          string `json:"id" format:"uuid"`
	Name        string `json:"name"`
	Description string `json:"description"`
}

// Zone is an availability zone of compute.
type Zone struct {
	Name      string `json:"name"`
	Available bool   `json:"available"`
}

// Quota is what the project may use of compute, and uses. A max of -1 is unlimited.
type Quota struct {
	Instances QuotaItem `json:"instances"`
	VCPUs     QuotaItem `json:"vcpus"`
	RAMMB     QuotaItem `json:"ram_mb"`

	KeyPairs int `json:"-"` // limit per user; Nova does not show the number
}

// QuotaItem is one line of a quota.
type QuotaItem struct {
	Max  int `json:"max"`
	Used int `json:"used"`
}

// Need is the part of a quota that servers use.
type Need struct{ Instances, VCPUs, RAMMB int }

// Add counts one more server.
func (n *Need) Add(s LaunchSpec) {
	n.Instances, n.VCPUs, n.RAMMB = n.Instances+1, n.VCPUs+s.VCPUs, n.RAMMB+s.RAMMB
}

// Fits reports whether the need is within the quota.
func (q Quota) Fits(n Need) bool {
	return q.Instances.Fits(n.Instances) && q.VCPUs.Fits(n.VCPUs) && q.RAMMB.Fits(n.RAMMB)
}

// Fits reports whether n more are within the quota.
func (q QuotaItem) Fits(n int) bool { return q.Max < 0 || q.Used+n <= q.Max }
