package openstack

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/domain"
)

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
