package launch

import (
	"context"
	"net/http"
	"reflect"
	"strconv"
	"time"

	"github.com/danielgtaylor/huma/v2"
	"github.com/google/uuid"

	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/auth"
	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/httpx"
	"github.com/cloudfn/cloudfn/shared/lookup"
)

// routes declares what the function serves.
func routes(api huma.API, s service) {
	h := handler{s}
	tags, scoped := []string{"launch"}, httpx.Before(auth.CanRead)
	describe(api)
	httpx.Register(api, huma.Operation{
		OperationID: "listOrders", Method: http.MethodGet, Path: "/v1/launch", Tags: tags, Middlewares: scoped,
		Summary:   "List the project's orders",
		Responses: httpx.Answers(map[int]string{200: "A page of orders.", 404: ""}),
	}, h.list)
	httpx.Serve[launchInput, httpx.Value[Order]](api, httpx.Idempotent(huma.Operation{
		OperationID: "launch", Method: http.MethodPost, Path: "/v1/launch", DefaultStatus: http.StatusAccepted,
		Tags: tags, Middlewares: scoped,
		Summary: "Order one or more servers",
		Responses: httpx.Answers(map[int]string{
			200: "The order that this id already had, or with `dry_run=true` the report.",
			202: "The order is stored. Its servers were requested from Nova, or run-connections will do that.",
			404: "", 409: "", 422: "", 501: "",
		}),
	}), h.launch)
	httpx.Register(api, huma.Operation{
		OperationID: "getOrder", Method: http.MethodGet, Path: "/v1/launch/{id}", Tags: tags, Middlewares: scoped,
		Summary:   "Show an order and its instances",
		Responses: httpx.Answers(map[int]string{200: "The order.", 404: "", 501: ""}),
	}, h.get)
}

type handler struct{ svc service }

type launchInput struct {
	DryRun bool `query:"dry_run" default:"false" doc:"Only report what would make the launch fail."`
	Body   launchRequest

	order createOrder // of the body
}

// Resolve implements huma.Resolver.
func (in *launchInput) Resolve(huma.Context) (errs []error) {
	in.order, errs = in.Body.order()
	return errs
}

func (h handler) launch(ctx context.Context, in *launchInput) (httpx.Response, error) {
	who, token := auth.Caller(ctx)
	if id, isKeyed, _ := domain.AttemptFrom(ctx); isKeyed && in.Body.ID == "" {
		in.Body.ID = givenID(id.String())
		in.order, _ = in.Body.order() // which was checked
	}
	if !in.DryRun { // which reports a token that only reads, and stores nothing
		if err := auth.CanWrite(ctx); err != nil {
			return httpx.Response{}, err
		}
	}
	a, err := h.svc.access(ctx, who, token, in.order.connectionID)
	if err != nil {
		return httpx.Response{}, err
	}
	if in.DryRun {
		report, err := h.svc.DryRun(ctx, a, in.order)
		if err != nil {
			return httpx.Response{}, err
		}
		return httpx.JSON(http.StatusOK, report)
	}
	done, err := h.svc.Launch(ctx, a, in.order)
	if err != nil {
		return httpx.Response{}, err
	}
	return done.response()
}

func (l launched) response() (httpx.Response, error) {
	shown := show(l.order, l.related)
	shown.PrivateKey = l.privateKey.Reveal()
	if shown.Callback != nil {
		shown.Callback.Secret = l.callbackSecret.Reveal()
	}
	status := http.StatusOK
	if l.isFresh {
		status = http.StatusAccepted
	}
	var after string
	if l.retryAfter > 0 {
		after = strconv.Itoa(int(l.retryAfter/time.Second) + 1)
	}
	return httpx.JSON(status, shown, "Location", location(l.order), "Retry-After", after)
}

// location is the URL of the order in the Location header.
func location(o domain.Order) string {
	path := "/v1/launch/" + o.ID.String()
	if o.ConnectionID == uuid.Nil {
		return path
	}
	return path + "?connection_id=" + o.ConnectionID.String()
}

type listInput struct {
	Status       []domain.OrderStatus `query:"status" minItems:"1"`
	ConnectionID httpx.ID             `query:"connection_id" doc:"The connection that the orders were placed through."`
	httpx.PageRequest
	Marker httpx.ID `query:"marker" doc:"The id of the last order of the page before."`
}

func (h handler) list(ctx context.Context, in *listInput) (*httpx.Value[OrderPage], error) {
	who, token := auth.Caller(ctx)
	a, err := h.svc.access(ctx, who, token, in.ConnectionID.UUID)
	if err != nil {
		return nil, err
	}
	q := domain.OrderQuery{Filter: a.Filter(), Marker: in.Marker.UUID}
	for _, status := range in.Status {
		q.Statuses = append(q.Statuses, string(status))
	}
	page, err := httpx.ReadPage(ctx, in.Limit, func(limit int) ([]domain.Order, error) {
		q.Limit = limit
		return h.svc.List(ctx, q)
	}, func(o domain.Order) string { return o.ID.String() })
	if err != nil {
		return nil, err
	}
	with, err := h.svc.relatedTo(ctx, who, page.Items...)
	shown := httpx.Each(page.Items, func(o domain.Order) Order { return show(o, with) })
	return &httpx.Value[OrderPage]{Body: OrderPage{shown, page.Next}}, err
}

