package domain

import (
	"cmp"
	"encoding/json"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/google/uuid"
)

// Kind is a kind of managed resources.
type Kind string

// The kinds that are managed where the cloud has their service.
const (
	KindMachine    Kind = "VirtualMachine"
	KindDeployment Kind = "VirtualMachineDeployment"
	// The containers of a pod run on a server of its own.
	KindPod           Kind = "Pod"
	KindPodDeployment Kind = "PodDeployment"
	KindVolume        Kind = "Volume"
	KindImage         Kind = "Image"
	KindBalancer      Kind = "Loadbalancer"
	KindSecret        Kind = "Secret"
	KindConfigmap     Kind = "Configmap"
)

// IsServer reports whether the objects of the kind are servers.
func (k Kind) IsServer() bool { return k == KindMachine || k == KindPod || k.IsDeployment() }

// IsDeployment reports whether a resource of the kind has several equal servers.
func (k Kind) IsDeployment() bool { return k == KindDeployment || k == KindPodDeployment }

// IsPod reports whether the servers of the kind run containers.
func (k Kind) IsPod() bool { return k == KindPod || k == KindPodDeployment }

// ServerKinds lists the kinds whose objects are servers.
func ServerKinds() []Kind {
	return slices.DeleteFunc(Kinds(), func(k Kind) bool { return !k.IsServer() })
}

// Kinds lists the managed kinds in the order in which they can be created: none needs a later one.
func Kinds() []Kind {
	return []Kind{
		KindSecret, KindConfigmap, KindImage, KindVolume, KindMachine, KindDeployment, KindPod, KindPodDeployment,
		KindBalancer,
	}
}

// UnsupportedKinds lists the kinds that OpenStack has no home for.
func UnsupportedKinds() []Kind { return []Kind{"CI", "CD"} }

// ManagedStatus is the status of a managed resource.
type ManagedStatus string

// The statuses of a managed resource.
const (
	ManagedPending  ManagedStatus = "pending"
	ManagedCreating ManagedStatus = "creating"
	ManagedUpdating ManagedStatus = "updating"
	ManagedReady    ManagedStatus = "ready"
	ManagedDegraded ManagedStatus = "degraded" // a deployment with too few members that are ready, or drift
	ManagedError    ManagedStatus = "error"    // it is tried again after a pause, or needs its user
	ManagedDeleting ManagedStatus = "deleting"
)

// ManagedRequest is what is to be done with a managed resource; "" = nothing.
type ManagedRequest string

// The requests for a managed resource.
const (
	ManagedCreate ManagedRequest = "create"
	ManagedUpdate ManagedRequest = "update"
	ManagedDelete ManagedRequest = "delete"
)

// Repair says what happens when others change what was declared.
type Repair string

// RepairManual only shows the drift; RepairAuto makes the resource as it was declared again.
const (
	RepairAuto   Repair = "auto"
	RepairManual Repair = "manual"
)

// DefaultMaxRevisions is how many revisions are kept unless the resource says otherwise.
const DefaultMaxRevisions = 10

// Schedule says where a resource may run.
type Schedule struct {
	Region   string            `json:"region,omitempty" maxLength:"255" doc:"Of the catalog."` // "" = our own
	Zone     string            `json:"zone,omitempty" maxLength:"255" doc:"An availability zone."`
	Labels   map[string]string `json:"labels,omitempty" doc:"That its node should have."`
	Affinity string            `json:"affinity,omitempty" enum:"spread,pack" doc:"Of a deployment's servers."`
}

// Condition is what is known of one aspect of a resource, in the form of Kubernetes' conditions.
type Condition struct {
	Type             string    `json:"type" enum:"Ready,Updated,InSync,Delegated,Scheduled,Progressing"`
	Status           string    `json:"status" enum:"True,False,Unknown"`
	Reason           string    `json:"reason"` // one word in CamelCase
	Message          string    `json:"message"`
	LastTransitionAt time.Time `json:"last_transition_at" doc:"When the status changed."`
	ObservedRevision int       `json:"observed_revision" minimum:"0" doc:"The revision that it is about."`
}

