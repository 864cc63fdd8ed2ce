package callbacks

import (
	"context"
	"encoding/json"
	"net/http"
	"time"

	cloudevents "github.com/cloudevents/sdk-go/v2"
	"github.com/danielgtaylor/huma/v2"
	"github.com/google/uuid"

	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/auth"
	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/httpx"
	"github.com/cloudfn/cloudfn/shared/webhook"
)

// routes declares what the function serves.
func routes(api huma.API, s service) {
	h := handler{s}
	tags := []string{"callbacks"}
	reads, writes := httpx.Before(auth.CanRead), httpx.Before(auth.CanWrite)
	describe(api)
	httpx.Register(api, huma.Operation{
		OperationID: "listCallbacks", Method: http.MethodGet, Path: "/v1/callbacks", Tags: tags, Middlewares: reads,
		Summary:   "List the project's callbacks",
		Responses: httpx.Answers(map[int]string{200: "A page of callbacks, the oldest first."}),
	}, h.list)
	httpx.Register(api, httpx.Idempotent(huma.Operation{
		OperationID: "createCallback", Method: http.MethodPost, Path: "/v1/callbacks",
		DefaultStatus: http.StatusCreated, Tags: tags, Middlewares: writes,
		Summary: "Subscribe a URL to events",
		Responses: httpx.Answers(map[int]string{
			201: "The callback is stored.",
			403: "The token is not scoped to a project, or its roles only allow reading.",
			404: "The caller may not act through such a connection.",
			409: "The project has as many callbacks as it may have.",
		}),
	}), h.create)
	httpx.Register(api, huma.Operation{
		OperationID: "getCallback", Method: http.MethodGet, Path: "/v1/callbacks/{id}", Tags: tags, Middlewares: reads,
		Summary: "Show a callback",
		Responses: httpx.Answers(map[int]string{
			200: "The callback, without its secret.", 404: noCallback,
		}),
	}, h.get)
	httpx.Register(api, huma.Operation{
		OperationID: "changeCallback", Method: http.MethodPatch, Path: "/v1/callbacks/{id}",
		Tags: tags, Middlewares: writes,
		Summary: "Change, suspend or resume a callback",
		Responses: httpx.Answers(map[int]string{
			200: "The callback as it is now.",
			404: noCallback,
			409: "A gone callback cannot be suspended, nor resumed while its project has as many as it " +
				"may have.",
		}),
	}, h.change)
	httpx.Register(api, huma.Operation{
		OperationID: "deleteCallback", Method: http.MethodDelete, Path: "/v1/callbacks/{id}",
		Tags: tags, Middlewares: writes,
		Summary:   "Delete a callback and all that waits for it",
		Responses: httpx.Answers(map[int]string{204: "It is deleted.", 404: noCallback}),
	}, h.delete)
	httpx.Register(api, httpx.Idempotent(huma.Operation{
		OperationID: "rotateCallbackSecret", Method: http.MethodPost, Path: "/v1/callbacks/{id}/secret",
		Tags: tags, Middlewares: writes,
		Summary: "Give a callback another secret",
		Responses: httpx.Answers(map[int]string{
			200: "The callback with its new secret, which is never shown again.", 404: noCallback,
			409: "Four secrets before the last one sign already. The overlap `0s` ends them immediately.",
		}),
	}), h.rotate)
	deliveryRoutes(api, h, tags)
}

