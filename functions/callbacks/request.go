package callbacks

import (
	"time"

	"github.com/google/uuid"

	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/domain"
)

// creation is the body of POST /v1/callbacks.
type creation struct {
	URL          string         `json:"url"`
	Events       []string       `json:"events"`
	InstanceID   *string        `json:"instance_id"`
	OrderID      *string        `json:"order_id"`
	ConnectionID *string        `json:"connection_id"`
	Secret       *domain.Secret `json:"secret"`
}

func (c creation) callback(who domain.Identity) (wanted domain.Callback, err error) {
	wanted = domain.Callback{ProjectID: who.ProjectID, UserID: who.UserID, URL: c.URL, Events: c.Events}
	if c.InstanceID != nil && c.OrderID != nil {
		return wanted, apperr.InvalidField("order_id", "does not go with instance_id")
	}
	if wanted.InstanceID, err = optionalID("instance_id", c.InstanceID); err != nil {
		return wanted, err
	}
	if wanted.OrderID, err = optionalID("order_id", c.OrderID); err != nil {
		return wanted, err
	}
	wanted.ConnectionID, err = optionalID("connection_id", c.ConnectionID)
	return wanted, err
}

func optionalID(field string, text *string) (uuid.UUID, error) {
	if text == nil {
		return uuid.Nil, nil
	}
	id, err := parseID(*text)
	if err != nil || id == uuid.Nil {
		return uuid.Nil, apperr.Malformed(field, "an id, a UUID", *text)
	}
	return id, nil
}

// parseID takes the one form of a UUID that the API writes, in capitals too.
func parseID(text string) (uuid.UUID, error) {
	id, err := uuid.Parse(text)
	if err == nil && len(text) != 36 {
		err = apperr.New(apperr.Invalid, "the id has another form")
	}
	return id, err
}

// alteration is the body of PATCH /v1/callbacks/{id}. What is absent or null stays.
type alteration struct {
	URL    *string                `json:"url"`
	Events *[]string              `json:"events"`
	Status *domain.CallbackStatus `json:"status"`
}

func (a alteration) change() (domain.CallbackChange, error) {
	change := domain.CallbackChange{URL: a.URL, Events: a.Events, Status: a.Status}
	if a.URL == nil && a.Events == nil && a.Status == nil {
		return change, apperr.New(apperr.Invalid, "the body changes nothing: it must have url, events or status")
	}
	if a.Status != nil && *a.Status != domain.CallbackSuspended && *a.Status != domain.CallbackVerified {
		return change, apperr.Malformed("status", "suspended, or verified to resume", string(*a.Status), "suspended", "verified")
	}
	return change, nil
}

// rotation is the body of POST /v1/callbacks/{id}/secret.
type rotation struct {
	Secret  *domain.Secret `json:"secret"`
	Overlap *string        `json:"overlap"`
}

// How long the secret before signs too.
const (
	defaultOverlap = 24 * time.Hour
	maxOverlap     = 7 * 24 * time.Hour
)

func (r rotation) overlap() (time.Duration, error) {
	if r.Overlap == nil {
		return defaultOverlap, nil
	}
	overlap, err := time.ParseDuration(*r.Overlap)
	if err != nil || overlap < 0 || overlap > maxOverlap {
		return 0, apperr.Malformed("overlap", "0s to 168h, such as 24h or 90m", *r.Overlap)
	}
	return overlap, nil
}
