package eventx

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	cloudevents "github.com/cloudevents/sdk-go/v2"

	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/domain"
)

func TestMain(m *testing.M) {
	slog.SetDefault(slog.New(slog.DiscardHandler)) // every event has its line
	m.Run()
}

const key = domain.Secret("the-key")

// handler takes pings and counts them.
func handler(work func(context.Context, cloudevents.Event) error) Handler {
	return Handler{
		Name: "tick-things", Types: []string{PingType, "other.type"}, Key: key, Timeout: time.Minute, Func: work,
	}
}

// binary is an event as a PingSource sends it: attributes as headers.
func binary(t *testing.T, event cloudevents.Event) *http.Request {
	t.Helper()
	r, err := cloudevents.NewHTTPRequestFromEvent(t.Context(), "http://function/events/tick-things", event)
	if err != nil {
		t.Fatal(err)
	}
	if r.Body == nil { // as a server never has it
		r.Body = http.NoBody
	}
	return r
}

// structured is an event as one JSON document.
func structured(t *testing.T, event cloudevents.Event) *http.Request {
	t.Helper()
	body, err := json.Marshal(event)
	if err != nil {
		t.Fatal(err)
	}
	r := httptest.NewRequest(http.MethodPost, "/", bytes.NewReader(body))
	r.Header.Set("Content-Type", cloudevents.ApplicationCloudEventsJSON)
	return r
}

func serve(h Handler, r *http.Request) *httptest.ResponseRecorder {
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w
}

// TestAnswers is what the work's outcome tells the source: done, again, or never.
func TestAnswers(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		work   func() error
		status int
	}{
		"done":                 {func() error { return nil }, 204},
		"Postgres unavailable": {func() error { return apperr.New(apperr.Unavailable, "canary") }, 503},
		"the time is up":       {func() error { return apperr.New(apperr.Timeout, "canary") }, 503},
		"stopped":              {func() error { return context.Canceled }, 503},
		"an unknown error":     {func() error { return errors.New("canary") }, 503},
		"joined":               {func() error { return errors.Join(nil, apperr.New(apperr.BadGateway, "x")) }, 503},
		"a panic":              {func() error { panic("canary") }, 503},
		"can never work":       {func() error { return apperr.New(apperr.Invalid, "canary") }, 422},
		"may never":            {func() error { return apperr.New(apperr.Forbidden, "canary") }, 422},
		"a conflict":           {func() error { return apperr.New(apperr.Conflict, "canary") }, 422},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := serve(handler(func(context.Context, cloudevents.Event) error { return tc.work() }),
				binary(t, Ping("tick-things", key, time.Now())))
			if w.Code != tc.status || (w.Header().Get("Retry-After") != "") != (tc.status == 503) {
				t.Errorf("got %d %v", w.Code, w.Header())
			}
			if body := w.Body.String(); strings.Contains(body, "canary") || tc.status == 204 && body != "" {
				t.Errorf("the answer is %q", body)
			}
		})
	}
}