func deliveryRoutes(api huma.API, h handler, tags []string) {
	reads, writes := httpx.Before(auth.CanRead), httpx.Before(auth.CanWrite)
	httpx.Register(api, httpx.Idempotent(huma.Operation{
		OperationID: "testCallback", Method: http.MethodPost, Path: "/v1/callbacks/{id}/test",
		DefaultStatus: http.StatusAccepted,
		Tags:          tags, Middlewares: writes,
		Summary: "Send a callback an event to try its receiver",
		Responses: httpx.Answers(map[int]string{
			202: "The delivery, which is due.", 404: noCallback, 409: "The callback is gone.",
		}),
	}), h.test)
	httpx.Register(api, huma.Operation{
		OperationID: "listDeliveries", Method: http.MethodGet, Path: "/v1/callbacks/{id}/deliveries",
		Tags: tags, Middlewares: reads,
		Summary: "List what was, and is to be, delivered to a callback",
		Responses: httpx.Answers(map[int]string{
			200: "A page of deliveries, the newest first.", 404: noCallback,
		}),
	}, h.deliveries)
	httpx.Register(api, huma.Operation{
		OperationID: "getDelivery", Method: http.MethodGet, Path: "/v1/callbacks/{id}/deliveries/{delivery}",
		Tags: tags, Middlewares: reads,
		Summary: "Show a delivery with its event",
		Responses: httpx.Answers(map[int]string{
			200: "The delivery and its event.", 404: "The project has no such callback or delivery.",
		}),
	}, h.delivery)
	httpx.Register(api, httpx.Idempotent(huma.Operation{
		OperationID: "redeliver", Method: http.MethodPost, Path: "/v1/callbacks/{id}/deliveries/{delivery}/redeliver",
		DefaultStatus: http.StatusAccepted, Tags: tags, Middlewares: writes,
		Summary: "Deliver an event again",
		Responses: httpx.Answers(map[int]string{
			202: "The new delivery, which is due.",
			404: "The project has no such callback or delivery.",
			409: "The delivery is still on its way, or the callback is gone.",
		}),
	}), h.redeliver)
}

// CallbackPath identifies a callback. It is exported because huma ignores unexported embedded structs.
type CallbackPath struct {
	ID httpx.ID `path:"id" example:"019b7c5e-4c30-7d55-8e1c-3a7b2d1f0b22" doc:"The callback's id."`
}

const noCallback = "The project has no callback of this id."

type handler struct{ svc service }

func project(ctx context.Context) string { return auth.CallerOrNone(ctx).ProjectID }

type createInput struct{ Body CallbackRequest }

type createOutput struct {
	Location string `header:"Location" doc:"Where the callback is." pattern:"^/v1/callbacks/[0-9a-f-]{36}$"`
	Body     CallbackWithSecret
}

func (h handler) create(ctx context.Context, in *createInput) (*createOutput, error) {
	who := auth.CallerOrNone(ctx)
	stored, secret, err := h.svc.Create(ctx, who, in.Body.callback(who), in.Body.Secret)
	if err != nil {
		return nil, err
	}
	return &createOutput{"/v1/callbacks/" + stored.ID.String(), CallbackWithSecret{show(stored), secret.Reveal()}}, nil
}

type listInput struct {
	httpx.PageRequest
	Marker httpx.ID `query:"marker" example:"019b7c5e-4c30-7d55-8e1c-3a7b2d1f0b22" doc:"The last id before."`
}

func (h handler) list(ctx context.Context, in *listInput) (*httpx.Value[CallbackPage], error) {
	page, err := httpx.ReadPage(ctx, in.Limit, func(limit int) ([]domain.Callback, error) {
		return h.svc.List(ctx, project(ctx), limit, in.Marker.UUID)
	}, func(c domain.Callback) string { return c.ID.String() })
	return &httpx.Value[CallbackPage]{Body: CallbackPage{httpx.Each(page.Items, show), page.Next}}, err
}

func (h handler) get(ctx context.Context, in *CallbackPath) (*httpx.Value[Callback], error) {
	return reply(h.svc.Get(ctx, project(ctx), in.ID.UUID))
}

func reply(c domain.Callback, err error) (*httpx.Value[Callback], error) {
	return &httpx.Value[Callback]{Body: show(c)}, err
}

type changeInput struct {
	CallbackPath
	Body CallbackChange
}

func (h handler) change(ctx context.Context, in *changeInput) (*httpx.Value[Callback], error) {
	return reply(h.svc.Change(ctx, project(ctx), in.ID.UUID, in.Body.change()))
}