// The types of conditions.
const (
	ConditionReady     = "Ready"     // it is as declared, and works
	ConditionUpdated   = "Updated"   // its objects have the declared revision
	ConditionInSync    = "InSync"    // no one else has changed it
	ConditionDelegated = "Delegated" // reconcile-managed may act in its user's name
	ConditionScheduled = "Scheduled" // it runs where its schedule says
	// ConditionProgressing is False while an update or a creation has stopped, or OpenStack does not go on with one.
	ConditionProgressing = "Progressing"
)

// SetCondition sets a condition. The time of its last transition changes only with its status.
func SetCondition(all []Condition, c Condition, now time.Time) []Condition {
	c.LastTransitionAt = now
	n := slices.IndexFunc(all, func(old Condition) bool { return old.Type == c.Type })
	if n < 0 {
		return append(all, c)
	}
	if all[n].Status == c.Status {
		c.LastTransitionAt = all[n].LastTransitionAt
	}
	all[n] = c
	return all
}

// Drift is a field that someone else has changed.
type Drift struct {
	Member   uuid.UUID `json:"member,omitzero" doc:"The id of the member."`
	Field    string    `json:"field" minLength:"1"`
	Declared any       `json:"declared,omitempty" doc:"The value in the spec, if there is one."`
	Actual   any       `json:"actual,omitempty" doc:"The value in OpenStack, if there is one."`
}

// Managed is a declared resource, with its current revision and its members.
type Managed struct {
	ID               uuid.UUID
	ProjectID        string
	DomainID         string
	UserID           string
	ConnectionID     uuid.UUID
	Kind             Kind
	Name             string
	Provider         string
	Flavor           string // the template that its spec began with; "" = none
	Labels           map[string]string
	Schedule         Schedule
	Repair           Repair
	MaxRevisions     int
	Revision         int
	ObservedRevision int
	Request          ManagedRequest
	Orphan           bool // with the request delete: its objects stay
	Status           ManagedStatus
	Reason           string
	Conditions       []Condition
	Drift            []Drift
	Actor            *Actor
	Version          int64
	Declarations     int // how often it was declared, the same again included if something was tried again
	Seq              int64
	CreatedAt        time.Time
	UpdatedAt        time.Time

	Spec    json.RawMessage // of the current revision, without secrets: a MachineSpec, VolumeSpec, ...
	Secrets []byte          // sealed ManagedSecrets; nil = none
	Digest  []byte          // reports whether the secrets differ from others of the resource; empty = none
	Members []Member        // by ordinal

	NextAt time.Time // when reconcile-managed looks at it; zero = when a change is reported, or all is scanned
	// LoadedNextAt is the NextAt that was read: a later one, of something that happened meanwhile, is not overwritten.
	LoadedNextAt time.Time
	// Made has the revisions, by number, that are not the current one and that members were made or updated to, or that
	// were real last. Only reconcile-managed reads them.
	Made map[int]Revision
}

// SealedFor is the purpose that the secrets of a resource are sealed for.
func (m Managed) SealedFor() string { return "managed/" + m.ProjectID + "/" + m.ID.String() }

// Revision is what was declared once. It never changes.
type Revision struct {
	Number     int
	Flavor     string
	Spec       json.RawMessage
	Secrets    []byte
	Digest     []byte
	Labels     map[string]string
	Schedule   Schedule
	RolledBack int // the revision that this one repeats; 0 = none
	UserID     string
	UserName   string
	CreatedAt  time.Time
}

// MemberStatus is the status of a member.
type MemberStatus string

// The statuses of a member.
const (
	MemberCreating MemberStatus = "creating"
	MemberReady    MemberStatus = "ready"
	MemberUpdating MemberStatus = "updating"
	MemberError    MemberStatus = "error"
	MemberDeleting MemberStatus = "deleting"
)

