package domain

import (
	"fmt"
	"strings"
	"time"
)

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
	// VirtualBytes is the size of its disk, which a sparse or compressed format stores in less; 0 = Glance has not read
	// it.
	VirtualBytes int64  `json:"-"`
	MinDiskGB    int    `json:"min_disk_gb" minimum:"0"`
	MinRAMMB     int    `json:"min_ram_mb" minimum:"0"`
	DiskFormat   string `json:"disk_format"`
	LoginUser    string `json:"login_user,omitempty"` // that its servers let in by SSH; "" = the image does not say it
	ProjectID    string `json:"-"`                    // its owner

	UpdatedAt time.Time `json:"-"`
	ServerID  string    `json:"-"` // that it was made of; "" = none, or it is not known
}

// DiskGB is how many gigabytes of a disk the image needs.
func (i Image) DiskGB() int {
	const gib = 1 << 30
	return max(i.MinDiskGB, int((max(i.SizeBytes, i.VirtualBytes)+gib-1)/gib))
}

// loginUsers are the users that the cloud images of distributions make, by Glance's os_distro, whose values are
// libosinfo's. CentOS has had several.
var loginUsers = map[string]string{
	"almalinux": "almalinux", "alpine": "alpine", "arch": "arch", "cirros": "cirros", "debian": "debian",
	"fedora": "fedora", "fedora-coreos": "core", "flatcar": "core", "freebsd": "freebsd", "opensuse": "opensuse",
	"rhel": "cloud-user", "rocky": "rocky", "ubuntu": "ubuntu",
}

// LoginUser returns the user of an image with these properties of Glance's: os_admin_user, or the default of os_distro.
func LoginUser(adminUser, distro string) string {
	if isLoginUser(adminUser) {
		return adminUser
	}
	return loginUsers[strings.ToLower(distro)]
}