func (h handler) delete(ctx context.Context, in *CallbackPath) (*struct{}, error) {
	return nil, h.svc.Delete(ctx, project(ctx), in.ID.UUID)
}

type rotateInput struct {
	CallbackPath
	Body *CallbackRotation
}

func (h handler) rotate(ctx context.Context, in *rotateInput) (*httpx.Value[CallbackWithSecret], error) {
	request := domain.Deref(in.Body)
	signsToo, err := request.Overlap.duration()
	if err != nil {
		return nil, err
	}
	changed, secret, err := h.svc.Rotate(ctx, project(ctx), in.ID.UUID, request.Secret, signsToo)
	return &httpx.Value[CallbackWithSecret]{Body: CallbackWithSecret{show(changed), secret.Reveal()}}, err
}

func (h handler) test(ctx context.Context, in *CallbackPath) (*httpx.Value[Delivery], error) {
	return replyDelivery(h.svc.Test(ctx, project(ctx), in.ID.UUID))
}

func replyDelivery(d domain.Delivery, err error) (*httpx.Value[Delivery], error) {
	return &httpx.Value[Delivery]{Body: showDelivery(d)}, err
}

type deliveriesInput struct {
	CallbackPath
	httpx.PageRequest
	Status domain.DeliveryStatus `query:"status" example:"dead" doc:"Only deliveries in this status."`

	Marker httpx.ID `query:"marker" example:"019b7c5e-5d40-7e66-9f2d-4b8c3e2a1c33" doc:"The last id before."`
}

func (h handler) deliveries(ctx context.Context, in *deliveriesInput) (*httpx.Value[DeliveryPage], error) {
	page, err := httpx.ReadPage(ctx, in.Limit, func(limit int) ([]domain.Delivery, error) {
		q := domain.DeliveryQuery{Status: in.Status, Limit: limit, Marker: in.Marker.UUID}
		return h.svc.Deliveries(ctx, project(ctx), in.ID.UUID, q)
	}, func(d domain.Delivery) string { return d.ID.String() })
	return &httpx.Value[DeliveryPage]{Body: DeliveryPage{httpx.Each(page.Items, showDelivery), page.Next}}, err
}

type deliveryInput struct {
	CallbackPath
	Delivery httpx.ID `path:"delivery" example:"019b7c5e-5d40-7e66-9f2d-4b8c3e2a1c33" doc:"The delivery's id."`
}

func (h handler) delivery(ctx context.Context, in *deliveryInput) (*httpx.Value[DeliveryWithEvent], error) {
	d, event, err := h.svc.DeliveredEvent(ctx, project(ctx), in.ID.UUID, in.Delivery.UUID)
	if err != nil {
		return nil, err
	}
	shown, err := showEvent(webhook.EventOf(event))
	return &httpx.Value[DeliveryWithEvent]{Body: DeliveryWithEvent{showDelivery(d), shown}}, err
}

func (h handler) redeliver(ctx context.Context, in *deliveryInput) (*httpx.Value[Delivery], error) {
	return replyDelivery(h.svc.Redeliver(ctx, project(ctx), in.ID.UUID, in.Delivery.UUID))
}

// CallbackRequest is the body of POST /v1/callbacks.
type CallbackRequest struct {
	URL          httpx.CallbackURL `json:"url"`
	Events       httpx.EventTypes  `json:"events,omitempty" nullable:"true" doc:"The event types to send. None is all."`
	InstanceID   *httpx.ID         `json:"instance_id,omitempty" nullable:"true" doc:"Only this instance's events."`
	OrderID      *httpx.ID         `json:"order_id,omitempty" nullable:"true"`
	ConnectionID *httpx.ID         `json:"connection_id,omitempty" nullable:"true" doc:"Only this connection's events."`
	Secret       *domain.Secret    `json:"secret,omitempty"`
}