// Member is an object of OpenStack that makes a resource, or one of the servers of a deployment.
type Member struct {
	ID        uuid.UUID // the mark of the object; the instance id of a server
	ManagedID uuid.UUID
	Ordinal   int
	Revision  int
	ObjectID  string // "" = not made yet
	Status    MemberStatus
	Reason    string
	Node      string
	Attempts  int
	RetryAt   time.Time
	MissedAt  time.Time // since when OpenStack does not find the object; zero = it does
	CreatedAt time.Time
	UpdatedAt time.Time

	WasReady bool // it was as declared at some time; until then it is new
	// MayHaveData reports whether its object worked at some time, as declared or not: another one would lack what it
	// has.
	MayHaveData bool
	// IsRequested reports whether a call which makes its object may have been sent, for what its own revision declares.
	IsRequested bool
	// CreateCalls is how many calls may have made an object: only of two may one have been made twice.
	CreateCalls int
	IsWaiting   bool // Reason is what the next step waits for, and no failure

	Written string // a digest of the differences for which OpenStack accepted the last change; "" = none
	Writes  int    // how often in a row it accepted a change for them

	Declarations int // of its resource, when it was loaded: the attempts belong to that declaration

	// IsRebuilt reports whether a rebuild may have been sent since its server was as declared: what it was made of is
	// not known, and its image is compared by its id.
	IsRebuilt bool

	UserData string // the UserDataDigest of what its server was made with; "" = not known
}

// NameOf returns the name of a member's object: that of the resource, with an ordinal for each server of a deployment.
func (m Managed) NameOf(x Member) string {
	if !m.Kind.IsDeployment() {
		return m.Name
	}
	return m.Name + "-" + strconv.Itoa(x.Ordinal)
}

// Missed records that OpenStack did not find the member's object. It reports whether that is known for long enough to
// count as a deletion.
func (m *Member) Missed(now time.Time) (isDeleted bool) {
	if m.MissedAt.IsZero() {
		m.MissedAt = now
	}
	return now.Sub(m.MissedAt) >= MissedFor
}

// UnexpectedObject is an object of OpenStack that carries cloudfn's mark and belongs to no member. It is never changed.
type UnexpectedObject struct {
	ObjectID string `json:"object_id"`
	Name     string `json:"name"`
	Provider string `json:"provider"`
	Region   string `json:"region"`
}

// ManagedProject is a project with managed resources: a unit of due work.
type ManagedProject struct {
	ProjectID string
	DomainID  string
	DueAt     time.Time
	ScanAt    time.Time // when all of its resources are looked at, due or not
	Attempts  int
	Problem   *Problem

	NextScanAt time.Time // after a scan; zero = there was none
}

// ResourceFlavor is a named template of managed resources.
type ResourceFlavor struct {
	ID          uuid.UUID
	ProjectID   string
	DomainID    string
	UserID      string
	Name        string
	Kind        Kind
	Provider    string
	Description string
	Spec        json.RawMessage
	Version     int64
	CreatedAt   time.Time
	UpdatedAt   time.Time
}

// Provider serves kinds of managed resources.
type Provider struct {
	Name        string
	Description string
	Kinds       []Kind
	Driver      string // the source's word for what is behind it
	Service     string // its type in the catalog; "" = Postgres alone
}

// ProviderOf returns the provider of a kind. ok is false for an unknown kind.
func ProviderOf(kind Kind) (p Provider, ok bool) {
	all := Providers()
	n := slices.IndexFunc(all, func(p Provider) bool { return slices.Contains(p.Kinds, kind) })
	if n < 0 {
		return p, false
	}
	return all[n], true
}

// Providers lists the providers.
func Providers() []Provider {
	return []Provider{
		{"nova", "Servers", ServerKinds(), "Libvirt", "compute"},
		{"cinder", "Volumes", []Kind{KindVolume}, "Cinder", "volumev3"},
		{"glance", "Images", []Kind{KindImage}, "Glance", "image"},
		{"octavia", "Load balancers", []Kind{KindBalancer}, "Octavia", "load-balancer"},
		{"barbican", "Secrets", []Kind{KindSecret}, "Barbican", "key-manager"},
		{"postgres", "Files for servers", []Kind{KindConfigmap}, "Etcd", ""},
		{"none", "What OpenStack has no home for", UnsupportedKinds(), "", ""},
	}
}

