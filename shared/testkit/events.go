package testkit

import (
	"context"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	cloudevents "github.com/cloudevents/sdk-go/v2"
	cehttp "github.com/cloudevents/sdk-go/v2/protocol/http"
	"github.com/google/uuid"
	standardwebhooks "github.com/standard-webhooks/standard-webhooks/libraries/go"

	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/seal"
)

// Receiver receives a callback's events.
type Receiver struct {
	URL string

	mu       sync.Mutex
	got      []Received
	posts    int
	rejected []error
}

// Received is an event as a receiver got it.
type Received struct {
	ID, Type, Source, Subject string
	Seq                       int
	Data                      string
	At                        time.Time // when it came
	Happened                  time.Time // when it says that it happened
}

// Events returns the accepted events so far, with repeats.
func (r *Receiver) Events() []Received {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.got)
}

// Posts counts the requests with an event, accepted or not.
func (r *Receiver) Posts() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.posts
}

func (r *Receiver) post() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.posts++
}

// Rejected returns why events were not accepted.
func (r *Receiver) Rejected() []error {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.rejected)
}

func (r *Receiver) take(e cloudevents.Event) {
	r.mu.Lock()
	defer r.mu.Unlock()
	sequence, _ := e.Extensions()["sequence"].(string)
	seq, err := strconv.Atoi(sequence)
	if err != nil {
		r.rejected = append(r.rejected, err)
	}
	r.got = append(r.got, Received{
		ID: e.ID(), Type: e.Type(), Source: e.Source(), Subject: e.Subject(), Seq: seq, Data: string(e.Data()),
		At: time.Now(), Happened: e.Time(),
	})
}

// InOrder checks that each subject's events came in order, and that repeats are identical. It counts the different
// events of each subject.
func (r *Receiver) InOrder(t testing.TB) map[string]int {
	t.Helper()
	last, first := map[string]int{}, map[string]Received{}
	counts := map[string]int{}
	for _, e := range r.Events() {
		before, repeated := first[e.ID]
		if repeated {
			e.At = before.At
			if e != before {
				t.Errorf("the repeat of %s is another event:\n%+v\n%+v", e.ID, before, e)
			}
			continue
		}
		first[e.ID] = e
		if e.ID != e.Subject+":"+strconv.Itoa(e.Seq) || e.Seq <= last[e.Subject] {
			t.Errorf("%s came after sequence %d, with sequence %d", e.ID, last[e.Subject], e.Seq)
		}
		last[e.Subject] = e.Seq
		counts[e.Subject]++
	}
	if rejected := r.Rejected(); len(rejected) > 0 {
		t.Errorf("%d events were rejected, the first for: %v", len(rejected), rejected[0])
	}
	return counts
}

// NewSDKReceiver returns a receiver made with the plain CloudEvents SDK.
func NewSDKReceiver(t testing.TB) *Receiver {
	t.Helper()
	listener := must(net.Listen("tcp", "127.0.0.1:0"))(t)
	consent := cehttp.WithDefaultOptionsHandlerFunc([]string{http.MethodPost}, 6000, []string{"*"}, true)
	protocol := must(cloudevents.NewHTTP(cehttp.WithListener(listener), consent))(t)
	client := must(cloudevents.NewClient(protocol))(t)
	r := &Receiver{URL: "http://" + listener.Addr().String() + "/events"}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = client.StartReceiver(ctx, func(e cloudevents.Event) { r.post(); r.take(e) })
	}()
	t.Cleanup(func() { cancel(); <-done })
	return r
}

