package launch

import (
	"time"

	"github.com/google/uuid"

	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/httpx"
)

// launchRequest is the body of POST /v1/launch. Its fields of a server apply to each server without such a field of its
// own. Names, order and JSON of the fields are part of its hash.
type launchRequest struct {
	ID givenID `json:"id" required:"false"`
	// Nil and 1 differ if there are instances, so the default is in http.yaml.
	Count       *int             `json:"count" required:"false" nullable:"false" minimum:"1" maximum:"100"`
	Instances   []launchInstance `json:"instances" required:"false" minItems:"1" maxItems:"100"`
	OnFailure   domain.OnFailure `json:"on_failure" required:"false" enum:"keep,rollback" default:"keep"`
	Start       *bool            `json:"start" required:"false" nullable:"false" default:"true"`
	GenerateKey bool             `json:"generate_key" required:"false" default:"false"`
	Callback    *launchCallback  `json:"callback" required:"false"`

	// Omitted from the hash when empty: orders that were stored before these fields existed keep their hashes.
	ConnectionID  givenID `json:"connection_id,omitempty"`
	Reuse         bool    `json:"reuse,omitempty" default:"false"`
	ReservationID givenID `json:"reservation_id,omitempty"`

	Lease *OrderLeaseRequest `json:"lease,omitempty"`

	Name             orderName       `json:"name" required:"false"`
	Flavor           reference       `json:"flavor" required:"false" doc:"Id or unique name of a flavor."`
	Min              *MinSize        `json:"min" required:"false"`
	Image            reference       `json:"image" required:"false"`
	Networks         []launchNetwork `json:"networks" required:"false" maxItems:"16"`
	KeyName          string          `json:"key_name" required:"false" doc:"A key pair of the caller's."`
	SecurityGroups   []reference     `json:"security_groups" required:"false"`
	AvailabilityZone string          `json:"availability_zone" required:"false" doc:"An availability zone of compute."`
	UserData         userData        `json:"user_data" required:"false"`
	Metadata         metadata        `json:"metadata" required:"false"`

	UserDataBase64 *userDataBase64 `json:"user_data_base64,omitempty" nullable:"false"`
	Options
}

// launchInstance has the fields of one server. A field that is absent or null is the order's; an empty key_name,
// availability_zone, user_data, description, server_group, list or object replaces it. Either form of user_data
// replaces both of the order's.
type launchInstance struct {
	ID               givenID         `json:"id" required:"false"`
	Name             *reference      `json:"name" required:"false" nullable:"true" doc:"The server's name, as it is."`
	Flavor           *reference      `json:"flavor" required:"false" nullable:"true" doc:"Instead of the order's size."`
	Min              *MinSize        `json:"min" required:"false"`
	Image            *reference      `json:"image" required:"false" nullable:"true"`
	Networks         []launchNetwork `json:"networks" required:"false" nullable:"true" maxItems:"16"`
	KeyName          *string         `json:"key_name" required:"false"`
	SecurityGroups   []reference     `json:"security_groups" required:"false" nullable:"true"`
	AvailabilityZone *string         `json:"availability_zone" required:"false"`
	UserData         *userData       `json:"user_data" required:"false" nullable:"true"`
	Metadata         metadata        `json:"metadata" required:"false" nullable:"true"`

	UserDataBase64 *userDataBase64 `json:"user_data_base64,omitempty" nullable:"true"`
	Options
}

// MinSize is the least that a server must have.
type MinSize struct {
	_      struct{} `nullable:"true"`
	VCPUs  int      `json:"vcpus" required:"false" minimum:"0" default:"0"`
	RAMMB  int      `json:"ram_mb" required:"false" minimum:"0" default:"0"`
	DiskGB int      `json:"disk_gb" required:"false" minimum:"0" default:"0"`
}

// launchCallback is a callback that is made with an order.
type launchCallback struct {
	URL    httpx.CallbackURL `json:"url"`
	Events httpx.EventTypes  `json:"events" required:"false" doc:"Types of events. Without one, all."`
	Secret *domain.Secret    `json:"secret" required:"false"`
}

// Order is an order as the caller sees it.
type Order struct {
	ID            uuid.UUID          `json:"id"`
	ConnectionID  *uuid.UUID         `json:"connection_id,omitempty"`
	ReservationID *uuid.UUID         `json:"reservation_id,omitempty"`
	Status        domain.OrderStatus `json:"status"`
	Error         *OrderError        `json:"error,omitempty"`
	CreatedAt     time.Time          `json:"created_at"`
	PrivateKey    string             `json:"private_key,omitempty" minLength:"1"`
	Callback      *OrderCallback     `json:"callback,omitempty"`
	Lease         *OrderLease        `json:"lease,omitempty"`
	Instances     []Instance         `json:"instances" maxItems:"100"`
}

