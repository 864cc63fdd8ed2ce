package callbacks

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	standardwebhooks "github.com/standard-webhooks/standard-webhooks/libraries/go"

	"github.com/cloudfn/cloudfn/cmd/cloudfn/internal/cli"
	"github.com/cloudfn/cloudfn/cmd/cloudfn/internal/exit"
	"github.com/cloudfn/cloudfn/cmd/cloudfn/internal/output"
	"github.com/cloudfn/cloudfn/shared/domain"
)

// receiver takes the deliveries of one callback.
type receiver struct {
	listener
	path     string
	verifier *standardwebhooks.Webhook
	done     chan struct{} // closed after the last event

	mu       sync.Mutex
	consents int
	seen     map[string]bool // by the events' ids
	rejected int             // deliveries whose signature was wrong
	hasEnded bool
	failure  error // why an event could not be printed
}

func newReceiver(l listener, path string, secret domain.Secret) (*receiver, error) {
	verifier, err := standardwebhooks.NewWebhook(secret.Reveal())
	return &receiver{
		listener: l, path: path, verifier: verifier, done: make(chan struct{}), seen: map[string]bool{},
	}, err
}

// event is a CloudEvent as it is printed.
type event struct {
	ID       string          `json:"id"`
	Type     string          `json:"type"`
	Source   string          `json:"source"`
	Subject  string          `json:"subject"`
	Time     time.Time       `json:"time"`
	Sequence string          `json:"sequence"`
	Data     json.RawMessage `json:"data"`
}

// maxEvent is more than any event has, in bytes.
const maxEvent = 1 << 20

// ServeHTTP consents to the callback, and takes what is signed with its secret.
func (r *receiver) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	if !strings.HasSuffix(req.URL.Path, r.path) { // a public address may add to the path's beginning
		http.NotFound(w, req)
		return
	}
	switch req.Method {
	case http.MethodOptions:
		r.consent()
		w.Header().Set("WebHook-Allowed-Origin", req.Header.Get("WebHook-Request-Origin"))
		w.Header().Set("WebHook-Allowed-Rate", "*")
	case http.MethodPost:
		r.post(w, req)
	default:
		http.Error(w, "OPTIONS or POST", http.StatusMethodNotAllowed)
	}
}

func (r *receiver) consent() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.consents++; r.consents == 1 {
		r.Notef("cloudfn has asked for consent, and has it")
	}
}

func (r *receiver) hasConsented() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.consents > 0
}

func (r *receiver) post(w http.ResponseWriter, req *http.Request) {
	body, err := io.ReadAll(http.MaxBytesReader(w, req.Body, maxEvent))
	if err != nil {
		http.Error(w, "too large, or cut off", http.StatusBadRequest)
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	id := req.Header.Get("Ce-Id")
	if err := r.verifier.Verify(body, req.Header); err != nil {
		r.rejected++
		text := output.Clean(fmt.Sprintf(": a delivery of %q does NOT VERIFY (%v), and is rejected", id, err))
		fmt.Fprintln(r.Err, output.Paint(r.ErrSize != nil && r.HasColors, "error")+text)
		http.Error(w, "the signature is wrong", http.StatusUnauthorized)
		return
	}
	e := event{
		ID: id, Type: req.Header.Get("Ce-Type"), Source: req.Header.Get("Ce-Source"),
		Subject: req.Header.Get("Ce-Subject"), Sequence: req.Header.Get("Ce-Sequence"), Data: body,
	}
	e.Time, _ = time.Parse(time.RFC3339Nano, req.Header.Get("Ce-Time"))
	if !r.hasEnded && !r.seen[e.ID] { // delivery is at least once
		r.seen[e.ID] = true
		r.failure = printEvent(r.App, e)
		r.endAfter(e)
	}
	w.WriteHeader(http.StatusNoContent)
}

// endAfter ends the listener if an event was the last one.
func (r *receiver) endAfter(e event) {
	isOrderEnd := r.order != "" && e.Type == domain.OrderEvent && e.Subject == r.order &&
		e.text("status") != string(domain.OrderRunning)
	if r.failure != nil || isOrderEnd || r.count > 0 && len(r.seen) >= r.count {
		r.hasEnded = true
		close(r.done)
	}
}

// result is a failure when a signature was wrong, or an event could not be printed. A closed pipe is no failure: its
// reader has seen enough.
func (r *receiver) result() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.failure != nil && !errors.Is(r.failure, syscall.EPIPE) {
		return r.failure
	}
	if r.rejected > 0 {
		return exit.Failedf("%d of the deliveries did not verify: they were not signed with this "+
			"callback's secret, or somebody has changed them", r.rejected)
	}
	return nil
}

// text is a field of the event's data; "" when it is no text.
func (e event) text(field string) (text string) {
	var data map[string]json.RawMessage
	if json.Unmarshal(e.Data, &data) == nil {
		_ = json.Unmarshal(data[field], &text)
	}
	return text
}

// printEvent prints one line: the event as JSON, or a summary of it.
func printEvent(a *cli.App, e event) error {
	switch {
	case a.Print.IsData(): // one line of JSON is YAML, too
		if !json.Valid(e.Data) {
			e.Data = nil
		}
		text, err := json.Marshal(e)
		if err == nil {
			_, err = fmt.Fprintf(a.Out, "%s\n", output.Escape(text))
		}
		return err
	case a.Print.Format == "name":
		_, err := fmt.Fprintln(a.Out, output.Clean(e.ID))
		return err
	}
	state := e.text("state")
	if state == "" {
		state = e.text("status")
	}
	words := []string{
		output.Dim(a.Print.Color, output.Time(e.Time)), output.Clean(e.Type), output.Clean(e.Subject),
		output.Clean(e.text("name")), output.Paint(a.Print.Color, state),
	}
	words = slices.DeleteFunc(words, func(word string) bool { return word == "" })
	_, err := fmt.Fprintln(a.Out, strings.Join(words, "  "))
	return err
}
