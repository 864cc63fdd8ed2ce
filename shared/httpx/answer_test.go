package httpx

import (
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/danielgtaylor/huma/v2"
	"github.com/klauspost/compress/zstd"
)

// things is a list, with its next page.
type things struct {
	Items []string `json:"things"`
	Next  *string  `json:"next"`
}

// listing serves GET /things with what the list has, and GET /things/one with an ETag of its version.
func listing(list *things) []Route {
	return Routes(func(api huma.API) {
		Register(api, huma.Operation{
			OperationID: "listThings", Method: http.MethodGet, Path: "/things",
			Responses: Answers(map[int]string{200: "x"}),
		}, func(context.Context, *struct{}) (*Value[things], error) { return &Value[things]{*list}, nil })
		Register(api, huma.Operation{
			OperationID: "oneThing", Method: http.MethodGet, Path: "/things/one",
			Responses: Answers(map[int]string{200: "x"}),
		}, func(context.Context, *struct{}) (*struct {
			ETag string `header:"ETag"`
			Body things
		}, error,
		) {
			return &struct {
				ETag string `header:"ETag"`
				Body things
			}{ETag(3), *list}, nil
		})
	})
}

// request sends a request to the routes. headers are names and values in turn.
func request(j *recorder, routes []Route, method, path string, headers ...string) *httptest.ResponseRecorder {
	r, w := httptest.NewRequest(method, path, nil), httptest.NewRecorder()
	for n := 0; n < len(headers); n += 2 {
		r.Header.Set(headers[n], headers[n+1])
	}
	j.edge().Handler(routes).ServeHTTP(w, r)
	return w
}

// TestCompression: what is 1 KiB or longer comes in the encoding that the client likes best, with the same content.
func TestCompression(t *testing.T) {
	t.Parallel()
	long := &things{Items: []string{strings.Repeat("server ", 1000)}}
	short := &things{Items: []string{"server"}}
	read := map[string]func([]byte) (io.Reader, error){
		"":     func(b []byte) (io.Reader, error) { return bytes.NewReader(b), nil },
		"gzip": func(b []byte) (io.Reader, error) { return gzip.NewReader(bytes.NewReader(b)) },
		"zstd": func(b []byte) (io.Reader, error) { return zstd.NewReader(bytes.NewReader(b)) },
	}
	for _, c := range []struct {
		list         *things
		accept, want string
	}{
		{long, "", ""},
		{long, "br", ""},
		{long, "gzip", "gzip"},
		{long, "gzip, deflate, br, zstd", "zstd"},
		{long, "zstd;q=0.1, gzip", "gzip"},
		{long, "gzip;q=0", ""},
		{short, "gzip, zstd", ""},
	} {
		w := request(&recorder{}, listing(c.list), http.MethodGet, "/things", "Accept-Encoding", c.accept)
		plain := request(&recorder{}, listing(c.list), http.MethodGet, "/things")
		got := w.Header().Get("Content-Encoding")
		if w.Code != http.StatusOK || got != c.want || w.Header().Get("Vary") != "Accept-Encoding" ||
			w.Header().Get("ETag") != plain.Header().Get("ETag") {
			t.Errorf("%q: got %d %v", c.accept, w.Code, w.Header())
			continue
		}
		if got != "" && w.Body.Len() > plain.Body.Len()/10 {
			t.Errorf("%q: %d of %d bytes", c.accept, w.Body.Len(), plain.Body.Len())
		}
		body, err := read[got](w.Body.Bytes())
		if err != nil {
			t.Fatal(err)
		}
		if text, err := io.ReadAll(body); err != nil || !bytes.Equal(text, plain.Body.Bytes()) {
			t.Errorf("%q: got %d bytes, %v", c.accept, len(text), err)
		}
	}
}

// TestCompressedStreamBreaksOff: what was sent of it is no whole answer, in any encoding.
func TestCompressedStreamBreaksOff(t *testing.T) {
	t.Parallel()
	for _, encoding := range []string{"gzip", "zstd"} {
		for _, size := range []int{1, 100_000} {
			server := serve(t, (&recorder{}).edge(), streaming(func(_ context.Context, w io.Writer) error {
				_, _ = io.WriteString(w, strings.Repeat("a,b\r\n", size))
				return errors.New("postgres is unavailable")
			}))
			r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, server.URL+"/x", nil)
			if err != nil {
				t.Fatal(err)
			}
			r.Header.Set("Accept-Encoding", encoding)
			resp, err := http.DefaultClient.Do(r)
			if err == nil {
				_, err = io.ReadAll(resp.Body)
				_ = resp.Body.Close()
			}
			if !errors.Is(err, io.ErrUnexpectedEOF) && !errors.Is(err, io.EOF) {
				t.Errorf("%s, %d lines: got %v", encoding, size, err)
			}
		}
	}
}

