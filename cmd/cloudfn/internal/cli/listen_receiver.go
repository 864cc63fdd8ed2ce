package cli

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

	"github.com/cloudfn/cloudfn/cmd/cloudfn/internal/output"
	"github.com/cloudfn/cloudfn/shared/domain"
)

// receiver takes the deliveries of one callback.
type receiver struct {
	app      *app
	path     string
	verifier *standardwebhooks.Webhook
	wanted   listening
	done     chan struct{} // closed when there is nothing more to wait for

	mu       sync.Mutex
	consents int
	seen     map[string]bool // by the events' ids
	bad      int             // deliveries that did not verify
	ended    bool
	failure  error // why an event could not be printed
}

func newReceiver(a *app, path string, secret domain.Secret, wanted listening) (*receiver, error) {
	verifier, err := standardwebhooks.NewWebhook(secret.Reveal())
	return &receiver{app: a, path: path, verifier: verifier, wanted: wanted, done: make(chan struct{}), seen: map[string]bool{}}, err
}

// event is one as it is printed.
type event struct {
	ID       string          `json:"id"`
	Type     string          `json:"type"`
	Source   string          `json:"source"`
	Subject  string          `json:"subject"`
	Time     time.Time       `json:"time"`
	Sequence string          `json:"sequence"`
	Data     json.RawMessage `json:"data"`
}

// largestEvent is more than any event of ours has.
const largestEvent = 1 << 20

// ServeHTTP consents to the callback, and takes what is signed with its secret.
func (r *receiver) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	if !strings.HasSuffix(req.URL.Path, r.path) { // behind a public address there may be more before it
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
		fmt.Fprintln(r.app.err, "cloudfn has asked for consent, and has it")
	}
}

// asked says whether cloudfn has reached us.
func (r *receiver) asked() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.consents > 0
}

func (r *receiver) post(w http.ResponseWriter, req *http.Request) {
	body, err := io.ReadAll(http.MaxBytesReader(w, req.Body, largestEvent))
	if err != nil {
		http.Error(w, "too large, or broken off", http.StatusBadRequest)
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if err := r.verifier.Verify(body, req.Header); err != nil {
		r.bad++
		fmt.Fprintln(r.app.err, output.Paint(r.app.size != nil && r.app.colors, "error")+output.Clean(fmt.Sprintf(": a delivery of %q does NOT VERIFY (%v), and is refused", req.Header.Get("Ce-Id"), err)))
		http.Error(w, "the signature is wrong", http.StatusUnauthorized)
		return
	}
	e := event{
		ID: req.Header.Get("Ce-Id"), Type: req.Header.Get("Ce-Type"), Source: req.Header.Get("Ce-Source"),
		Subject: req.Header.Get("Ce-Subject"), Sequence: req.Header.Get("Ce-Sequence"), Data: body,
	}
	e.Time, _ = time.Parse(time.RFC3339Nano, req.Header.Get("Ce-Time"))
	if !r.ended && !r.seen[e.ID] { // at least once, said the sender
		r.seen[e.ID] = true
		r.failure = r.app.printEvent(e)
		r.end(e)
	}
	w.WriteHeader(http.StatusNoContent)
}

// end looks whether that was the last event.
func (r *receiver) end(e event) {
	status := e.word("status")
	settled := r.wanted.order != "" && e.Type == domain.OrderEvent && e.Subject == r.wanted.order && status != string(domain.OrderRunning)
	if r.failure != nil || settled || r.wanted.count > 0 && len(r.seen) >= r.wanted.count {
		r.ended = true
		close(r.done)
	}
}

// verdict is a failure when something did not verify, or could not be printed. Whoever reads no further has had enough.
func (r *receiver) verdict() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.failure != nil && !errors.Is(r.failure, syscall.EPIPE) {
		return r.failure
	}
	if r.bad > 0 {
		return failed{fmt.Errorf("%d of the deliveries did not verify: they were not signed with this callback's secret, or somebody has changed them", r.bad)}
	}
	return nil
}

// word is one of the data's fields; nothing when it is not a text.
func (e event) word(field string) (text string) {
	var data map[string]json.RawMessage
	if json.Unmarshal(e.Data, &data) == nil {
		_ = json.Unmarshal(data[field], &text)
	}
	return text
}

// printEvent prints one line: the event as JSON, or what matters of it.
func (a *app) printEvent(e event) error {
	switch a.print.Format {
	case "json", "yaml": // one line of JSON is YAML, too
		if !json.Valid(e.Data) {
			e.Data = nil
		}
		text, err := json.Marshal(e)
		if err == nil {
			_, err = fmt.Fprintf(a.out, "%s\n", output.Escape(text))
		}
		return err
	case "name":
		_, err := fmt.Fprintln(a.out, output.Clean(e.ID))
		return err
	default:
		state := e.word("state")
		if state == "" {
			state = e.word("status")
		}
		words := []string{
			output.Dim(a.print.Color, stamp(e.Time)), output.Clean(e.Type), output.Clean(e.Subject), output.Clean(e.word("name")), output.Paint(a.print.Color, state),
		}
		_, err := fmt.Fprintln(a.out, strings.Join(slices.DeleteFunc(words, func(word string) bool { return word == "" }), "  "))
		return err
	}
}
