package collectstats

import (
	"context"

	cloudevents "github.com/cloudevents/sdk-go/v2"

	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/eventx"
)

type handler struct{ svc service }

// Handle does what is due by the database's clock, whichever tick woke it: a second delivery finds it done.
func (h handler) Handle(ctx context.Context, _ cloudevents.Event) error {
	return h.svc.Collect(ctx)
}

// What an event says of an hour that was counted. The numbers of its data are those that GET /v1/stats shows.
const (
	hourType   = "cloudfn.stats.hour.v1"
	hourSource = "/cloudfn/collect-stats"
)

// announcer sends hours to the sink.
type announcer struct{ sink *eventx.Sink }

// Send sends an hour. All attributes follow from the hour alone, so that a repeat is known as one, also when its
// numbers are others by then.
func (a announcer) Send(ctx context.Context, h domain.HourStat) error {
	hour := domain.HourKey(h.Hour)
	event := cloudevents.NewEvent()
	event.SetType(hourType)
	event.SetSource(hourSource)
	event.SetSubject(hour)
	event.SetID(hour + ":1")
	event.SetTime(h.Hour)
	if err := event.SetData(cloudevents.ApplicationJSON, h); err != nil {
		return err
	}
	return a.sink.Send(ctx, event)
}
