package eventx

import (
	"context"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"testing"
	"time"

	cloudevents "github.com/cloudevents/sdk-go/v2"
	"github.com/google/go-cmp/cmp"

	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/domain"
)

// news is an event to send.
func news(t *testing.T) cloudevents.Event {
	t.Helper()
	event := cloudevents.NewEvent()
	event.SetID("2026-01-02T03:00:00Z:1")
	event.SetType("cloudfn.test.v1")
	event.SetSource("/cloudfn/test")
	event.SetSubject("2026-01-02T03:00:00Z")
	event.SetTime(time.Date(2026, 1, 2, 3, 0, 0, 0, time.UTC))
	event.SetExtension("sequence", "1")
	if err := event.SetData(cloudevents.ApplicationJSON, map[string]any{"running": 3, "text": "é <b>"}); err != nil {
		t.Fatal(err)
	}
	return event
}

// receiver is a sink that is written with the plain SDK. It hands on every event that it takes.
func receiver(t *testing.T) (http.Handler, chan cloudevents.Event) {
	t.Helper()
	taken := make(chan cloudevents.Event, 10)
	protocol, err := cloudevents.NewHTTP()
	if err != nil {
		t.Fatal(err)
	}
	h, err := cloudevents.NewHTTPReceiveHandler(t.Context(), protocol, func(event cloudevents.Event) { taken <- event })
	if err != nil {
		t.Fatal(err)
	}
	return h, taken
}

// serveAt runs a sink whose complaints no one needs to read.
func serveAt(t *testing.T, h http.HandlerFunc, start func(*httptest.Server)) *httptest.Server {
	t.Helper()
	server := httptest.NewUnstartedServer(h)
	server.Config.ErrorLog = log.New(io.Discard, "", 0)
	start(server)
	t.Cleanup(server.Close)
	return server
}