// Resolve implements huma.Resolver.
func (c *CallbackRequest) Resolve(huma.Context) []error {
	if c.InstanceID != nil && c.OrderID != nil {
		return []error{apperr.InvalidField("order_id", "cannot be combined with instance_id")}
	}
	return nil
}

func (c *CallbackRequest) callback(who domain.Identity) domain.Callback {
	return domain.Callback{
		ProjectID: who.ProjectID, UserID: who.UserID, URL: string(c.URL), Events: c.Events,
		InstanceID: c.InstanceID.OrNil(), OrderID: c.OrderID.OrNil(), ConnectionID: c.ConnectionID.OrNil(),
	}
}

// CallbackChange is the body of PATCH /v1/callbacks/{id}. What is absent or null stays.
type CallbackChange struct {
	URL    *string           `json:"url,omitempty" nullable:"true" minLength:"1" maxLength:"2048"`
	Events *httpx.EventTypes `json:"events,omitempty" nullable:"true"`

	Status *string `json:"status,omitempty" nullable:"true" enum:"suspended,verified" doc:"Verified resumes it."`
}

// Resolve implements huma.Resolver.
func (c *CallbackChange) Resolve(huma.Context) []error {
	if c.URL == nil && c.Events == nil && c.Status == nil {
		return []error{apperr.New(apperr.Invalid, "the body changes nothing: it must have url, events or status")}
	}
	return nil
}

func (c *CallbackChange) change() domain.CallbackChange {
	return domain.CallbackChange{URL: c.URL, Events: (*[]string)(c.Events), Status: (*domain.CallbackStatus)(c.Status)}
}

// CallbackRotation is the body of POST /v1/callbacks/{id}/secret.
type CallbackRotation struct {
	Secret  *domain.Secret `json:"secret,omitempty"`
	Overlap *overlap       `json:"overlap,omitempty" nullable:"true"`
}

// overlap is how long the previous secret signs too.
type overlap string

const (
	defaultOverlap = 24 * time.Hour
	maxOverlap     = 7 * 24 * time.Hour
)

func (o *overlap) duration() (time.Duration, error) {
	if o == nil {
		return defaultOverlap, nil
	}
	d, err := time.ParseDuration(string(*o))
	if err != nil || d < 0 || d > maxOverlap {
		return 0, apperr.InvalidField("overlap", "must be 0s to 168h, such as 24h or 90m")
	}
	return d, nil
}

// Resolve implements huma.Resolver.
func (o *overlap) Resolve(huma.Context) []error {
	if _, err := o.duration(); err != nil {
		return []error{err}
	}
	return nil
}

// Callback is a callback as its owner sees it.
type Callback struct {
	ID           uuid.UUID             `json:"id" doc:"Version 7, in the order of time."`
	URL          httpx.CallbackURL     `json:"url"`
	Events       httpx.EventTypes      `json:"events" uniqueItems:"true" doc:"None is all."`
	InstanceID   uuid.UUID             `json:"instance_id,omitzero"`
	OrderID      uuid.UUID             `json:"order_id,omitzero"`
	ConnectionID uuid.UUID             `json:"connection_id,omitzero" doc:"Absent if it gets its own project's events."`
	Status       domain.CallbackStatus `json:"status"`
	Reason       string                `json:"reason,omitempty" minLength:"1" doc:"Why pending, suspended or gone."`
	Rate         int                   `json:"allowed_rate,omitempty" minimum:"1"`
	Overlap      time.Time             `json:"previous_secret_until,omitzero"`
	UserID       string                `json:"user_id" minLength:"1" doc:"Who made it."`
	CreatedAt    time.Time             `json:"created_at"`
	UpdatedAt    time.Time             `json:"updated_at"`
}

// CallbackWithSecret is the one answer that shows the secret.
type CallbackWithSecret struct {
	Callback
	Secret string `json:"secret" pattern:"^whsec_[A-Za-z0-9+/]{32,86}={0,2}$" doc:"The secret, never shown again."`
}