// NewSignedReceiver returns a receiver that accepts events signed with one of the secrets, by the Standard Webhooks
// library.
func NewSignedReceiver(t testing.TB, secrets ...string) *Receiver {
	t.Helper()
	for _, secret := range secrets {
		remember("a callback's secret", strings.TrimPrefix(secret, "whsec_"))
	}
	var r *Receiver
	r = NewReceiver(t, func(w http.ResponseWriter, req *http.Request) {
		body, err := io.ReadAll(req.Body)
		for _, secret := range secrets {
			var verifier *standardwebhooks.Webhook
			if verifier, err = standardwebhooks.NewWebhook(secret); err == nil {
				err = verifier.Verify(body, req.Header)
			}
			if err == nil {
				break
			}
		}
		if err != nil {
			r.mu.Lock()
			r.rejected = append(r.rejected, err)
			r.mu.Unlock()
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		event := eventOf(req.Header, body)
		if req.Header.Get("Webhook-Id") != event.ID() {
			t.Errorf("event %s came with Webhook-Id %s", event.ID(), req.Header.Get("Webhook-Id"))
		}
		r.take(event)
		w.WriteHeader(http.StatusNoContent)
	})
	return r
}

// eventOf reads an event in binary mode without an SDK.
func eventOf(h http.Header, body []byte) cloudevents.Event {
	event := cloudevents.NewEvent()
	event.SetID(h.Get("Ce-Id"))
	event.SetType(h.Get("Ce-Type"))
	event.SetSource(h.Get("Ce-Source"))
	event.SetSubject(h.Get("Ce-Subject"))
	event.SetExtension("sequence", h.Get("Ce-Sequence"))
	at, _ := time.Parse(time.RFC3339Nano, h.Get("Ce-Time"))
	event.SetTime(at)
	_ = event.SetData(cloudevents.ApplicationJSON, body)
	return event
}

// TakeRequest adds the request's event to the received ones.
func (r *Receiver) TakeRequest(req *http.Request) {
	body, _ := io.ReadAll(req.Body)
	r.take(eventOf(req.Header, body))
}

// NewReceiver returns a receiver that consents, counts the events, and answers them by serve.
func NewReceiver(t testing.TB, serve http.HandlerFunc) *Receiver {
	t.Helper()
	return newReceiver(t, func(w http.ResponseWriter, req *http.Request) {
		w.Header().Set("WebHook-Allowed-Origin", req.Header.Get("WebHook-Request-Origin"))
		w.Header().Set("WebHook-Allowed-Rate", "*")
	}, serve)
}

// NewDecliningReceiver returns a receiver that accepts all events, and answers requests for consent by consent.
func NewDecliningReceiver(t testing.TB, consent func(http.ResponseWriter)) *Receiver {
	t.Helper()
	accept := func(http.ResponseWriter, *http.Request) {}
	return newReceiver(t, func(w http.ResponseWriter, _ *http.Request) { consent(w) }, accept)
}

func newReceiver(t testing.TB, consent, serve http.HandlerFunc) *Receiver {
	t.Helper()
	r := &Receiver{}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		if req.Method == http.MethodOptions {
			consent(w, req)
			return
		}
		r.post()
		serve(w, req)
	}))
	t.Cleanup(func() {
		server.CloseClientConnections()
		server.Close()
	})
	r.URL = server.URL + "/events"
	return r
}

// BadReceivers returns a receiver of each kind that accepts nothing. None ends a request before the sender does.
func BadReceivers(t testing.TB) map[string]*Receiver {
	t.Helper()
	hang := func(_ http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body) // only then does the server notice the client's hang-up
		<-r.Context().Done()
	}
	status := func(code int, header ...string) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) {
			for i := 0; i+1 < len(header); i += 2 {
				w.Header().Set(header[i], header[i+1])
			}
			w.WriteHeader(code)
		}
	}
	elsewhere := NewReceiver(t, func(http.ResponseWriter, *http.Request) { t.Error("a redirect was followed") })
	return map[string]*Receiver{
		"hangs":        NewReceiver(t, hang),
		"500":          NewReceiver(t, status(http.StatusInternalServerError)),
		"410":          NewReceiver(t, status(http.StatusGone)),
		"429":          NewReceiver(t, status(http.StatusTooManyRequests, "Retry-After", "1")),
		"301":          NewReceiver(t, status(http.StatusMovedPermanently, "Location", elsewhere.URL)),
		"closes early": NewReceiver(t, raw("", 0)),
		"drips":        NewReceiver(t, raw("HTTP/1.1 200 OK\r\nX-Drip: ", 200*time.Millisecond)),
	}
}

