package domain

import (
	"encoding/json"
	"fmt"
	"slices"
	"time"
	"unicode/utf8"

	"github.com/google/uuid"
)

// OrderStatus is the status of an order.
type OrderStatus string

// The statuses of an order. Only running is not final.
const (
	OrderRunning    OrderStatus = "running"
	OrderDone       OrderStatus = "done"
	OrderPartial    OrderStatus = "partial" // some instances failed
	OrderFailed     OrderStatus = "failed"  // all instances failed
	OrderRolledBack OrderStatus = "rolled_back"
)

// Order is one launch request of 1..N instances.
type Order struct {
	ID         uuid.UUID
	ProjectID  string
	DomainID   string
	UserID     string
	BodySHA256 []byte // of the canonical request; tells a repeat from another order with the same id
	Spec       OrderSpec
	Status     OrderStatus
	Problem    *Problem // why it failed, where no instance shows it
	CreatedAt  time.Time
	Instances  []Instance
	Callback   *Callback // created with the order, for all of its events
	Lease      *NewLease // created with the order, for its instances
	Actor      *Actor    // who places it; only written

	ConnectionID uuid.UUID // through which run-connections carries it out; zero = its caller does
	Payload      []byte    // of an order through a connection: a sealed DelegatedOrder

	Calls  []CreateCall // all create calls of its instances
	ReadAt time.Time    // when it was read, by the database's clock
}

// OrderQuery selects a page of orders, the newest first.
type OrderQuery struct {
	Filter
	Statuses []string // empty = all
	Limit    int
	Marker   uuid.UUID // the last id of the page before; zero = the first page
}

// RunningOrder names a running order.
type RunningOrder struct {
	ProjectID string
	ID        uuid.UUID
	UpdatedAt time.Time
}

// ListedOrder is an order of a list, as it is stored.
type ListedOrder struct {
	Order
	Busy bool // a replica is working on it
}

// OrderStatuses lists all statuses of an order.
func OrderStatuses() []string {
	return texts(OrderRunning, OrderDone, OrderPartial, OrderFailed, OrderRolledBack)
}

// OrderSpec is the part of an order's request that concerns all servers. It is stored with the order, so it has no
// secrets.
type OrderSpec struct {
	OnFailure    OnFailure `json:"on_failure,omitempty"`
	Stopped      bool      `json:"stopped,omitempty"`       // stop each server when it is ACTIVE
	GeneratedKey string    `json:"generated_key,omitempty"` // name of the order's own key pair
	// Reuse takes idle instances of the connection before it creates new ones.
	Reuse bool `json:"reuse,omitempty"`
	// SetsVolumes says that volumes of its servers need StepVolumes.
	SetsVolumes bool `json:"sets_volumes,omitempty"`

	// SetsGroups reports whether networks of its servers have security groups of their own, which StepGroups sets.
	SetsGroups bool `json:"sets_groups,omitempty"`

	// FloatingIPs says that servers get floating IPs by StepFloatingIP.
	FloatingIPs bool `json:"floating_ips,omitempty"`

	// IsManaged reports whether its server is a member of a managed resource, and carries ManagedTag.
	IsManaged bool `json:"managed,omitempty"`

	ReservationID *uuid.UUID `json:"reservation_id,omitempty"` // whose hosts the servers are for
	CallbackID    *uuid.UUID `json:"callback_id,omitempty"`    // of the order's own callback
	LeaseID       *uuid.UUID `json:"lease_id,omitempty"`       // of the order's own lease
}

// NeedsReconcile reports whether the order needs more steps than creating its servers.
func (s OrderSpec) NeedsReconcile() bool {
	return s.OnFailure == Rollback || s.Stopped || s.Reuse || s.SetsVolumes || s.SetsGroups ||
		s.FloatingIPs
}

// OnFailure says what happens to an order's servers when one of them fails.
type OnFailure string

// The values of OnFailure; empty is Keep.
const (
	Keep     OnFailure = "keep"
	Rollback OnFailure = "rollback" // all or nothing: delete every server
)

// OrderTransitions are the statuses that may follow each status of an order.
var OrderTransitions = map[OrderStatus][]OrderStatus{
	OrderRunning:    {OrderDone, OrderPartial, OrderFailed, OrderRolledBack},
	OrderDone:       {},
	OrderPartial:    {},
	OrderFailed:     {},
	OrderRolledBack: {},
}

