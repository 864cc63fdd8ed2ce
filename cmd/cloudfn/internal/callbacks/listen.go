package callbacks

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/signal"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	standardwebhooks "github.com/standard-webhooks/standard-webhooks/libraries/go"

	"github.com/cloudfn/cloudfn/cmd/cloudfn/internal/api"
	"github.com/cloudfn/cloudfn/cmd/cloudfn/internal/cli"
	"github.com/cloudfn/cloudfn/cmd/cloudfn/internal/exit"
	"github.com/cloudfn/cloudfn/cmd/cloudfn/internal/orders"
	"github.com/cloudfn/cloudfn/cmd/cloudfn/internal/output"
	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/webhook"
)

// listener receives the events of a callback of its own.
type listener struct {
	*cli.App
	port      int
	publicURL string
	order     string // it ends with this order
	orderBy   string // the connection that the order was placed through
	count     int    // it ends after so many events; 0 = never
}

func listen(a *cli.App) *cobra.Command {
	l := listener{App: a}
	var isOnce bool
	cmd := &cobra.Command{
		Use: "listen", Short: "Receive events here, verify them, and print them", Args: cobra.NoArgs,
		Long: `Receive events here, for trials: listen at a port of this machine's loopback address, register a
callback that sends there, consent to it, and print each event with a valid signature: when, type, subject, name,
state. At the end the callback is deleted.

cloudfn must reach the port. A daemon on this machine does when its operator has allowed it, with
CALLBACK_ALLOW=127.0.0.0/8. For one elsewhere, route a public address to the port, and give it by --public-url.`,
		Example: "  cloudfn callbacks listen --for ORDER\n" +
			"  cloudfn callbacks listen --events cloudfn.instance.state.v1 -o json | jq .data",
		Annotations: cli.Calls(
			"createCallback", "getCallback", "listCallbacks", "listDeliveries", "deleteCallback", "getOrder"),
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := a.TextOnly(cmd, "table", "wide", "json", "yaml", "name"); err != nil {
				return err
			}
			if isOnce {
				l.count = 1
			}
			events, _ := cmd.Flags().GetStringSlice("events")
			l.order, _ = cmd.Flags().GetString("for")
			l.orderBy, _ = cmd.Flags().GetString("connection")
			if l.order != "" && len(events) > 0 && !slices.Contains(events, domain.OrderEvent) {
				return exit.Usagef("--for ends by an event of the order: name %s in --events, too",
					domain.OrderEvent)
			}
			return l.run(cmd.Context(), func(url string) map[string]any { return subscription(cmd, url) })
		},
	}
	subscriptionFlags(a, cmd)
	orderFlag(a, cmd, "for", "only events of this order, until it ends")
	flags := cmd.Flags()
	flags.IntVar(&l.port, "port", 0, "port to listen at (default any that is free)")
	flags.StringVar(&l.publicURL, "public-url", "", "URL that leads to the port, when cloudfn is not on this machine")
	flags.BoolVar(&isOnce, "once", false, "end after one event")
	flags.IntVar(&l.count, "count", 0, "end after so many events")
	cmd.MarkFlagsMutuallyExclusive("once", "count")
	return cmd
}

const (
	// answerTime is how long the answer to a request may take that has no other limit.
	answerTime = 20 * time.Second
	// drainTime is how long deliveries and answers on their way may take at the end.
	drainTime = 5 * time.Second
	// reminderTime is after how long without a request from cloudfn the user learns the reason.
	reminderTime = 10 * time.Second
)