// raw hijacks the connection, writes the beginning of an answer, and then a byte per pause until the client hangs up.
// Without a pause it hangs up itself.
func raw(beginning string, pause time.Duration) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		conn, _, err := w.(http.Hijacker).Hijack()
		if err != nil {
			return
		}
		defer conn.Close()
		_, err = io.WriteString(conn, beginning)
		for err == nil && pause > 0 {
			time.Sleep(pause)
			_, err = io.WriteString(conn, "x")
		}
	}
}

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

// Wakes stands for the event functions of a replica, and counts how often each is woken.
type Wakes struct {
	URL string // for WAKE_URL

	mu     sync.Mutex
	counts map[string]int
}

// NewWakes starts a server that accepts every wake.
func NewWakes(t testing.TB) *Wakes {
	t.Helper()
	w := &Wakes{counts: map[string]int{}}
	server := httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.counts[strings.TrimPrefix(r.URL.Path, "/")]++
		rw.WriteHeader(http.StatusNoContent)
	}))
	t.Cleanup(server.Close)
	w.URL = server.URL + "/{function}"
	return w
}

// Count returns how often a function was woken.
func (w *Wakes) Count(function string) int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.counts[function]
}

// Await waits until a function was woken.
func (w *Wakes) Await(t testing.TB, function string) {
	t.Helper()
	Eventually(t, 10*time.Second, function+" is woken", func() bool { return w.Count(function) > 0 })
}

// After checks that a function is woken by what do does. No earlier wake of it may still be on its way.
func (w *Wakes) After(t testing.TB, function, what string, do func()) {
	t.Helper()
	before := w.Count(function)
	do()
	Eventually(t, 10*time.Second, what+" wakes "+function, func() bool { return w.Count(function) > before })
}

// AddCallback inserts a callback as the function callbacks does, and returns its id. The previous secret, unless it is
// "", is valid for an hour.
func AddCallback(
	t testing.TB, conn Querier, projectID, url string, status domain.CallbackStatus, secret, previous string,
) uuid.UUID {
	t.Helper()
	id := uuid.New()
	must(conn.Exec(context.Background(), `
insert into callbacks (project_id, id, user_id, url, status, secret, previous_secret, previous_until)
values ($1, $2, 'tester', $3, $4, $5, $6, now() + interval '1 hour')`,
		projectID, id, url, status, Sealed(t, projectID, id, secret), Sealed(t, projectID, id, previous)))(t)
	return id
}

// Sealed returns a secret of a callback as the function callbacks stores it; nil for "".
func Sealed(t testing.TB, projectID string, id uuid.UUID, secret string) []byte {
	t.Helper()
	if secret == "" {
		return nil
	}
	key := must(seal.ParsePublicKey(SealPublicKey))(t)
	text := must(key.Seal("callback/"+projectID+"/"+id.String(), domain.Secret(secret)))(t)
	return text
}

// AddEvents inserts n events for each of the subjects, with the next sequence numbers.
func AddEvents(t testing.TB, conn Querier, projectID string, subjects []string, n int) {
	t.Helper()
	must(conn.Exec(context.Background(), `
insert into events (project_id, subject, seq, type, at, data)
select $1, s, coalesce((select max(e.seq) from events e where e.project_id = $1 and e.subject = s), 0) + i, $4,
       clock_timestamp(),
       jsonb_build_object('instance_id', s, 'state', 'active', 'n', i)
from generate_series(1, $3) i, unnest($2::text[]) s order by i`, projectID, subjects, n, domain.InstanceEvent))(t)
}
