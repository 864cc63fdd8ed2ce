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
	standardwebhooks "github.com/standard-webhooks/standard-webhooks/libraries/go"
)

// Receiver is where a callback's events go.
type Receiver struct {
	URL string

	mu      sync.Mutex
	got     []Received
	posts   int
	refused []error
}

// Received is an event as a receiver got it.
type Received struct {
	ID, Type, Source, Subject string
	Seq                       int
	Data                      string
	At                        time.Time // when it came
	Happened                  time.Time // when it says that it happened
}

// Events are those that came and were taken so far, repeats too.
func (r *Receiver) Events() []Received {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.got)
}

// Posts is how many requests with an event came, taken or not.
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

// Refused are the reasons for which events were not taken.
func (r *Receiver) Refused() []error {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.refused)
}

func (r *Receiver) take(e cloudevents.Event) {
	r.mu.Lock()
	defer r.mu.Unlock()
	sequence, _ := e.Extensions()["sequence"].(string)
	seq, err := strconv.Atoi(sequence)
	if err != nil {
		r.refused = append(r.refused, err)
	}
	r.got = append(r.got, Received{
		ID: e.ID(), Type: e.Type(), Source: e.Source(), Subject: e.Subject(), Seq: seq, Data: string(e.Data()), At: time.Now(), Happened: e.Time(),
	})
}

// InOrder sees that each subject's events came in order, repeats aside, and that a repeat is the same to the byte. It
// gives how many different ones there are of each subject.
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
	if refused := r.Refused(); len(refused) > 0 {
		t.Errorf("%d events were refused, the first for: %v", len(refused), refused[0])
	}
	return counts
}

// NewSDKReceiver is one that is written with the plain CloudEvents SDK and nothing else.
func NewSDKReceiver(t testing.TB) *Receiver {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	protocol, err := cloudevents.NewHTTP(cehttp.WithListener(listener), cehttp.WithDefaultOptionsHandlerFunc([]string{http.MethodPost}, 6000, []string{"*"}, true))
	if err != nil {
		t.Fatal(err)
	}
	client, err := cloudevents.NewClient(protocol)
	if err != nil {
		t.Fatal(err)
	}
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

// NewSignedReceiver is one that takes what verifies with the Standard Webhooks library and one of the secrets.
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
			r.refused = append(r.refused, err)
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

// eventOf reads an event off a request in binary mode by hand, as a program without any SDK does.
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

// TakeRequest counts the request's event among those that came.
func (r *Receiver) TakeRequest(req *http.Request) {
	body, _ := io.ReadAll(req.Body)
	r.take(eventOf(req.Header, body))
}

// NewReceiver is one that consents, counts, and has serve answer the events.
func NewReceiver(t testing.TB, serve http.HandlerFunc) *Receiver {
	t.Helper()
	return newReceiver(t, func(w http.ResponseWriter, req *http.Request) {
		w.Header().Set("WebHook-Allowed-Origin", req.Header.Get("WebHook-Request-Origin"))
		w.Header().Set("WebHook-Allowed-Rate", "*")
	}, serve)
}

// NewUnwilling is one that takes all events, but has consent answer whether it wants any.
func NewUnwilling(t testing.TB, consent func(http.ResponseWriter)) *Receiver {
	t.Helper()
	return newReceiver(t, func(w http.ResponseWriter, _ *http.Request) { consent(w) }, func(http.ResponseWriter, *http.Request) {})
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

// BadReceivers are one of each kind that takes nothing, by name. None of them ends by itself before the sender does.
func BadReceivers(t testing.TB) map[string]*Receiver {
	t.Helper()
	hang := func(_ http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body) // only then does the server see that the client hangs up
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

// raw takes the connection, writes a beginning of an answer, and goes on by a byte each time until the other side hangs
// up; without a pause it hangs up itself.
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
