package callbacks

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

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
			t.Errorf("asked for %s", req.URL)
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
		post, get    int
		list         string
		id, says     string
		broken, asks bool
	}{
		"the answer broke off": {
			broken: true, get: 200,
			list: `[{"id": "other", "url": "http://x/"}, {"id": "mine", "url": "` + own + `"}]`, id: "mine",
			asks: true,
		},
		"a gateway spoke": {
			post: 504, get: 200, list: `[{"id": "mine", "url": "` + own + `"}]`, id: "mine",
			asks: true,
		},
		"it had not arrived": {broken: true, get: 200, list: `[]`, says: "broke off", asks: true},
		"nobody answers any more": {
			broken: true, get: 503, says: own + " may be there: cloudfn callbacks list",
			asks: true,
		},
		"it was refused": {post: 400, says: "400"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			asked := false
			a, _, _ := clitest.New(t, func(w http.ResponseWriter, req *http.Request) {
				if req.Method == http.MethodPost {
					if c.broken {
						panic(http.ErrAbortHandler)
					}
					w.WriteHeader(c.post)
					return
				}
				asked = true
				w.WriteHeader(c.get)
				fmt.Fprintf(w, `{"callbacks": %s, "next": null}`, c.list)
			})
			id, err := (listener{App: a}).register(t.Context(), map[string]any{"url": own})
			if id != c.id || (err == nil) != (c.says == "") || err != nil && !strings.Contains(err.Error(), c.says) ||
				asked != c.asks {
				t.Errorf("it gives %q, %v, and has asked: %v", id, err, asked)
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