// run receives events until it may end.
func (l listener) run(ctx context.Context, subscription func(url string) map[string]any) error {
	signal.Ignore(syscall.SIGPIPE) // | head raises it; the callback must be deleted all the same
	repeated := make(chan os.Signal, 1)
	// A second Ctrl-C must not end the process before the callback is deleted.
	signal.Notify(repeated, os.Interrupt, syscall.SIGTERM)
	defer signal.Stop(repeated)
	port, err := new(net.ListenConfig).Listen(ctx, "tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(l.port)))
	if err != nil {
		return fmt.Errorf("--port %d: %w", l.port, err)
	}
	defer func() { _ = port.Close() }()
	secret, path := webhook.NewSecret(), "/"+rand.Text()
	r, err := newReceiver(l, path, secret)
	if err != nil {
		return err
	}
	server := &http.Server{Handler: r, ReadHeaderTimeout: 10 * time.Second}
	go func() { _ = server.Serve(port) }()
	defer shutdown(ctx, server)

	base := "http://" + port.Addr().String()
	if l.publicURL != "" {
		base = strings.TrimSuffix(l.publicURL, "/")
	}
	body := subscription(base + path)
	body["secret"] = secret.Reveal()
	id, err := l.register(ctx, body)
	if err != nil {
		return l.explain(err)
	}
	l.Notef("Listening at %s as callback %s; Ctrl-C ends it", base+path, id)
	err = l.receive(ctx, r, id)
	if failure := l.unregister(ctx, id); failure != nil {
		return failure
	}
	return err
}

// register makes the callback. Ctrl-C does not cancel it: a callback whose id is unknown cannot be deleted. When the
// answer is lost, register finds the callback by its URL, which no other callback has.
func (l listener) register(ctx context.Context, body map[string]any) (string, error) {
	tooLate := cli.Timeout("no answer within %s", answerTime)
	ctx = context.WithoutCancel(ctx)
	sending, cancel := context.WithTimeoutCause(ctx, answerTime, tooLate)
	defer cancel()
	made, err := api.Send[callback](sending, l.API(), http.MethodPost, callbacks.Path, body)
	if !mayBeDone(err) {
		return made.Value.ID, err
	}
	finding, end := context.WithTimeoutCause(ctx, answerTime, tooLate)
	defer end()
	found, failure := api.List[callback]{
		Path: callbacks.Path, Key: callbacks.Key, Limit: 1, Keep: func(c callback) bool { return c.URL == body["url"] },
	}.Read(finding, l.API())
	switch {
	case failure != nil:
		return "", fmt.Errorf("%w; a callback of %s may be there: %s callbacks list shows it", err, body["url"], l.Name)
	case len(found) == 0:
		return "", err
	}
	return found[0].Value.ID, nil
}

// mayBeDone reports whether cloudfn may have done what was requested, although no answer of it says so.
func mayBeDone(err error) bool {
	e, ok := errors.AsType[*api.Error](err)
	return ok && (e.IsCutOff || e.Status >= http.StatusInternalServerError) || errors.Is(err, context.DeadlineExceeded)
}

// shutdown lets the answers out that are on their way.
func shutdown(ctx context.Context, server *http.Server) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), drainTime)
	defer cancel()
	_ = server.Shutdown(ctx)
}

// unregister deletes the callback, also after Ctrl-C.
func (l listener) unregister(ctx context.Context, id string) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 2*drainTime)
	defer cancel()
	err := l.API().Do(ctx, http.MethodDelete, callbacks.URL(id), nil, nil)
	if err == nil || api.HasStatus(err, http.StatusNotFound) { // someone else has deleted it
		return nil
	}
	return fmt.Errorf("%w; the callback is still there: %s callbacks delete %s", err, l.Name, id)
}

// explain says what to do when cloudfn does not send to this machine.
func (l listener) explain(err error) error {
	e, ok := errors.AsType[*api.Error](err)
	if !ok || l.publicURL != "" || e.Status != http.StatusBadRequest ||
		!slices.ContainsFunc(e.Fields, func(f api.FieldError) bool { return f.Field == "url" }) {
		return err
	}
	return fmt.Errorf("%w: this cloudfn may not send to this machine; its operator can allow it by "+
		"CALLBACK_ALLOW=127.0.0.0/8, or give --public-url with an address that leads here", err)
}

// receive waits for the last event, for the end of the order, or for Ctrl-C.
func (l listener) receive(ctx context.Context, r *receiver, id string) error {
	ended, err := l.alreadyEnded(ctx)
	if err != nil {
		return err
	}
	reminder := time.NewTicker(reminderTime)
	defer reminder.Stop()
	for {
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-r.done:
			return r.result()
		case <-ended:
			if l.hasPending(ctx, id) {
				ended = time.After(drainTime)
				continue
			}
			l.Notef("The order was settled before")
			return r.result()
		case <-reminder.C:
			if r.hasConsented() {
				reminder.Stop()
				continue
			}
			if c, err := api.Get[callback](ctx, l.API(), callbacks.URL(id), nil); err == nil && c.Value.Reason != nil {
				l.Notef("No consent was requested yet: %s", *c.Value.Reason)
			}
		}
	}
}

// alreadyEnded fires when the order had ended before the listener began. The event of its end may still be on its way.
func (l listener) alreadyEnded(ctx context.Context) (<-chan time.Time, error) {
	if l.order == "" {
		return nil, nil //nolint:nilnil // no order ends it
	}
	order, err := orders.Get(ctx, l.App, l.order, l.orderBy)
	if err != nil || order.Value.Status == api.OrderStatusRunning {
		return nil, err
	}
	return time.After(drainTime), nil
}

// hasPending reports whether a delivery to the callback is on its way.
func (l listener) hasPending(ctx context.Context, id string) bool {
	found, err := deliveriesOf(id).Find(ctx, l.App, url.Values{"status": {string(api.Due)}}, 1)
	return err == nil && len(found) > 0
}

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
// reader has read enough.
func (r *receiver) result() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.failure != nil && !errors.Is(r.failure, syscall.EPIPE) {
		return r.failure
	}
	if r.rejected > 0 {
		return exit.Failedf("%d of the deliveries did not verify: they were not signed with this "+
			"callback's secret, or someone has changed them", r.rejected)
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