type getInput struct {
	ID           httpx.ID `path:"id" example:"0f8fad5b-d9cb-469f-a165-70867728950e" doc:"The order's id."`
	ConnectionID httpx.ID `query:"connection_id" doc:"The connection that the order was placed through."`
}

func (h handler) get(ctx context.Context, in *getInput) (*httpx.Value[Order], error) {
	who, token := auth.Caller(ctx)
	a, err := h.svc.access(ctx, who, token, in.ConnectionID.UUID)
	if err != nil {
		return nil, err
	}
	order, with, err := h.svc.Get(ctx, a, in.ID.UUID)
	return &httpx.Value[Order]{Body: show(order, with)}, err
}

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
	BootVolume     *bootVolume     `json:"boot_volume,omitempty" nullable:"false"`
	Volumes        []dataVolume    `json:"volumes,omitempty" maxItems:"25" nullable:"false"`

	FloatingIP *floatingIP `json:"floating_ip,omitempty" nullable:"false"`
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
	BootVolume     *bootVolume     `json:"boot_volume,omitempty"`
	Volumes        []dataVolume    `json:"volumes,omitzero" required:"false" nullable:"true" maxItems:"25"`

	FloatingIP *floatingIP `json:"floating_ip,omitempty" nullable:"false"`
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

	FloatingIP string `json:"floating_ip,omitempty" minLength:"1" doc:"The address that it was given."`
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
				LeaseID: orNil(i.LeaseID), Error: (*InstanceError)(i.Failure()),
				FloatingIP: domain.Deref(i.FloatingIP).Address,
			})
		}
	}
	if c, ok := with.callbacks[domain.Deref(o.Spec.CallbackID)]; ok {
		out.Callback = &OrderCallback{ID: c.ID, Status: c.Status}
	}
	if l, ok := with.leases[domain.Deref(o.Spec.LeaseID)]; ok {
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

// launchReport answers a dry run: everything that would make the launch fail.
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

// OrderLeaseRequest is the lease of an order's instances.
type OrderLeaseRequest struct {
	Name string `json:"name,omitempty" minLength:"1" maxLength:"255" doc:"The order's name by default."`
	httpx.LeaseTerms

	fromHints bool // it was given as scheduler hints
}

// canonical is equal for two requests that mean the same.
func (in *OrderLeaseRequest) canonical() *OrderLeaseRequest {
	if in == nil {
		return nil
	}
	return &OrderLeaseRequest{Name: in.Name, LeaseTerms: in.Canonical()}
}

// describe says what the types' tags cannot.
func describe(api huma.API) {
	httpx.DescribeAs[domain.Secret, httpx.CallbackSecret](api)
	httpx.Enum[domain.OrderStatus](api, "OrderStatus", domain.OrderStatuses()...)
	api.OpenAPI().Components.Schemas.Schema(reflect.TypeFor[launchReport](), true, "")
}

// givenID is a UUID that the caller has chosen.
type givenID string

// Schema implements huma.SchemaProvider.
func (givenID) Schema(r huma.Registry) *huma.Schema {
	return httpx.SharedSchema(r, "GivenID", huma.Schema{
		Type: huma.TypeString, Format: "uuid", PatternDescription: "a UUID",
		Pattern: "^[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{12}$",
	})
}

// Resolve implements huma.ResolverWithPath.
func (id givenID) Resolve(_ huma.Context, at *huma.PathBuffer) []error {
	if parsed, err := uuid.Parse(string(id)); err == nil {
		return httpx.NotZero(parsed, at.String())
	}
	return nil
}

// orNew parses the id. One that is absent, or that its schema has rejected, is replaced by a new one.
func (id givenID) orNew() uuid.UUID {
	if parsed, err := uuid.Parse(string(id)); err == nil {
		return parsed
	}
	return uuid.Must(uuid.NewV7())
}

// reference is an id or a name.
type reference string

// Schema implements huma.SchemaProvider.
func (reference) Schema(huma.Registry) *huma.Schema { return textSchema(domain.MaxNameLength) }

// at is the reference as the service looks it up.
func (r reference) at(field string) lookup.Ref { return lookup.Ref{Field: field, Value: string(r)} }

// orderName is the name of one server, or the first part of the names of several.
type orderName string

// Schema implements huma.SchemaProvider.
func (orderName) Schema(huma.Registry) *huma.Schema { return textSchema(domain.MaxOrderName) }

func textSchema(maxLength int) *huma.Schema {
	minLength := 1
	return &huma.Schema{
		Type: huma.TypeString, MinLength: &minLength, MaxLength: &maxLength,
		Pattern: `^[^\x00-\x1f\x7f-\x9f]*$`, PatternDescription: "text without control characters",
	}
}

// metadata are the server's; Nova has rules for the keys, see checkServer.
type metadata map[string]string

// Schema implements huma.SchemaProvider.
func (metadata) Schema(huma.Registry) *huma.Schema {
	maxLength, maxProperties := domain.MaxNameLength, domain.MaxMetadata
	value := &huma.Schema{Type: huma.TypeString, MaxLength: &maxLength}
	value.PrecomputeMessages()
	return &huma.Schema{Type: huma.TypeObject, MaxProperties: &maxProperties, AdditionalProperties: value}
}