// TestOnlyItsOwnEvents: a rejected event is not worked on, and the answer is 4xx, so its source does not resend it.
func TestOnlyItsOwnEvents(t *testing.T) {
	t.Parallel()
	ping := func(change func(*cloudevents.Event)) cloudevents.Event {
		event := Ping("tick-things", key, time.Now())
		if change != nil {
			change(&event)
		}
		return event
	}
	for name, tc := range map[string]struct {
		event  cloudevents.Event
		status int
	}{
		"its own":             {ping(nil), 204},
		"another that it may": {ping(func(e *cloudevents.Event) { e.SetType("other.type") }), 204},
		"another type":        {ping(func(e *cloudevents.Event) { e.SetType("dev.knative.sources.pinG") }), 415},
		"no key":              {Ping("tick-things", "", time.Now()), 403},
		"a wrong key":         {Ping("tick-things", "the-kez", time.Now()), 403},
		"a longer key":        {Ping("tick-things", key+"x", time.Now()), 403},
		"a shorter key":       {Ping("tick-things", "the-ke", time.Now()), 403},
		"a number for a key":  {ping(func(e *cloudevents.Event) { e.SetExtension(KeyExtension, 5) }), 403},
		"wrong in both": {
			ping(func(e *cloudevents.Event) { e.SetType("x"); e.SetExtension(KeyExtension, "x") }), 403,
		},
		"the key as its data": {func() cloudevents.Event {
			e := Ping("tick-things", "", time.Now())
			_ = e.SetData("text/plain", key.Reveal())
			return e
		}(), 403},
	} {
		for mode, request := range map[string]func(*testing.T, cloudevents.Event) *http.Request{
			"binary": binary, "structured": structured,
		} {
			t.Run(name+", "+mode, func(t *testing.T) {
				t.Parallel()
				worked := 0
				w := serve(handler(func(_ context.Context, e cloudevents.Event) error {
					worked++
					if e.ID() != tc.event.ID() || e.Source() != "/apis/v1/namespaces/local/pingsources/tick-things" {
						t.Errorf("the event is %s", e)
					}
					return nil
				}), request(t, tc.event))
				if w.Code != tc.status || (worked == 1) != (tc.status == 204) {
					t.Errorf("got %d %s, worked %d times", w.Code, w.Body, worked)
				}
				if strings.Contains(w.Body.String(), key.Reveal()) {
					t.Errorf("the answer shows the key: %s", w.Body)
				}
			})
		}
	}
	t.Run("without a key of its own it takes none", func(t *testing.T) {
		t.Parallel()
		h := handler(func(context.Context, cloudevents.Event) error { return nil })
		h.Key = ""
		for _, given := range []domain.Secret{"", "anything"} {
			if w := serve(h, binary(t, Ping("tick-things", given, time.Now()))); w.Code != 403 {
				t.Errorf("got %d", w.Code)
			}
		}
	})
}

// TestNoEvents sends requests that are not events. Each is rejected for good, and nothing is worked on.
func TestNoEvents(t *testing.T) {
	t.Parallel()
	headers := func(change map[string]string) *http.Request {
		r := binary(t, Ping("tick-things", key, time.Now()))
		for k, v := range change {
			if v == "" {
				r.Header.Del(k)
			} else {
				r.Header.Set(k, v)
			}
		}
		return r
	}
	document := func(kind, body string) *http.Request {
		r := httptest.NewRequest(http.MethodPost, "/", strings.NewReader(body))
		r.Header.Set("Content-Type", kind)
		return r
	}
	big := Ping("tick-things", key, time.Now())
	if err := big.SetData("text/plain", strings.Repeat("a", maxEvent+1)); err != nil {
		t.Fatal(err)
	}
	get := headers(nil)
	get.Method = http.MethodGet
	for name, tc := range map[string]struct {
		r      *http.Request
		status int
	}{
		"by GET":          {get, 405},
		"no headers":      {document("application/json", "{}"), 400},
		"an empty body":   {document("", ""), 400},
		"no id":           {headers(map[string]string{"Ce-Id": ""}), 400},
		"no type":         {headers(map[string]string{"Ce-Type": ""}), 400},
		"no source":       {headers(map[string]string{"Ce-Source": ""}), 400},
		"another version": {headers(map[string]string{"Ce-Specversion": "9.9"}), 400},
		"no time":         {headers(map[string]string{"Ce-Time": "yesterday"}), 400},
		"a batch": {
			document("application/cloudevents-batch+json",
				`[{"specversion":"1.0","id":"1","source":"x","type":"`+PingType+`"}]`), 400,
		},
		"broken JSON":          {document(cloudevents.ApplicationCloudEventsJSON, `{"specversion":"1.0","id":`), 400},
		"no attributes":        {document(cloudevents.ApplicationCloudEventsJSON, `{"specversion":"1.0"}`), 400},
		"no object":            {document(cloudevents.ApplicationCloudEventsJSON, `[]`), 400},
		"too large":            {binary(t, big), 400},
		"too large a document": {structured(t, big), 400},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := serve(handler(func(context.Context, cloudevents.Event) error {
				t.Error("it was worked on")
				return nil
			}), tc.r)
			if w.Code != tc.status || (w.Header().Get("Allow") == "POST") != (tc.status == 405) {
				t.Errorf("got %d %s", w.Code, w.Body)
			}
		})
	}
}
