package callbacks

import (
	"net/http"
	"strings"
	"sync"
	"testing"

	"github.com/google/uuid"

	"github.com/cloudfn/cloudfn/cmd/cloudfn/internal/clitest"
)

// TestCreateIsSentAgain under the same Idempotency-Key, when its answer broke off or its outcome is unknown, until
// cloudfn is done with it. What was not begun is not sent again.
func TestCreateIsSentAgain(t *testing.T) {
	t.Parallel()
	const done = `{"id": "019b7c5e-4c30-7d55-8e1c-3a7b2d1f0b22", "url": "https://receiver.example.com"}`
	respond := func(status int, body string) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Retry-After", "0")
			w.WriteHeader(status)
			_, _ = w.Write([]byte(body))
		}
	}
	breakOff := func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }
	unknown := respond(503, `{"detail": "away", "code": "unavailable", "outcome": "unknown"}`)
	busy := respond(409, `{"detail": "in progress", "code": "conflict"}`)
	refused := respond(400, `{"detail": "wrong", "code": "invalid"}`)
	for name, tc := range map[string]struct {
		answers []http.HandlerFunc
		want    string // of the error
	}{
		"a broken answer":    {answers: []http.HandlerFunc{breakOff, busy, respond(201, done)}},
		"an unknown outcome": {answers: []http.HandlerFunc{unknown, respond(201, done)}},
		"not begun":          {[]http.HandlerFunc{respond(503, `{"detail": "away", "code": "unavailable"}`)}, "away"},
		"taken":              {[]http.HandlerFunc{busy}, "in progress"},
		"refused at last":    {[]http.HandlerFunc{breakOff, refused}, "wrong"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var mu sync.Mutex
			var keys []string
			a, out, _ := clitest.New(t, func(w http.ResponseWriter, r *http.Request) {
				mu.Lock()
				keys = append(keys, r.Header.Get("Idempotency-Key"))
				n := len(keys)
				mu.Unlock()
				tc.answers[min(n, len(tc.answers))-1](w, r)
			})
			err := callbacks.SendOnce(t.Context(), a, callbacks.Path, map[string]any{"url": "x"})
			if (err == nil) != (tc.want == "") || err != nil && !strings.Contains(err.Error(), tc.want) {
				t.Errorf("got %v", err)
			}
			if err == nil && !strings.Contains(out.String(), "receiver.example.com") {
				t.Errorf("it prints %s", out)
			}
			if len(keys) != len(tc.answers) || uuid.Validate(keys[0]) != nil {
				t.Errorf("sent with the keys %v", keys)
			}
			for _, key := range keys {
				if key != keys[0] {
					t.Errorf("sent with the keys %v", keys)
				}
			}
		})
	}
}