// Evaluate returns the status that follows from the instances. A final status never changes.
func (o Order) Evaluate() OrderStatus {
	if o.Status != OrderRunning && o.Status != "" {
		return o.Status
	}
	if o.RollingBack() {
		return o.rolledBack()
	}
	failed := 0
	for _, i := range o.Instances {
		if !o.settled(i) {
			return OrderRunning
		}
		if i.State == InstanceError || i.lacksPart() {
			failed++
		}
	}
	switch failed {
	case 0:
		return OrderDone
	case len(o.Instances):
		return OrderFailed
	}
	return OrderPartial
}

// rolledBack returns the status of an order that is being rolled back. It fails if Nova could not delete the remaining
// servers.
func (o Order) rolledBack() OrderStatus {
	left := o.Left()
	switch {
	case len(left) == 0:
		return OrderRolledBack
	case slices.ContainsFunc(left, func(i Instance) bool { return !o.undeletable(i) }):
		return OrderRunning
	}
	return OrderFailed
}

// Abandoned returns the status of an order whose connection has ended, and whose instances are all decided. It follows
// from the instances as they are, without the steps that are left: to stop, start or roll back.
func (o Order) Abandoned() OrderStatus {
	isReplaced := make([]bool, len(o.Instances)) // idle servers that are deleted
	for n, i := range o.Instances {
		isReplaced[n] = o.IsReplaced(i)
	}
	o.Spec = OrderSpec{}
	o.Instances = slices.Clone(o.Instances)
	for n := range o.Instances {
		switch i := &o.Instances[n]; {
		case isReplaced[n]:
			i.State = InstanceError
		case !i.Settled():
			i.State = InstanceUnknown
		}
	}
	return o.Evaluate()
}

// settled reports whether the instance is as ordered, or cannot become so.
func (o Order) settled(i Instance) bool {
	if i.isDisconnected() {
		return true
	}
	if o.IsReplaced(i) || o.awaitsGroups(i) || o.awaitsVolumes(i) || o.awaitsFloatingIP(i) {
		return false
	}
	if o.Spec.Stopped {
		switch i.State {
		case InstanceActive, InstanceUpdating, InstanceResizing, InstanceRebooting, InstanceUnknown:
			return false
		}
	}
	if o.starts(i) || o.Spec.Reuse && i.State == InstanceUpdating { // starting
		return false
	}
	return i.Settled()
}

// starts reports whether a reused instance is still to be started.
func (o Order) starts(i Instance) bool {
	return o.Spec.Reuse && !o.Spec.Stopped && i.State == InstanceStopped
}

// IsReused reports whether the order reuses an idle instance.
func (o Order) IsReused(i Instance) bool { return o.Spec.Reuse && i.CreatedAt.Before(o.CreatedAt) }

// IsReplaced reports whether the order needs another instance for a reused one that is deleted.
func (o Order) IsReplaced(i Instance) bool {
	return o.Status == OrderRunning && o.IsReused(i) && !i.isDisconnected() &&
		(i.State == InstanceDeleting || i.State == InstanceDeleted)
}

// HasReplaced reports whether one of the order's instances must be replaced.
func (o Order) HasReplaced() bool { return slices.ContainsFunc(o.Instances, o.IsReplaced) }

// isDisconnected reports whether the instance was disconnected. Orders ignore such instances.
func (i Instance) isDisconnected() bool { return !i.DisconnectedAt.IsZero() }

// Step is the next step for one instance of an order.
type Step string

// The steps of an order.
const (
	StepNone   Step = ""       // nothing to do now
	StepCreate Step = "create" // find its server by tag, or create it
	StepStop   Step = "stop"   // stop the server
	StepStart  Step = "start"  // start the reused server
	StepDelete Step = "delete" // delete the server
	// StepGroups gives the server's ports the security groups of their networks.
	StepGroups Step = "groups"
	// StepVolumes sets the names of the server's volumes, and which of them are deleted with it.
	StepVolumes Step = "volumes"
	// StepFloatingIP gives the server its floating IP.
	StepFloatingIP Step = "floating_ip"
	// StepSkip finds its server by tag, and records NotCreated if it has none: it is not created any more.
	StepSkip Step = "skip"
)

// NotCreated is the Problem of an instance that was not created, because its order is rolled back.
func NotCreated() *Problem {
	return &Problem{
		Code:   "rolled_back",
		Detail: "not created: another instance of the order failed, and the order is all or nothing",
	}
}