// The specs of the kinds. Their tags are their schemas in the API, which adds the fields that are sealed.

// MachineSpec declares a server. A flavor, image or network is an id or a unique name, which is resolved when the
// server is created.
type MachineSpec struct {
	Flavor         string            `json:"flavor" minLength:"1" maxLength:"255" doc:"Id or unique name, of Nova's."`
	Image          string            `json:"image" minLength:"1" maxLength:"255" doc:"Id or unique name."`
	Networks       []string          `json:"networks" minItems:"1" maxItems:"20" doc:"Ids or unique names."`
	KeyName        string            `json:"key_name,omitempty" maxLength:"255"`
	SecurityGroups []string          `json:"security_groups,omitempty" maxItems:"50"`
	Metadata       map[string]string `json:"metadata,omitempty"`
	Tags           []string          `json:"tags,omitempty" maxItems:"40" uniqueItems:"true"`
	Volumes        []string          `json:"volumes,omitempty" maxItems:"20" doc:"Managed volumes, to attach."`
	BootVolume     *BootVolumeSpec   `json:"boot_volume,omitempty"`
	// Configmaps are written as files at the first boot.
	Configmaps []string `json:"configmaps,omitempty" maxItems:"20" doc:"Managed files."`
	// Update says how a change of flavor or image is made: in_place (resize, rebuild; the default) or replace.
	Update string `json:"update,omitempty" enum:"in_place,replace"`
}

// BootVolumeSpec declares the volume that a server boots from, instead of a disk of its flavor's size. Nova makes it of
// the server's image, and deletes it with the server.
type BootVolumeSpec struct {
	SizeGB int    `json:"size_gb" minimum:"1" maximum:"1000000"`
	Type   string `json:"type,omitempty" maxLength:"255" doc:"Of Cinder's volume types."`
}

// The ways to update a server.
const (
	UpdateInPlace = "in_place"
	UpdateReplace = "replace"
)

// DeploymentSpec declares a number of servers of one spec.
type DeploymentSpec struct {
	MachineSpec

	Count int `json:"count" minimum:"0" maximum:"100" doc:"How many servers."`
	// MaxUnavailable is how many may be missing while they are updated; nil = 1.
	MaxUnavailable *int `json:"max_unavailable,omitempty" minimum:"0" maximum:"100"`
}

// VolumeSpec declares a volume. It grows in place.
type VolumeSpec struct {
	SizeGB      int               `json:"size_gb" minimum:"1" maximum:"1000000" doc:"It may grow, and never shrinks."`
	Type        string            `json:"type,omitempty" maxLength:"255" doc:"Of Cinder's volume types."`
	Image       string            `json:"image,omitempty" maxLength:"255" doc:"What it is filled with when it is made."`
	Zone        string            `json:"zone,omitempty" maxLength:"255" doc:"The availability zone."`
	Description string            `json:"description,omitempty" maxLength:"255"`
	Metadata    map[string]string `json:"metadata,omitempty"`
}

// ZoneIn is the availability zone of a volume: its own, or else that of its schedule; "" = any.
func (s VolumeSpec) ZoneIn(rule Schedule) string { return cmp.Or(s.Zone, rule.Zone) }

