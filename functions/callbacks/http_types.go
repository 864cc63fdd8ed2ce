package callbacks

import (
	"time"

	"github.com/danielgtaylor/huma/v2"
	"github.com/google/uuid"

	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/httpx"
)

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
