package testkit

import (
	"net/http"
	"net/http/httptest"
	"slices"
	"sync"
	"testing"

	cloudevents "github.com/cloudevents/sdk-go/v2"
)

// Sink receives CloudEvents, as a broker does.
type Sink struct {
	URL    string
	mu     sync.Mutex
	events []cloudevents.Event
}

// NewSink starts a receiver. answer returns the status for the n-th event, counted from 1; nil accepts all events.
func NewSink(t testing.TB, answer func(n int) int) *Sink {
	t.Helper()
	s := &Sink{}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		event, err := cloudevents.NewEventFromHTTPRequest(r)
		if err != nil || event.Validate() != nil || r.Method != http.MethodPost || r.Header.Get("Ce-Id") == "" {
			t.Errorf("the sink got %s %s %v, not an event in binary mode", r.Method, r.URL, r.Header)
			w.WriteHeader(http.StatusBadRequest)
			return
		}
		s.mu.Lock()
		s.events = append(s.events, *event)
		n := len(s.events)
		s.mu.Unlock()
		status := http.StatusAccepted
		if answer != nil {
			status = answer(n)
		}
		w.WriteHeader(status)
	}))
	t.Cleanup(server.Close)
	s.URL = server.URL
	return s
}

// Events returns all events so far in their order, whatever the answers were.
func (s *Sink) Events() []cloudevents.Event {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.events)
}

// IDs returns the ids of the events so far.
func (s *Sink) IDs() []string {
	ids := []string{}
	for _, e := range s.Events() {
		ids = append(ids, e.ID())
	}
	return ids
}