// ImageSpec declares an image. A change of its source or formats replaces it.
type ImageSpec struct {
	DiskFormat string `json:"disk_format" enum:"raw,qcow2,vmdk,vdi,vhd,vhdx,iso,ami,ari,aki,ploop"`
	// ContainerFormat is bare if it is empty.
	ContainerFormat string            `json:"container_format,omitempty" enum:"bare,ovf,ova,docker,ami,ari,aki"`
	MinDiskGB       int               `json:"min_disk_gb,omitempty" minimum:"0" maximum:"1000000"`
	MinRAMMB        int               `json:"min_ram_mb,omitempty" minimum:"0" maximum:"100000000"`
	Tags            []string          `json:"tags,omitempty" maxItems:"50" uniqueItems:"true"`
	Properties      map[string]string `json:"properties,omitempty"`
	SourceURL       string            `json:"source_url,omitempty" maxLength:"2048" doc:"Glance downloads it."`
	Content         string            `json:"content,omitempty" maxLength:"131072" doc:"Base64; small images only."`
}

// BalancerSpec declares a load balancer with its listeners.
type BalancerSpec struct {
	Network   string         `json:"network" minLength:"1" maxLength:"255" doc:"Of its address: id or unique name."`
	Address   string         `json:"address,omitempty" maxLength:"64" doc:"A free one of the network."`
	Listeners []ListenerSpec `json:"listeners" minItems:"1" maxItems:"20"`
}

// ListenerSpec declares a port of a load balancer, and where its requests go.
type ListenerSpec struct {
	Protocol string `json:"protocol" enum:"TCP,UDP,HTTP"`
	Port     int    `json:"port" minimum:"1" maximum:"65535"`
	// Algorithm is ROUND_ROBIN if it is empty.
	Algorithm  string   `json:"algorithm,omitempty" enum:"ROUND_ROBIN,LEAST_CONNECTIONS,SOURCE_IP"`
	MemberPort int      `json:"member_port" minimum:"1" maximum:"65535" doc:"Of the servers."`
	Deployment string   `json:"deployment,omitempty" maxLength:"63" doc:"A managed one: all of its servers."`
	Pods       string   `json:"pods,omitempty" maxLength:"63" doc:"A PodDeployment: all of its servers."`
	Machines   []string `json:"machines,omitempty" maxItems:"50" uniqueItems:"true" doc:"Managed servers."`
	Addresses  []string `json:"addresses,omitempty" maxItems:"50" uniqueItems:"true" doc:"Others, by IP address."`
}

// SecretSpec declares a secret; its payload is among the ManagedSecrets.
type SecretSpec struct {
	ContentType string `json:"content_type,omitempty" maxLength:"255" doc:"text/plain by default."`
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

// NewManaged is a declaration to store.
type NewManaged struct {
	// Managed has what is declared: project, user, kind, name, provider, flavor, spec, labels, schedule, repair,
	// max_revisions, the actor, the sealed secrets and their digest. The id is the stored one's, or for a new one.
	Managed
	// Before is the version of the stored resource that the request was made from; 0 = nothing was stored.
	Before int64
	// KeepSecrets reports whether the secrets of the current revision stay.
	KeepSecrets bool
	// Repeats is the revision that it takes spec, flavor, labels, schedule and secrets from; 0 = none.
	Repeats int
	// PerProject is how many resources the project may have with this one, if it is new; 0 = unlimited.
	PerProject int
	// Delegation is how reconcile-managed acts in the user's name.
	Delegation ManagedDelegation
}

// ManagedDelegation is what a user has delegated for managed resources: a stored connection, or a new one.
type ManagedDelegation struct {
	ConnectionID uuid.UUID   // stored; zero with New
	New          *Connection // nil = ConnectionID
	// Kinds are those that New suffices for. It also replaces what the user has delegated for them with fewer roles.
	Kinds []Kind
	// Until is when a stored connection has to end at the earliest, to be used instead of New.
	Until time.Time
}

// ManagedQuery selects resources of a project.
type ManagedQuery struct {
	Kind     Kind                // "" = all
	Labels   map[string]string   // that it has
	Without  []map[string]string // that it has not
	Name     string              // a part of its name, in any case
	Statuses []ManagedStatus     // none = all
	Limit    int
	Marker   uuid.UUID // the last one before the page
}

// FlavorQuery selects resource flavors of a project.
type FlavorQuery struct {
	Kind   Kind // "" = all
	Limit  int
	Marker string // the last name before the page
}
