package callbacks

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/cloudfn/cloudfn/cmd/cloudfn/internal/cli"
	"github.com/cloudfn/cloudfn/cmd/cloudfn/internal/clitest"
	"github.com/cloudfn/cloudfn/cmd/cloudfn/internal/exit"
)

// TestListenWaitsForPending: the event of an order that ended meanwhile may still be on its way.
func TestListenWaitsForPending(t *testing.T) {
	t.Parallel()
	r := &receiver{done: make(chan struct{}), consents: 1}
	a, _, said := clitest.New(t, func(w http.ResponseWriter, req *http.Request) {
		switch {
		case strings.HasPrefix(req.URL.Path, "/v1/launch/"):
			fmt.Fprint(w, `{"id": "o", "status": "done", "instances": []}`)
		case req.URL.Query().Get("status") != "due":
			t.Errorf("requested %s", req.URL)
		default:
			fmt.Fprint(w, `{"deliveries": [{"id": "d", "status": "due"}], "next": null}`)
			time.AfterFunc(100*time.Millisecond, func() { close(r.done) }) // which it is delivered by
		}
	})
	if err := (listener{App: a, order: "o"}).receive(t.Context(), r, "c"); err != nil || said.Len() > 0 {
		t.Errorf("it ends with %v, and says %q", err, said.String())
	}
}

// TestRegisterFindsWhatItMade when the answer was lost, or says that there may be one.
func TestRegisterFindsWhatItMade(t *testing.T) {
	t.Parallel()
	const own = "http://127.0.0.1:1/own"
	for name, c := range map[string]struct {
		post, get     int
		list          string
		id, says      string
		broken, lists bool
	}{
		"the answer broke off": {
			broken: true, get: 200,
			list: `[{"id": "other", "url": "http://x/"}, {"id": "mine", "url": "` + own + `"}]`, id: "mine",
			lists: true,
		},
		"a gateway spoke": {
			post: 504, get: 200, list: `[{"id": "mine", "url": "` + own + `"}]`, id: "mine",
			lists: true,
		},
		"it had not arrived": {broken: true, get: 200, list: `[]`, says: "broke off", lists: true},
		"no one answers any more": {
			broken: true, get: 503, says: own + " may be there: cloudfn callbacks list",
			lists: true,
		},
		"it was refused": {post: 400, says: "400"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			listed := false
			a, _, _ := clitest.New(t, func(w http.ResponseWriter, req *http.Request) {
				if req.Method == http.MethodPost {
					if c.broken {
						panic(http.ErrAbortHandler)
					}
					w.WriteHeader(c.post)
					return
				}
				listed = true
				w.WriteHeader(c.get)
				fmt.Fprintf(w, `{"callbacks": %s, "next": null}`, c.list)
			})
			id, err := (listener{App: a}).register(t.Context(), map[string]any{"url": own})
			if id != c.id || (err == nil) != (c.says == "") || err != nil && !strings.Contains(err.Error(), c.says) ||
				listed != c.lists {
				t.Errorf("it gives %q, %v, and has listed: %v", id, err, listed)
			}
		})
	}
}

// TestListenSecondInterrupt: a second Ctrl-C does not end the process before the callback is deleted. Without that it
// ends this test, too.
func TestListenSecondInterrupt(t *testing.T) {
	t.Parallel()
	ctx, interrupt := context.WithCancelCause(t.Context())
	isDeleted := false
	a, _, _ := clitest.New(t, func(w http.ResponseWriter, req *http.Request) {
		if req.Method == http.MethodPost {
			interrupt(cli.ErrInterrupted)
			fmt.Fprint(w, `{"id": "c", "url": "http://127.0.0.1:1/own", "status": "pending"}`)
			return
		}
		if err := syscall.Kill(os.Getpid(), syscall.SIGINT); err != nil {
			t.Error(err)
		}
		time.Sleep(50 * time.Millisecond) // the signal arrives while the answer is on its way
		isDeleted = req.Method == http.MethodDelete
		w.WriteHeader(http.StatusNoContent)
	})
	err := (listener{App: a}).run(ctx, func(url string) map[string]any { return map[string]any{"url": url} })
	if a.Code(err) != exit.Interrupted || !isDeleted {
		t.Errorf("it ends with %v, and the callback is deleted: %t", err, isDeleted)
	}
}

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
	unknown := respond(503, `{"detail": "unavailable", "code": "unavailable", "outcome": "unknown"}`)
	busy := respond(409, `{"detail": "in progress", "code": "conflict"}`)
	refused := respond(400, `{"detail": "wrong", "code": "invalid"}`)
	for name, tc := range map[string]struct {
		answers []http.HandlerFunc
		want    string // of the error
	}{
		"a broken answer":    {answers: []http.HandlerFunc{breakOff, busy, respond(201, done)}},
		"an unknown outcome": {answers: []http.HandlerFunc{unknown, respond(201, done)}},
		"not begun":          {[]http.HandlerFunc{respond(503, `{"detail": "down", "code": "unavailable"}`)}, "down"},
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