// TestConditionalRead: who has the content of an answer gets it once more only after it has changed.
func TestConditionalRead(t *testing.T) {
	t.Parallel()
	list := &things{Items: []string{"a"}}
	tag := request(&recorder{}, listing(list), http.MethodGet, "/things").Header().Get("ETag")
	if !strings.HasPrefix(tag, `W/"`) {
		t.Fatalf("the ETag is %s", tag)
	}
	strong := strings.TrimPrefix(tag, "W/")
	for given, want := range map[string]int{
		tag: 304, strong: 304, `"x", ` + tag: 304, "*": 304,
		`W/` + strings.TrimSuffix(strong, `"`) + `-gzip"`: 304, // a proxy's mark
		`"x"`: 200, "": 200, `"3"`: 200,
	} {
		j := &recorder{}
		for _, method := range []string{http.MethodGet, http.MethodHead} {
			w := request(j, listing(list), method, "/things", "If-None-Match", given)
			if w.Code != want || w.Header().Get("ETag") != tag || w.Header().Get("X-Request-Id") == "" ||
				w.Code == http.StatusNotModified && (w.Body.Len() > 0 || w.Header().Get("Content-Type") != "") {
				t.Errorf("%s, %s: got %d %v %s", method, given, w.Code, w.Header(), w.Body)
			}
		}
		if len(j.rows) != 2 || j.rows[0].Status != want || j.rows[1].Status != want {
			t.Errorf("%s: the rows are %+v", given, j.rows)
		}
	}
	list.Items = []string{"b"}
	w := request(&recorder{}, listing(list), http.MethodGet, "/things", "If-None-Match", tag)
	if w.Code != http.StatusOK {
		t.Errorf("after a change: got %d", w.Code)
	}
	// The ETag of a version says nothing about the rest.
	w = request(&recorder{}, listing(list), http.MethodGet, "/things/one", "If-None-Match", `"3"`)
	if w.Code != http.StatusOK || w.Header().Get("ETag") != `"3"` {
		t.Errorf("of a version: got %d %v", w.Code, w.Header())
	}
}

// TestLink: a page of a list names the next one in a header, too.
func TestLink(t *testing.T) {
	t.Parallel()
	next := "/things?limit=1&marker=a"
	for link, list := range map[string]*things{
		"": {Items: []string{"a"}}, "<" + next + `>; rel="next"`: {Items: []string{"a"}, Next: &next},
	} {
		if w := request(&recorder{}, listing(list), http.MethodGet, "/things"); w.Header().Get("Link") != link {
			t.Errorf("got %v, want %q", w.Header(), link)
		}
	}
}

// TestFields: the entries of a page have the fields that the client chooses, and the next page does, too.
func TestFields(t *testing.T) {
	t.Parallel()
	type entry struct {
		ID   string   `json:"id"`
		Name string   `json:"name,omitempty"`
		Tags []string `json:"tags"`
	}
	type page struct {
		Items []entry `json:"entries"`
		Total int     `json:"total"`
		Next  *string `json:"next"`
	}
	routes := Routes(func(api huma.API) {
		Register(api, huma.Operation{
			OperationID: "listEntries", Method: http.MethodGet, Path: "/entries",
			Responses: Answers(map[int]string{200: "x"}),
		}, func(ctx context.Context, _ *struct{}) (*Value[page], error) {
			return &Value[page]{page{
				Items: []entry{{ID: "1", Name: "<a>", Tags: []string{"x"}}, {ID: "2"}}, Total: 2, Next: NextPage(ctx, "2"),
			}}, nil
		})
	})
	for query, want := range map[string]string{
		"": `{"entries":[{"id":"1","name":"<a>","tags":["x"]},{"id":"2","tags":null}],"total":2,` +
			`"next":"/entries?marker=2"}`,
		"?fields=name": `{"entries":[{"name":"<a>"},{}],"next":"/entries?fields=name&marker=2","total":2}`,
		"?fields=id,tags": `{"entries":[{"id":"1","tags":["x"]},{"id":"2","tags":null}],` +
			`"next":"/entries?fields=id%2Ctags&marker=2","total":2}`,
	} {
		w := request(&recorder{}, routes, http.MethodGet, "/entries"+query)
		if strings.TrimSpace(w.Body.String()) != want {
			t.Errorf("%q: got %d %s", query, w.Code, w.Body)
		}
	}
	for _, query := range []string{"?fields=", "?fields=id,ID", "?fields=total", "?fields=id&fields=name"} {
		w := request(&recorder{}, routes, http.MethodGet, "/entries"+query)
		if w.Code != http.StatusBadRequest || !strings.Contains(w.Body.String(), `"field":"fields"`) {
			t.Errorf("%s: got %d %s", query, w.Code, w.Body)
		}
	}
}