// Instance is one server of an order.
type Instance struct {
	ID       uuid.UUID            `json:"id" doc:"The instance's id. It is a tag of the server."`
	Name     string               `json:"name" minLength:"1" maxLength:"255"`
	ServerID string               `json:"server_id,omitempty"`
	State    domain.InstanceState `json:"state"`
	KeyName  string               `json:"key_name,omitempty" minLength:"1" doc:"The key pair. Absent without one."`
	LeaseID  *uuid.UUID           `json:"lease_id,omitempty" doc:"The open lease that it is in."`
	Error    *InstanceError       `json:"error,omitempty"`
}

// OrderError is why an order has not become what was requested.
type OrderError domain.Problem

// InstanceError is why an instance failed, or is not there yet.
type InstanceError domain.Problem

// OrderCallback is an order's callback. Its secret is shown by the request that made it.
type OrderCallback struct {
	ID     uuid.UUID             `json:"id"`
	Status domain.CallbackStatus `json:"status"`
	Secret string                `json:"secret,omitempty" pattern:"^whsec_[A-Za-z0-9+/]{32,86}={0,2}$"`
}

// OrderLease is the lease that was made with an order.
type OrderLease struct {
	ID     uuid.UUID          `json:"id"`
	Status domain.LeaseStatus `json:"status" enum:"pending,starting,active,ending,ended,cancelled,error"`
	Start  time.Time          `json:"start"`
	End    time.Time          `json:"end"`
}

// OrderPage is a page of orders.
type OrderPage struct {
	Orders []Order `json:"orders" maxItems:"1000"`
	Next   *string `json:"next" pattern:"^/v1/launch\\?"`
}

// related is what is shown with orders, by id.
type related struct {
	callbacks map[uuid.UUID]domain.Callback
	leases    map[uuid.UUID]domain.Lease
}

func show(o domain.Order, with related) Order {
	out := Order{
		ID: o.ID, ConnectionID: orNil(o.ConnectionID), ReservationID: o.Spec.ReservationID, Status: o.Status,
		Error: (*OrderError)(o.Problem), CreatedAt: o.CreatedAt, Instances: []Instance{},
	}
	for _, i := range o.Instances {
		if i.DisconnectedAt.IsZero() {
			out.Instances = append(out.Instances, Instance{
				ID: i.ID, Name: i.Name, ServerID: i.ServerID, State: i.State, KeyName: i.KeyName,
				LeaseID: orNil(i.LeaseID), Error: (*InstanceError)(i.Problem),
			})
		}
	}
	if c, ok := with.callbacks[value(o.Spec.CallbackID)]; ok {
		out.Callback = &OrderCallback{ID: c.ID, Status: c.Status}
	}
	if l, ok := with.leases[value(o.Spec.LeaseID)]; ok {
		out.Lease = &OrderLease{ID: l.ID, Status: l.Status, Start: l.StartsAt.UTC(), End: l.EndsAt.UTC()}
	}
	return out
}

// orNil is nil for the zero UUID.
func orNil(id uuid.UUID) *uuid.UUID {
	if id == uuid.Nil {
		return nil
	}
	return &id
}

// launchReport answers a dry run: everything that would make the launch fail, at once.
type launchReport struct {
	OK        bool              `json:"ok" doc:"Nothing was found that would make the launch fail."`
	Problems  []launchProblem   `json:"problems"`
	Unchecked []launchUnchecked `json:"unchecked"`
	AsOf      *time.Time        `json:"as_of,omitempty"`
	Resolved  []launchResolved  `json:"resolved,omitempty" minItems:"1" maxItems:"100"`
}

// launchProblem is one reason why the launch would fail.
type launchProblem struct {
	Field   string      `json:"field" minLength:"1"`
	Code    apperr.Code `json:"code" doc:"The code that the launch would fail with."`
	Detail  string      `json:"detail" minLength:"1"`
	Allowed []string    `json:"allowed,omitempty" minItems:"1" doc:"What would be right, 50 entries at most."`
}

// launchUnchecked is a field of the request that could not be checked.
type launchUnchecked struct {
	Field  string `json:"field" minLength:"1" doc:"The field of the request."`
	Detail string `json:"detail" minLength:"1" doc:"What is not known of it, and why."`
}

// launchResolved are the ids of the names that an instance was requested with.
type launchResolved struct {
	Name       string   `json:"name" minLength:"1"`
	FlavorID   string   `json:"flavor_id" minLength:"1"`
	ImageID    string   `json:"image_id,omitempty" minLength:"1"`
	NetworkIDs []string `json:"network_ids,omitempty" minItems:"1"`

	ServerGroupID string `json:"server_group_id,omitempty" minLength:"1"`
}