func sinkAt(t *testing.T, cfg SinkConfig) *Sink {
	t.Helper()
	s, err := NewSink(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// TestSendIsBinary: what the SDK receives is the event that was sent, with the overrides, and its attributes came
// as headers.
func TestSendIsBinary(t *testing.T) {
	t.Parallel()
	h, taken := receiver(t)
	var seen http.Header
	server := serveAt(t, func(w http.ResponseWriter, r *http.Request) {
		seen = r.Header.Clone()
		if user, password, _ := r.BasicAuth(); user != "broker" || password != "canary" ||
			r.URL.RawQuery != "key=canary" || r.Method != http.MethodPost {
			t.Errorf("got %s %s as %s", r.Method, r.URL, user)
		}
		h.ServeHTTP(w, r)
	}, (*httptest.Server).Start)
	s := sinkAt(t, SinkConfig{
		URL: domain.Secret(strings.Replace(server.URL, "http://", "http://broker:canary@", 1) +
			"/cloudfn/default?key=canary"),
		Overrides: `{"extensions":{"sequence":"2","Region":"north, é","empty":""}}`,
	})
	event := news(t)
	for range 2 { // the second over the same connection
		if err := s.Send(t.Context(), event); err != nil {
			t.Fatal(err)
		}
		want := event.Clone()
		want.SetExtension("sequence", "2")
		want.SetExtension("region", "north, é")
		want.SetExtension("empty", "")
		if diff := cmp.Diff(want.String(), (<-taken).String()); diff != "" {
			t.Error(diff)
		}
	}
	if event.Extensions()["sequence"] != "1" {
		t.Error("the caller's own event was changed")
	}
	if seen.Get("Ce-Id") != event.ID() || seen.Get("Ce-Specversion") != "1.0" ||
		seen.Get("Content-Type") != "application/json" {
		t.Errorf("the headers are %v", seen)
	}
}

// TestSinksAnswers: 2xx is taken, whatever comes with it; everything else may be sent again, and its error shows
// nothing but the status.
func TestSinksAnswers(t *testing.T) {
	t.Parallel()
	elsewhere := serveAt(t, func(http.ResponseWriter, *http.Request) { t.Error("the redirect was followed") },
		(*httptest.Server).Start)
	for status, want := range map[int]apperr.Code{
		200: "", 202: "", 204: "", 299: "",
		300: apperr.BadGateway, 301: apperr.BadGateway, 302: apperr.BadGateway, 304: apperr.BadGateway,
		307: apperr.BadGateway, 308: apperr.BadGateway,
		400: apperr.BadGateway, 401: apperr.BadGateway, 404: apperr.BadGateway, 413: apperr.BadGateway,
		429: apperr.BadGateway,
		500: apperr.BadGateway, 503: apperr.BadGateway, 599: apperr.BadGateway,
	} {
		t.Run(strconv.Itoa(status), func(t *testing.T) {
			t.Parallel()
			server := serveAt(t, func(w http.ResponseWriter, _ *http.Request) {
				w.Header().Set("Location", elsewhere.URL)
				w.Header().Set("X-Canary", "canary")
				w.WriteHeader(status)
				_, _ = io.WriteString(w, strings.Repeat("canary ", 1<<20))
			}, (*httptest.Server).Start)
			s := sinkAt(t, SinkConfig{URL: domain.Secret(server.URL + "/?canary")})
			again(t, s.Send(t.Context(), news(t)), want)
		})
	}
}

// again checks a failure's code, that it may pass, and that its text gives nothing away.
func again(t *testing.T, err error, want apperr.Code) {
	t.Helper()
	if apperr.CodeOf(err) != want || apperr.Retryable(err) != (want != "") {
		t.Errorf("got %s (%v), want %s", apperr.CodeOf(err), err, want)
	}
	if err != nil && strings.Contains(err.Error(), "canary") {
		t.Errorf("it shows too much: %v", err)
	}
}

// TestNoAnswer: a sink that does not answer, or not as HTTP.
func TestNoAnswer(t *testing.T) {
	t.Parallel()
	hang := func(_ http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body) // only then does the server see that the client hangs up
		<-r.Context().Done()
	}
	raw := func(answer string) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) {
			conn, _, err := w.(http.Hijacker).Hijack()
			if err == nil {
				_, _ = io.WriteString(conn, answer)
				_ = conn.Close()
			}
		}
	}
	for name, tc := range map[string]struct {
		sink http.HandlerFunc
		want apperr.Code
	}{
		"hangs":           {hang, apperr.Timeout},
		"hangs up":        {raw(""), apperr.Unavailable},
		"no HTTP":         {raw("canary canary canary\r\n\r\n"), apperr.BadGateway},
		"a broken status": {raw("HTTP/1.1 canary canary\r\n\r\n"), apperr.BadGateway},
		"a broken header": {raw("HTTP/1.1 204 OK\r\ncanary\r\n\r\n"), apperr.BadGateway},
		"a long header": {
			raw("HTTP/1.1 204 OK\r\nX: " + strings.Repeat("canary", maxSinkAnswer) + "\r\n\r\n"), apperr.BadGateway,
		},
		"a bad redirect": {
			raw("HTTP/1.1 302 OK\r\nLocation: http://canary%zz\r\nContent-Length: 0\r\n\r\n"), apperr.BadGateway,
		},
		"endless, taken": {func(w http.ResponseWriter, r *http.Request) {
			for r.Context().Err() == nil {
				_, _ = io.WriteString(w, strings.Repeat("canary ", 1000))
			}
		}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := serveAt(t, tc.sink, (*httptest.Server).Start)
			s := sinkAt(t, SinkConfig{
				URL: domain.Secret(strings.Replace(server.URL, "http://", "http://canary:canary@", 1) +
					"/canary?canary"),
			})
			if tc.want == apperr.Timeout {
				s.timeout = 300 * time.Millisecond
			}
			again(t, s.Send(t.Context(), news(t)), tc.want)
		})
	}
	t.Run("no one listens", func(t *testing.T) {
		t.Parallel()
		again(t, sinkAt(t, SinkConfig{URL: "http://canary:canary@127.0.0.1:1/canary?canary"}).Send(t.Context(),
			news(t)), apperr.Unavailable)
	})
	t.Run("the process ends", func(t *testing.T) {
		t.Parallel()
		server := serveAt(t, hang, (*httptest.Server).Start)
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		time.AfterFunc(100*time.Millisecond, cancel)
		again(t, sinkAt(t, SinkConfig{URL: domain.Secret(server.URL + "/canary?canary")}).Send(ctx, news(t)),
			apperr.Unavailable)
	})
	t.Run("no event", func(t *testing.T) {
		t.Parallel()
		again(t, sinkAt(t, SinkConfig{URL: "http://127.0.0.1:1/?canary"}).Send(t.Context(), cloudevents.NewEvent()),
			apperr.Internal)
	})
}
