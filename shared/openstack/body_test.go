package openstack

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"testing/iotest"
	"time"

	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/domain"
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
					t.Errorf("%s: it was called %d times", path, n)
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

// TestSlowBodies end with the caller's deadline, as do silent services; a client that hangs up ends them immediately.
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

// TestStorable replaces escaped NULs wherever reads end, and nothing else.
func TestStorable(t *testing.T) {
	t.Parallel()
	for body, want := range map[string]string{
		``: ``, `{"a":"b\u0000c"}`: `{"a":"b\ufffdc"}`, `"\u0000\u0000"`: `"\ufffd\ufffd"`, `"\\u0000"`: `"\\u0000"`,
		`"\\\u0000\n\u00001"`: `"\\\ufffd\n\ufffd1"`, `"\u0001\u000"`: `"\u0001\u000"`, `\u00`: `\u00`, `\`: `\`,
		strings.Repeat(`\u0000x`, 5000): strings.Repeat(`\ufffdx`, 5000),
		strings.Repeat("é", 5000):       strings.Repeat("é", 5000),
	} {
		for name, reader := range map[string]func(io.Reader) io.Reader{
			"whole": func(r io.Reader) io.Reader { return r }, "by bytes": iotest.OneByteReader, "by halves": iotest.HalfReader,
		} {
			inner := newStorable(io.NopCloser(reader(strings.NewReader(body))))
			if got, err := io.ReadAll(reader(inner)); string(got) != want || err != nil {
				t.Errorf("%s, %s: got %.100q %v, want %.100q", body[:min(len(body), 50)], name, got, err, want)
			}
		}
	}
	torn := newStorable(io.NopCloser(io.MultiReader(strings.NewReader(`{"a`), iotest.ErrReader(errTooLarge))))
	if got, err := io.ReadAll(torn); string(got) != `{"a` || !errors.Is(err, errTooLarge) {
		t.Errorf("torn: got %q %v", got, err)
	}
}

// FuzzStorable checks that texts are the same but for NULs, which are replaced.
func FuzzStorable(f *testing.F) {
	for _, seed := range []string{
		`{"a":"b\u0000c"}`, `["\\u0000","\\\u0000",{"\u0000":"\ud800"}]`, `"\u00`, `\`, "\"\xff\\u0000\"", `null`,
	} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, body string) {
		got, err := io.ReadAll(newStorable(io.NopCloser(iotest.OneByteReader(strings.NewReader(body)))))
		if err != nil || len(got) != len(body) {
			t.Fatalf("%q became %q, %v", body, got, err)
		}
		var before, after any
		if json.Unmarshal([]byte(body), &before) != nil {
			return
		}
		if err := json.Unmarshal(got, &after); err != nil {
			t.Fatalf("%q became %q, %v", body, got, err)
		}
		// keys that become equal are one
		if want := strings.ReplaceAll(fmt.Sprint(before), "\x00", "\uFFFD"); !strings.Contains(body, "{") &&
			fmt.Sprint(after) != want || strings.Contains(fmt.Sprint(after), "\x00") {
			t.Errorf("%q is read as %q, want %q", body, fmt.Sprint(after), want)
		}
	})
}

// TestAnswersAreStorable, however they are read: by gophercloud, in pages, in errors.
func TestAnswersAreStorable(t *testing.T) {
	t.Parallel()
	s := newStub(t)
	s.answer("GET /compute/servers/{id}", 200, `{"server":{"id":"s","name":"a\u0000","metadata":{"k\u0000":"v\u0000"},
		"addresses":{"n\u0000":[{"addr":"10.0.0.2","version":4}]}}}`)
	s.answer("GET /compute/servers/detail", 200, `{"servers":[{"id":"s","name":"a\u0000","key_name":"k\u0000"}]}`)
	s.answer("GET /network/v2.0/networks", 200, `{"networks":[{"id":"n","name":"a\u0000"}]}`)
	s.answer("GET /network/v2.0/subnets", 200, `{"subnets":[{"id":"i","network_id":"n","name":"a\u0000"}]}`)
	s.answer("GET /image/v2/images", 200, `{"images":[{"id":"i","name":"a\u0000"}]}`)
	s.answer("POST /compute/servers", 400, `{"badRequest":{"message":"a\u0000b"}}`)
	session := s.session(t)
	server, err := session.Server(t.Context(), "s")
	page, _, pageErr := session.Servers(t.Context(), domain.ServerQuery{Limit: 5})
	networks, networksErr := session.Networks(t.Context())
	images, imagesErr := session.Images(t.Context(), "")
	if found, err := session.Images(t.Context(), "a\uFFFD"); err != nil || len(found) != 1 ||
		s.to("/image/v2/images")[1].URL.Query().Has("name") {
		t.Errorf("an image by its cleaned name: %+v %v", found, err)
	}
	for _, err := range []error{err, pageErr, networksErr, imagesErr} {
		if err != nil {
			t.Fatal(err)
		}
	}
	text, err := json.Marshal([]any{server, page, networks, images, apperr.As(create(t.Context(), session)).Message})
	if err != nil || strings.Contains(string(text), escapedNUL) || server.Metadata["k\uFFFD"] != "v\uFFFD" ||
		server.Addresses[0].Network != "n\uFFFD" || networks[0].Name != "a\uFFFD" || page[0].Name != "a\uFFFD" {
		t.Errorf("got %s, %v", text, err)
	}
}
