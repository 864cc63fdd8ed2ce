package runconnections

import (
	"context"

	cloudevents "github.com/cloudevents/sdk-go/v2"
)

type handler struct{ svc *service }

// Handle does what waits in the database, whichever tick or call woke it.
func (h handler) Handle(ctx context.Context, _ cloudevents.Event) error {
	return h.svc.Run(ctx)
}
