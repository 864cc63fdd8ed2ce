package webhook

import (
	"net/http"
	"strings"
	"testing"
	"time"
)

// TestProbe has a row for what a status URL may answer: only 200 says that a host serves.
func TestProbe(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		answer http.HandlerFunc
		url    string
		ranges Ranges
		want   string // in the error; "" = it serves
	}{
		"200": {answer: func(w http.ResponseWriter, r *http.Request) {
			if r.Method != http.MethodGet || r.URL.Path != "/up" {
				w.WriteHeader(http.StatusTeapot)
			}
		}, ranges: loopback},
		"204": {
			answer: func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNoContent) },
			ranges: loopback, want: "the answer is 204",
		},
		"503": {
			answer: func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusServiceUnavailable) },
			ranges: loopback, want: "the answer is 503",
		},
		"a redirect": {
			answer: func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, "/other", http.StatusFound) },
			ranges: loopback, want: "the answer is 302",
		},
		"no answer in time": {
			answer: func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() },
			ranges: loopback, want: "did not answer in time",
		},
		"an endless answer": {answer: func(w http.ResponseWriter, r *http.Request) {
			w.WriteHeader(http.StatusOK)
			for r.Context().Err() == nil {
				_, _ = w.Write(make([]byte, 1<<10))
			}
		}, ranges: loopback},
		"plain http elsewhere": {
			answer: func(http.ResponseWriter, *http.Request) { t.Error("it was asked") }, want: "must begin with https",
		},
		"nothing listens":      {url: "http://127.0.0.1:1/up", ranges: loopback, want: "refused"},
		"no URL":               {url: "up", ranges: loopback, want: "url"},
		"a forbidden protocol": {url: "ftp://127.0.0.1/up", ranges: loopback, want: "url"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			client := testClient(t, Config{Ranges: tc.ranges, Timeout: time.Second}, nil)
			url := tc.url
			if tc.answer != nil {
				url = receiver(t, tc.answer) + "/up"
			}
			err := client.Probe(t.Context(), url)
			got := ""
			if err != nil {
				got = err.Error()
			}
			if (got == "") != (tc.want == "") || !strings.Contains(got, tc.want) {
				t.Errorf("got %q, want %q", got, tc.want)
			}
		})
	}
}