// isLoginUser reports whether name is a plain name of a user. Others may have shared the image, and clients give the
// name to ssh, whose configuration may give it to a shell.
func isLoginUser(name string) bool {
	const letters = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ_"
	return name != "" && len(name) <= 32 && strings.Contains(letters, name[:1]) &&
		strings.Trim(name, letters+"0123456789.-") == ""
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
	PublicKey   string `json:"-"`
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

// Region is a region of the cloud, as the catalog of the caller's token has it.
type Region struct {
	Name     string   `json:"name" minLength:"1"`
	Default  bool     `json:"default" doc:"Requests that name no region are for this one."`
	Services []string `json:"services" doc:"The types of its services."`
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

// Need is the part of a quota that servers use, with the volumes and floating IPs that are made for them.
type Need struct{ Instances, VCPUs, RAMMB, Volumes, Gigabytes, FloatingIPs int }

// Add counts one more server.
func (n *Need) Add(s LaunchSpec) {
	n.Instances, n.VCPUs, n.RAMMB = n.Instances+1, n.VCPUs+s.VCPUs, n.RAMMB+s.RAMMB
	for _, v := range s.Volumes {
		if v.IsNew() {
			n.Volumes, n.Gigabytes = n.Volumes+1, n.Gigabytes+v.SizeGB
		}
	}
	if s.MakesFloatingIP() {
		n.FloatingIPs++
	}
}

// Fits reports whether the need is within the quota.
func (q Quota) Fits(n Need) bool {
	return q.Instances.Fits(n.Instances) && q.VCPUs.Fits(n.VCPUs) && q.RAMMB.Fits(n.RAMMB)
}

// Shortages says of what the quota has too little for the need, and how much of it is left.
func (q Quota) Shortages(n Need) (all []string) {
	all = append(all, q.Instances.Shortage("instances", n.Instances)...)
	all = append(all, q.VCPUs.Shortage("vcpus", n.VCPUs)...)
	return append(all, q.RAMMB.Shortage("ram_mb", n.RAMMB)...)
}

// Fits reports whether n more are within the quota.
func (q QuotaItem) Fits(n int) bool { return q.Max < 0 || q.Used+n <= q.Max }

// Shortage says how much is left for n more that the quota has too little for; nil = they fit.
func (q QuotaItem) Shortage(what string, n int) []string {
	if n <= 0 || q.Fits(n) {
		return nil
	}
	return []string{fmt.Sprintf("needs %d %s, %d of %d are left", n, what, max(0, q.Max-q.Used), q.Max)}
}

// VolumeQuota is how many volumes and gigabytes of them a project may have, and has.
type VolumeQuota struct{ Volumes, Gigabytes QuotaItem }

// Shortages says of what the quota has too little for a number of volumes, and how much of it is left.
func (q VolumeQuota) Shortages(volumes, gigabytes int) []string {
	return append(q.Volumes.Shortage("volumes", volumes), q.Gigabytes.Shortage("gigabytes of volumes", gigabytes)...)
}

// VolumeType is a type of Cinder's volumes.
type VolumeType struct {
	ID   string `json:"id"`
	Name string `json:"name"`
}

// VolumeSnapshot is a snapshot of a volume.
type VolumeSnapshot struct {
	ID     string
	Status string // Cinder's, raw
	SizeGB int    // of its volume

	Metadata map[string]string
}

// VolumeStatuses are Cinder's statuses of volumes.
func VolumeStatuses() []string {
	return []string{
		"creating", "available", "reserved", "attaching", "detaching", "in-use", "maintenance", "deleting",
		"awaiting-transfer", "error", "error_deleting", "backing-up", "restoring-backup", "error_backing-up",
		"error_restoring", "error_extending", "downloading", "uploading", "retyping", "extending", "managing",
		"error_managing", "unmanaging", "reverting",
	}
}

// VolumeQuery selects volumes of a project.
type VolumeQuery struct {
	Status string // "" = any
	Name   string // a part of it, in any case
	Limit  int
	Marker string // the last volume of the page before; "" = the newest is the first
}

// Selects applies the query's filters.
func (q VolumeQuery) Selects(v Volume) bool {
	return (q.Status == "" || v.Status == q.Status) &&
		strings.Contains(strings.ToLower(v.Name), strings.ToLower(q.Name))
}

// Volume is a volume of Cinder.
type Volume struct {
	ID          string
	ProjectID   string
	Name        string
	Description string
	Status      string // Cinder's, raw
	SizeGB      int
	Type        string // the name of its type
	Zone        string
	Metadata    map[string]string
	Servers     []string // that it is attached to
	// IsMultiattach reports whether several servers may have it.
	IsMultiattach bool
	IsBootable    bool
	LoginUser     string // of the image that it was made from; "" = that does not say it
	CreatedAt     time.Time
	UpdatedAt     time.Time // the same until its first change
}

// VolumeRequest says what a volume is to be.
type VolumeRequest struct {
	Name        string
	Description string
	SizeGB      int    // 0 = that of its snapshot or volume
	Type        string // "" = Cinder's default
	ImageID     string // that it is filled with; "" = none
	SnapshotID  string // that it is made from; "" = none
	VolumeID    string // that it is a copy of; "" = none
	Zone        string // "" = Cinder's choice
	Metadata    map[string]string
}

// ImageDetail is an image with what its owner may change.
type ImageDetail struct {
	Image

	OwnerID         string
	ContainerFormat string
	Tags            []string
	Properties      map[string]string
	SHA512          string // of its content, in hexadecimal; "" = not known
	IsImporting     bool   // Glance is fetching its content
	FailedImport    bool   // Glance could not
	CreatedAt       time.Time
	UpdatedAt       time.Time
}

// ImageRequest says what an image is to be.
type ImageRequest struct {
	Name            string
	DiskFormat      string
	ContainerFormat string
	MinDiskGB       int
	MinRAMMB        int
	Tags            []string
	Properties      map[string]string
}

// ImageChange is a change of an image; what is nil stays.
type ImageChange struct {
	Name      *string
	MinDiskGB *int
	MinRAMMB  *int
	Tags      []string          // all of them
	Set       map[string]string // properties
	Remove    []string          // names of properties
}

// StoredSecret is a secret of Barbican, without its payload.
type StoredSecret struct {
	ID          string
	Name        string
	Status      string
	ContentType string
	CreatedAt   time.Time
}

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
