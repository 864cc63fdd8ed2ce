package webhook

import (
	"fmt"

	cloudevents "github.com/cloudevents/sdk-go/v2"

	"github.com/cloudfn/cloudfn/shared/domain"
)

// EventOf is the CloudEvent of an event: the same on every attempt, to the byte.
func EventOf(e domain.Event) cloudevents.Event {
	event := cloudevents.NewEvent()
	event.SetID(fmt.Sprintf("%s:%d", e.Subject, e.Seq))
	event.SetType(e.Type)
	event.SetSource("/cloudfn")
	if e.ProjectID != "" {
		event.SetSource("/cloudfn/projects/" + e.ProjectID)
	}
	event.SetSubject(e.Subject)
	event.SetTime(e.At)
	// It sorts as text, as the extension's specification requires.
	event.SetExtension("sequence", fmt.Sprintf("%020d", e.Seq))
	event.SetDataContentType(cloudevents.ApplicationJSON)
	event.DataEncoded = e.Data
	return event
}
