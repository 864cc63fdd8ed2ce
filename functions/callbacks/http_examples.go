package callbacks

import (
	"encoding/json"
	"time"

	"github.com/google/uuid"

	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/httpx"
)

const (
	createText = `The callback is pending until its receiver consents: it is asked at once by ` + "`OPTIONS`" + `, as the HTTP webhook
specification of CloudEvents says, and again for 72 hours while it does not. Events that happen meanwhile wait.

With ` + "`connection_id`" + ` it gets what happens through the connection, in the connection's project, for as long as its maker may act
through it. An instance or order is then the connection's. The last event that it gets is that the connection was deleted.

Each event is a CloudEvent in HTTP's binary mode, signed with the secret in the Standard Webhooks form. The secret is
shown in this answer and never again.
`
	changeText = "With another `url` the callback is pending until the receiver there consents. `status: suspended` stops its\n" +
		"deliveries; the events wait. `status: verified` resumes a callback that was suspended or is gone: its receiver is\n" +
		"asked for its consent again, so that the answer shows it as pending, and what waited is tried anew.\n"
	rotateText = `The new secret signs at once. The previous one signs too until the overlap is over, so that the receiver has time to
change; an older one does not any more. Without a body a new secret is made, with an overlap of 24 hours.
`
	testText = "The event has the type `cloudfn.callback.test.v1` and goes to this callback only, whatever events it has chosen. It\n" +
		"waits until the callback is verified.\n"
	redeliverText = `Makes another delivery of the same event, which keeps its id. It waits for no other event. Only what was delivered
or is dead can be delivered again.
`
)

var noCallback = httpx.Status(404, "The project has no callback of this id.")

var createBodies = []httpx.Example{
	httpx.NewExample("project", "All that happens in the project", json.RawMessage(`{"url": "https://receiver.example.com/cloud"}`)),
	httpx.NewExample("order", "What becomes of one order's instances", json.RawMessage(`{"url": "https://receiver.example.com/orders?id=7",
		"events": ["cloudfn.instance.state.v1"], "order_id": "0f8fad5b-d9cb-469f-a165-70867728950e"}`)),
	httpx.NewExample("connection", "All that happens through a connection", json.RawMessage(`{"url": "https://receiver.example.com/delegated",
		"connection_id": "019b7c5e-1f20-7a31-b5d4-0c7e2f9a6b13"}`)),
}

var changeBodies = []httpx.Example{
	httpx.NewExample("suspend", "Have no more events sent for now", json.RawMessage(`{"status": "suspended"}`)),
	httpx.NewExample("move", "Another receiver", json.RawMessage(`{"url": "https://receiver.example.com/moved", "events": ["cloudfn.order.state.v1"]}`)),
}

var rotateBodies = []httpx.Example{
	httpx.NewExample("overlap", "A new secret is made, and there is an hour to change", json.RawMessage(`{"overlap": "1h"}`)),
	httpx.NewExample("given", "A secret of the caller's", json.RawMessage(`{"secret": "whsec_S2V5Rm9yVGhlRXhhbXBsZU9mT3VyRG9jdW1lbnQ="}`)),
}

var exampleTime = time.Date(2026, 1, 2, 3, 4, 5, 678901000, time.UTC)

// example is a callback that a change is made to.
func example(change func(*Callback)) Callback {
	c := Callback{
		ID: uuid.MustParse("019b7c5e-4c30-7d55-8e1c-3a7b2d1f0b22"), URL: "https://receiver.example.com/cloud", Events: eventTypes{},
		Status: domain.CallbackVerified, UserID: "8c1d9b3a5e7f4c2d9a0b1c2d3e4f5a6b", CreatedAt: exampleTime, UpdatedAt: exampleTime,
	}
	change(&c)
	return c
}

func exampleWithSecret(change func(*Callback)) CallbackWithSecret {
	return CallbackWithSecret{example(change), "whsec_S2V5Rm9yVGhlRXhhbXBsZU9mT3VyRG9jdW1lbnQ="}
}

func exampleDelivery(change func(*Delivery)) Delivery {
	d := Delivery{
		ID: uuid.MustParse("019b7c5e-5d40-7e66-9f2d-4b8c3e2a1c33"), CallbackID: uuid.MustParse("019b7c5e-4c30-7d55-8e1c-3a7b2d1f0b22"),
		EventID: "019b7c5e-3a10-7c44-9d0b-2f6a1c0e9a11:5", EventType: domain.InstanceEvent,
		Subject: "019b7c5e-3a10-7c44-9d0b-2f6a1c0e9a11", Status: domain.DeliveryDue, CreatedAt: exampleTime,
	}
	change(&d)
	return d
}

var (
	secondPage = "/v1/callbacks?limit=1&marker=019b7c5e-4c30-7d55-8e1c-3a7b2d1f0b22"
	withRate   = example(func(c *Callback) { c.Rate = 120 })

	callbackPages = []httpx.Example{
		httpx.NewExample("page", "A page with more after it", CallbackPage{[]Callback{withRate}, &secondPage}),
		httpx.NewExample("empty", "None", CallbackPage{Callbacks: []Callback{}}),
	}
	verified  = []httpx.Example{httpx.NewExample("verified", "Its receiver takes 120 events a minute", withRate)}
	suspended = []httpx.Example{httpx.NewExample("suspended", "It waits until it is resumed", example(func(c *Callback) {
		c.Status, c.Reason = domain.CallbackSuspended, "suspended by its owner"
	}))}
	created = []httpx.Example{httpx.NewExample("project", "Its receiver is asked for its consent", exampleWithSecret(func(c *Callback) {
		c.Status = domain.CallbackPending
	}))}
	rotated = []httpx.Example{httpx.NewExample("rotated", "Both secrets sign until tomorrow", exampleWithSecret(func(c *Callback) {
		c.Overlap = orNever(exampleTime.Add(24 * time.Hour))
	}))}
	tested = []httpx.Example{httpx.NewExample("due", "On its way", exampleDelivery(func(d *Delivery) {
		d.EventID, d.EventType, d.Subject = d.CallbackID.String()+":1", domain.CallbackTestEvent, d.CallbackID.String()
	}))}
	redelivered = []httpx.Example{httpx.NewExample("due", "The same event, on its way again", exampleDelivery(func(d *Delivery) {
		d.ID = uuid.MustParse("019b7c5e-8a20-7b88-9c4f-6d0e5a4c3e55")
	}))}
	deliveryPages = []httpx.Example{httpx.NewExample("dead", "One whose attempts are used up", DeliveryPage{Deliveries: []Delivery{
		exampleDelivery(func(d *Delivery) {
			d.Status, d.Attempts, d.Answer, d.Error = domain.DeliveryDead, 38, 500, "the receiver answered with status 500"
			d.AttemptedAt = orNever(exampleTime.Add(72 * time.Hour))
		}),
	}})}
)
