// Package eventx is the CloudEvents edge that event functions share. A tick may be lost, late, doubled or
// overlapping, and PingSource gives each a fresh id; so the id decides nothing here, and a function does
// catch-up work keyed by what is due.
package eventx

import (
	"context"
	"crypto/subtle"
	"fmt"
	"log/slog"
	"net/http"
	"runtime/debug"
	"slices"
	"time"

	cloudevents "github.com/cloudevents/sdk-go/v2"
	"github.com/google/uuid"

	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/flow"
)

// PingType is the type of a PingSource's events.
const PingType = "dev.knative.sources.ping"

// KeyExtension carries the secret that proves an event's source: a PingSource adds it by ceOverrides.
const KeyExtension = "cloudfnkey"

// An event is small, and comes immediately.
const (
	maxEvent    = 64 << 10
	readTimeout = 15 * time.Second
)

// Func is the work that an event wakes. What it returns decides the answer: nil is done, a retryable error
// (apperr.Retryable) has the source send the event again, any other error means that it never will work.
type Func func(ctx context.Context, event cloudevents.Event) error

// Do is a Func that does what is due in the database, whichever tick or call woke it.
func Do(work func(ctx context.Context) error) Func {
	return func(ctx context.Context, _ cloudevents.Event) error { return work(ctx) }
}

// Handler receives the events of one function.
type Handler struct {
	Name    string
	Types   []string        // the event types that it takes
	Key     domain.Secret   // what KeyExtension must hold; "" takes no event
	Timeout time.Duration   // for the work of one event; what is left then is left to the next event
	Running context.Context //nolint:containedctx // its end cancels the work of all events; nil = never
	Ending  <-chan struct{} // closed when the process drains: work that only waits for what is due later ends
	Func    Func
}

// ServeHTTP answers 204 when the work is done, 4xx for an event that can never be worked on, and 5xx to have
// it sent again.
func (h Handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	now := time.Now()
	control := http.NewResponseController(w)
	_ = control.SetReadDeadline(now.Add(readTimeout))
	_ = control.SetWriteDeadline(now.Add(h.Timeout + 15*time.Second))
	r.Body = http.MaxBytesReader(w, r.Body, maxEvent)
	if r.Method != http.MethodPost {
		w.Header().Set("Allow", http.MethodPost)
		http.Error(w, "events come by POST", http.StatusMethodNotAllowed)
		return
	}
	event, err := cloudevents.NewEventFromHTTPRequest(r)
	if err != nil || event.Validate() != nil {
		http.Error(w, "this is not a CloudEvent", http.StatusBadRequest)
		return
	}
	if status, reason := h.refuse(event); status != 0 {
		slog.WarnContext(r.Context(), "event rejected", "function", h.Name, "type", event.Type(),
			"source", event.Source(),
			"reason", reason)
		http.Error(w, reason, status)
		return
	}
	// All of it has been read. A read deadline that ends during the work would cancel whatever comes on this connection
	// later.
	_ = control.SetReadDeadline(time.Time{})
	// The work goes on when the source hangs up: it would only be done again.
	answer(w, h.Work(context.WithoutCancel(r.Context()), *event))
}

// Work does the work of one event that is known to be for this function.
func (h Handler) Work(ctx context.Context, event cloudevents.Event) error {
	began := time.Now()
	ctx, cancel := context.WithTimeout(ctx, h.Timeout)
	defer cancel()
	if h.Running != nil {
		defer context.AfterFunc(h.Running, cancel)()
	}
	err := h.guard(flow.WithEnding(ctx, h.Ending), event)
	slog.InfoContext(ctx, "event", "function", h.Name, "type", event.Type(), "source", event.Source(), "id", event.ID(),
		"ms", time.Since(began).Milliseconds(), "code", apperr.CodeOf(err))
	return err
}

func (h Handler) refuse(event *cloudevents.Event) (status int, reason string) {
	given, _ := event.Extensions()[KeyExtension].(string)
	if h.Key == "" || subtle.ConstantTimeCompare([]byte(given), []byte(h.Key.Reveal())) != 1 {
		return http.StatusForbidden, "the event is not from its source: extension " + KeyExtension +
			" is wrong or missing"
	}
	if !slices.Contains(h.Types, event.Type()) {
		return http.StatusUnsupportedMediaType, "this function takes no events of type " + event.Type()
	}
	return 0, ""
}

func (h Handler) guard(ctx context.Context, event cloudevents.Event) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("panic: %v\n%s", p, debug.Stack())
		}
		if err != nil {
			slog.ErrorContext(ctx, "event failed", "function", h.Name, "error", err, "again", apperr.Retryable(err))
		}
	}()
	return h.Func(ctx, event)
}

// takenHeader is in the answers of a function, and not in those of what stands before it, such as Knative's activator.
const takenHeader = "Cloudfn-Event"

func answer(w http.ResponseWriter, err error) {
	w.Header().Set(takenHeader, "taken")
	switch {
	case err == nil:
		w.WriteHeader(http.StatusNoContent)
	case apperr.Retryable(err):
		w.Header().Set("Retry-After", "10")
		http.Error(w, "not done; send it again", http.StatusServiceUnavailable)
	default:
		http.Error(w, "not done, and sending it again will not help", http.StatusUnprocessableEntity)
	}
}

// Ping makes the event that a PingSource of that function's name would send.
func Ping(function string, key domain.Secret, now time.Time) cloudevents.Event {
	return made(PingType, "/apis/v1/namespaces/local/pingsources/"+function, key, now)
}

func made(kind, source string, key domain.Secret, now time.Time) cloudevents.Event {
	event := cloudevents.NewEvent()
	event.SetID(uuid.NewString())
	event.SetType(kind)
	event.SetSource(source)
	event.SetTime(now)
	if key != "" {
		event.SetExtension(KeyExtension, key.Reveal())
	}
	return event
}
