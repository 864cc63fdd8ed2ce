package watchnodes

import (
	"context"

	cloudevents "github.com/cloudevents/sdk-go/v2"
)

// Handle watches, and does what is due in the database, whichever tick or call woke it.
func (s *service) Handle(ctx context.Context, _ cloudevents.Event) error { return s.runner.Run(ctx) }
