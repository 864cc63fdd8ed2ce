package openstack

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cloudfn/cloudfn/shared/apperr"
)

// TestSenselessBodies come with 200: none is taken for an answer, and none is shown to the caller.
func TestSenselessBodies(t *testing.T) {
	t.Parallel()
	for name, write := range map[string]func(w http.ResponseWriter){
		"HTML": func(w http.ResponseWriter) {
			_, _ = io.WriteString(w, "<html><body>canary proxy login</body></html>")
		},
		"nothing":      func(http.ResponseWriter) {},
		"cut off":      func(w http.ResponseWriter) { _, _ = io.WriteString(w, `{"server":{"id":"canary"`) },
		"another type": func(w http.ResponseWriter) { _, _ = io.WriteString(w, `["canary"]`) },
		"text":         func(w http.ResponseWriter) { _, _ = io.WriteString(w, `"canary"`) },
		"a wrong field": func(w http.ResponseWriter) {
			_, _ = io.WriteString(w, `{"server":{"id":{"canary":1}},"servers":{"canary":1}}`)
		},
		"a wrong length": func(w http.ResponseWriter) {
			w.Header().Set("Content-Length", "1000")
			_, _ = io.WriteString(w, `{"server":`)
		},
		"torn": func(w http.ResponseWriter) {
			_, _ = io.WriteString(w, `{"server":{"id":"canary",`)
			_ = http.NewResponseController(w).Flush()
			panic(http.ErrAbortHandler)
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newStub(t)
			s.mux.HandleFunc("/compute/", func(w http.ResponseWriter, _ *http.Request) { write(w) })
			session := s.session(t)
			for path, call := range map[string]func(context.Context, *Session) error{
				"/compute/servers/id": read, "/compute/servers/detail": list,
			} {
				err := call(t.Context(), session)
				if e := apperr.As(err); e.Code != apperr.BadGateway ||
					e.Message != "nova gave an answer that cannot be read" {
					t.Errorf("%s: got %s %q", path, e.Code, e.Message)
				}
				if n := len(s.to(path)); n != 1 {
					t.Errorf("%s: it was asked %d times", path, n)
				}
				if strings.Contains(fmt.Sprint(err), "canary") {
					t.Errorf("%s: the body is in the log: %v", path, err)
				}
			}
		})
	}
}

// TestEndlessBodies are cut, whatever they are made of: an answer at 32 MiB, a refusal long before.
func TestEndlessBodies(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		call        func(context.Context, *Session) error
		status      int
		start, fill string
		want        apperr.Code
	}{
		"a list":               {read, 200, `{"server":{"tags":[""`, `,"tag"`, apperr.BadGateway},
		"a page":               {list, 200, `{"servers":[{}`, `,{}`, apperr.BadGateway},
		"a refusal in JSON":    {create, 400, `{"badRequest":{"message":"`, "a", apperr.Invalid},
		"a refusal in HTML":    {create, 404, "<html>", "<title>", apperr.NotFound},
		"a fault without end":  {create, 500, "", "<h1>", apperr.BadGateway},
		"a text without tags":  {create, 403, "", "no ", apperr.Forbidden},
		"open tags everywhere": {create, 409, "", "<", apperr.Conflict},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newStub(t)
			var sent atomic.Int64
			s.mux.HandleFunc("/compute/", func(w http.ResponseWriter, _ *http.Request) {
				block := bytes.Repeat([]byte(tc.fill), 64<<10/len(tc.fill))
				w.WriteHeader(tc.status)
				_, err := io.WriteString(w, tc.start)
				for err == nil {
					var n int
					n, err = w.Write(block)
					sent.Add(int64(n))
				}
			})
			err := tc.call(t.Context(), s.session(t))
			if apperr.CodeOf(err) != tc.want || len(err.Error()) > 2000 || len(apperr.As(err).Message) > 2000 {
				t.Errorf("got %.2000v", err)
			}
			most := int64(maxRefusal)
			if tc.status == 200 {
				most = maxBody
			}
			if n := sent.Load(); n > most+16<<20 { // what was on its way
				t.Errorf("%d bytes were sent", n)
			}
		})
	}
}

// TestBoundedBody gives everything up to its bound, and fails after it.
func TestBoundedBody(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		status, size int
		good         bool
	}{
		{200, 0, true},
		{200, maxBody - 1, true},
		{200, maxBody + 1, false},
		{404, maxRefusal - 1, true},
		{404, maxRefusal + 1, false},
	} {
		n, err := io.Copy(io.Discard, bounded(response(tc.status, nil, strings.Repeat(" ", tc.size))).Body)
		if (err == nil) != tc.good || tc.good && n != int64(tc.size) {
			t.Errorf("%d: of %d bytes %d came: %v", tc.status, tc.size, n, err)
		}
	}
}

// TestSlowBodies end with the caller's deadline, as do silent services; a client that hangs up ends them at once.
func TestSlowBodies(t *testing.T) {
	t.Parallel()
	silent := func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }
	dripping := func(w http.ResponseWriter, r *http.Request) {
		for _, err := io.WriteString(w, "{"); err == nil && r.Context().Err() == nil; _, err = io.WriteString(w, " ") {
			_ = http.NewResponseController(w).Flush()
			time.Sleep(10 * time.Millisecond)
		}
	}
	for name, tc := range map[string]struct {
		serve  http.HandlerFunc
		hangUp bool
		want   apperr.Code
	}{
		"silent":                   {silent, false, apperr.Timeout},
		"a byte now and then":      {dripping, false, apperr.Timeout},
		"silent, hung up":          {silent, true, apperr.ClientGone},
		"a byte at times, hung up": {dripping, true, apperr.ClientGone},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newStub(t)
			s.mux.HandleFunc("/compute/", tc.serve)
			session := s.session(t)
			if _, err := session.endpoint(t.Context(), "compute"); err != nil { // so that the time is the service's
				t.Fatal(err)
			}
			for call, fn := range map[string]func(context.Context, *Session) error{"read": read, "create": create} {
				ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
				if tc.hangUp {
					cancel()
					ctx, cancel = context.WithCancel(t.Context())
					time.AfterFunc(300*time.Millisecond, cancel)
				}
				err := fn(ctx, session)
				cancel()
				if apperr.CodeOf(err) != tc.want {
					t.Errorf("%s: got %v", call, err)
				}
				if text := fmt.Sprint(err); strings.Contains(text, s.url) {
					t.Errorf("%s: the URL is in the log: %s", call, text)
				}
			}
		})
	}
}