// CallbackPage is a page of callbacks.
type CallbackPage struct {
	Callbacks []Callback `json:"callbacks" maxItems:"1000"`
	Next      *string    `json:"next" pattern:"^/v1/callbacks\\?" doc:"The next page, without a host. Null at the end."`
}

func show(c domain.Callback) Callback {
	return Callback{
		ID: c.ID, URL: httpx.CallbackURL(c.URL), Events: c.Events, InstanceID: c.InstanceID, OrderID: c.OrderID,
		ConnectionID: c.ConnectionID, Status: c.Status, Reason: c.Reason, Rate: c.AllowedRate,
		Overlap: c.PreviousUntil, UserID: c.UserID, CreatedAt: c.CreatedAt, UpdatedAt: c.UpdatedAt,
	}
}

// Delivery is one event on its way to one callback.
type Delivery struct {
	ID          uuid.UUID             `json:"id"`
	CallbackID  uuid.UUID             `json:"callback_id"`
	EventID     string                `json:"event_id" pattern:"^.+:[0-9]+$"`
	EventType   string                `json:"event_type" pattern:"^cloudfn\\."`
	Subject     string                `json:"subject" minLength:"1" doc:"The id of what the event is about."`
	Status      domain.DeliveryStatus `json:"status"`
	Attempts    int                   `json:"attempts" minimum:"0"`
	Answer      int                   `json:"answer,omitempty" minimum:"100" maximum:"999"`
	Error       string                `json:"error,omitempty" minLength:"1" doc:"What was wrong with the last attempt."`
	CreatedAt   time.Time             `json:"created_at"`
	AttemptedAt time.Time             `json:"attempted_at,omitzero" doc:"When it was last tried."`
}

// DeliveryWithEvent is a delivery, and what it delivers.
type DeliveryWithEvent struct {
	Delivery
	Event CloudEvent `json:"event" doc:"What its receiver gets, in the JSON format of CloudEvents."`
}

// CloudEvent is an event in the JSON format of CloudEvents 1.0. Receivers get the same in HTTP's binary mode.
type CloudEvent struct {
	SpecVersion     string         `json:"specversion" enum:"1.0"`
	ID              string         `json:"id" minLength:"1"`
	Source          string         `json:"source" pattern:"^/cloudfn"`
	Type            string         `json:"type" pattern:"^cloudfn\\."`
	Subject         string         `json:"subject" minLength:"1"`
	Time            time.Time      `json:"time"`
	Sequence        string         `json:"sequence" pattern:"^[0-9]{20}$" doc:"Counts the events of the subject."`
	DataContentType string         `json:"datacontenttype" enum:"application/json"`
	Data            map[string]any `json:"data" doc:"By the type, as in the webhooks of this document."`
}

func showEvent(e cloudevents.Event) (shown CloudEvent, err error) {
	text, err := e.MarshalJSON()
	if err != nil {
		return shown, err
	}
	return shown, json.Unmarshal(text, &shown)
}

// DeliveryPage is a page of deliveries.
type DeliveryPage struct {
	Deliveries []Delivery `json:"deliveries" maxItems:"1000"`
	Next       *string    `json:"next" pattern:"^/v1/callbacks/" doc:"The next page, without a host. Null at the end."`
}

func showDelivery(d domain.Delivery) Delivery {
	return Delivery{
		ID: d.ID, CallbackID: d.CallbackID, EventID: d.EventID, EventType: d.EventType, Subject: d.Subject,
		Status: d.Status, Attempts: d.Attempts, Answer: d.Answer, Error: d.Error,
		CreatedAt: d.CreatedAt, AttemptedAt: d.AttemptedAt,
	}
}

// describe says what the types' tags cannot.
func describe(api huma.API) {
	httpx.DescribeAs[domain.Secret, httpx.CallbackSecret](api)
	httpx.Enum[domain.CallbackStatus](api, "CallbackStatus", "pending", "verified", "suspended", "gone")
	httpx.Enum[domain.DeliveryStatus](api, "DeliveryStatus", "due", "delivered", "dead")
}