// Next returns the next step of each instance. All steps are idempotent. If there are no steps and Evaluate still
// returns running, Nova is busy. A final order has no steps.
func (o Order) Next() []Step {
	steps := make([]Step, len(o.Instances))
	rollingBack := o.RollingBack()
	for n, i := range o.Instances {
		switch {
		case i.isDisconnected(), o.Status != OrderRunning:
		case rollingBack && o.awaits(i, rollbackGrace):
		case rollingBack:
			steps[n] = o.undo(i)
		case !i.Decided():
			steps[n] = StepCreate
		case o.awaitsGroups(i): // first, so that no address leads to a port without them
			steps[n] = StepGroups
		case o.awaitsVolumes(i):
			if o.maySetVolumes(i) {
				steps[n] = StepVolumes
			}
		case o.awaitsFloatingIP(i):
			if o.mayGiveFloatingIP(i) {
				steps[n] = StepFloatingIP
			}
		case o.Spec.Stopped && i.State == InstanceActive:
			steps[n] = StepStop
		case o.starts(i):
			steps[n] = StepStart
		}
	}
	return steps
}

// IsDelegated reports whether run-connections carries out the order.
func (o Order) IsDelegated() bool { return o.ConnectionID != uuid.Nil }

// IsRemote reports whether a server of the order is in another cloud.
func (o Order) IsRemote() bool {
	return slices.ContainsFunc(o.Instances, func(i Instance) bool { return i.Remote })
}

// HasServers reports whether Nova has accepted any instance of the order.
func (o Order) HasServers() bool {
	return slices.ContainsFunc(o.Instances, func(i Instance) bool { return i.ServerID != "" })
}

// Undecided counts the instances that Nova has neither accepted nor rejected.
func (o Order) Undecided() int {
	n := 0
	for _, i := range o.Instances {
		if !i.Decided() {
			n++
		}
	}
	return n
}

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
	// Attachments replace NetworkIDs if one of them has an address or security groups, or is a port.
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
	FloatingIP     *ServerFloatingIP `json:"floating_ip,omitempty"`     // that it gets once it runs
}

// Attachment is one connection of a server: to a network, with an address if it is given, or by an existing port.
// No two of a server have the same network and security groups of their own, unless they have addresses.
type Attachment struct {
	NetworkID string `json:"network_id,omitempty"`
	FixedIP   string `json:"fixed_ip,omitempty"`
	PortID    string `json:"port_id,omitempty"`

	SecurityGroups []string `json:"security_groups,omitempty"` // ids that StepGroups sets; nil = the server's
}

// Sized sets the flavor and its sizes.
func (s *LaunchSpec) Sized(f Flavor) {
	s.FlavorID, s.FlavorName, s.VCPUs, s.RAMMB, s.DiskGB = f.ID, f.Name, f.VCPUs, f.RAMMB, f.DiskGB
}

// Resized is Sized for a server that had another flavor, perhaps a reservation's.
func (s *LaunchSpec) Resized(f Flavor) {
	s.Sized(f)
	s.BaseFlavorID, s.BaseFlavorName = "", ""
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

// DelegatedOrder is the part of an order that only run-connections may read. It is stored sealed: it holds user_data.
type DelegatedOrder struct {
	Servers   []DelegatedServer `json:"servers"`              // one per instance, in order
	PublicKey string            `json:"public_key,omitempty"` // of the generated key pair
}

// DelegatedServer is one server of a DelegatedOrder.
type DelegatedServer struct {
	Image    string   `json:"image"`    // id or unique name
	Networks []string `json:"networks"` // ids or unique names; empty = the project's only network
	UserData UserData `json:"user_data,omitempty"`
	// Name and Spec are those of an order with reuse: of the server that replaces an idle one that cannot be reused.
	Name string      `json:"name,omitempty"`
	Spec *LaunchSpec `json:"spec,omitempty"`
}

// UserData is what a server gets for cloud-init: any bytes. In JSON it is a string, or in base64 if it is not UTF-8.
type UserData string

// MarshalJSON implements json.Marshaler.
func (d UserData) MarshalJSON() ([]byte, error) {
	if utf8.ValidString(string(d)) {
		return json.Marshal(string(d))
	}
	return json.Marshal(encodedUserData{[]byte(d)})
}

// UnmarshalJSON implements json.Unmarshaler.
func (d *UserData) UnmarshalJSON(text []byte) error {
	if json.Unmarshal(text, (*string)(d)) == nil {
		return nil
	}
	var encoded encodedUserData
	err := json.Unmarshal(text, &encoded)
	*d = UserData(encoded.Base64)
	return err
}

type encodedUserData struct {
	Base64 []byte `json:"base64"`
}

// SealedFor is the context that the order's DelegatedOrder is sealed with.
func (o Order) SealedFor() string { return "order/" + o.ProjectID + "/" + o.ID.String() }

// Filter selects orders and instances: all of a project, or those of one connection.
type Filter struct {
	ProjectID    string
	ConnectionID uuid.UUID // zero = all of the project
}
