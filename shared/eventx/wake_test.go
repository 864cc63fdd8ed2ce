package eventx

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	cloudevents "github.com/cloudevents/sdk-go/v2"

	"github.com/cloudfn/cloudfn/shared/domain"
)

// posts notes when each function was woken; a post takes a minute, or as long as its context lives.
type posts struct {
	mu    sync.Mutex
	began time.Time
	at    map[string][]time.Duration
	err   error
}

func (p *posts) post(ctx context.Context, function string) error {
	p.mu.Lock()
	p.at[function] = append(p.at[function], time.Since(p.began))
	p.mu.Unlock()
	select {
	case <-time.After(time.Minute):
	case <-ctx.Done():
	}
	return p.err
}

func newPosts() *posts { return &posts{began: time.Now(), at: map[string][]time.Duration{}} }

// TestWakesAreCoalesced: all wakes that come within seconds make one more post together. A post that has no answer for
// longer keeps no wake waiting, while there are not too many.
func TestWakesAreCoalesced(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		p := newPosts()
		w := NewWaker(p.post)
		for range 100 {
			w.Wake("a", "b")
		}
		synctest.Wait()
		w.Wake("a", "a")
		for at, wakes := range map[time.Duration]int{20 * time.Second: 1, 22 * time.Second: 9, 31 * time.Second: 50} {
			time.AfterFunc(at, func() {
				for range wakes {
					w.Wake("a")
				}
			})
		}
		time.Sleep(11 * time.Minute)
		w.Wake("b")
		if took := time.Since(p.began); took != 11*time.Minute {
			t.Errorf("a wake held its caller up: %s", took)
		}
		w.Close(t.Context())
		want := map[string][]time.Duration{
			"a": {0, 5 * time.Second, 20 * time.Second, 25 * time.Second, time.Minute},
			"b": {0, 5 * time.Second, 11 * time.Minute},
		}
		for name := range want {
			if !slices.Equal(p.at[name], want[name]) {
				t.Errorf("%s was woken at %v, want %v", name, p.at[name], want[name])
			}
		}
	})
}

// TestQuickPosts: a function that answers immediately gets four posts a second at most, however many wakes come. While
// one post to it is held, and it answers the others that it has enough events, it gets one every five seconds.
func TestQuickPosts(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		var at []time.Duration
		began := time.Now()
		w := NewWaker(func(context.Context, string) error {
			mu.Lock()
			at = append(at, time.Since(began))
			isHeld := len(at) == 9
			mu.Unlock()
			if isHeld {
				time.Sleep(30 * time.Second)
			}
			return nil
		})
		for range 400 { // 200 a second
			w.Wake("a")
			time.Sleep(5 * time.Millisecond)
		}
		for time.Since(began) < 20*time.Second {
			w.Wake("a")
			time.Sleep(100 * time.Millisecond)
		}
		w.Close(t.Context())
		var want []time.Duration
		for n := range 9 {
			want = append(want, time.Duration(n)*postEvery)
		}
		want = append(want, 7*time.Second, 12*time.Second, 17*time.Second, 20*time.Second) // the last by Close
		if !slices.Equal(at, want) {
			t.Errorf("posts were made at %v, want %v", at, want)
		}
	})
}

// TestTheEndLetsWakesOut immediately, though the function still works on the one before, and waits no longer than it
// may.
func TestTheEndLetsWakesOut(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		p := newPosts()
		w := NewWaker(p.post)
		w.Wake("a")
		synctest.Wait()
		w.Wake("a")
		ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
		defer cancel()
		w.Close(ctx)
		took := time.Since(p.began)
		synctest.Wait() // the posts that were left are stopped
		if want := []time.Duration{0, 0}; !slices.Equal(p.at["a"], want) || took != 3*time.Second {
			t.Errorf("it was woken at %v, and the end took %s", p.at["a"], took)
		}
		w.Wake("a")
		synctest.Wait()
		if len(p.at["a"]) != 2 {
			t.Error("a process that has ended still wakes")
		}
	})
}

// TestAPostWakesAtTheEnd: the work of one function wakes another while the process ends.
func TestAPostWakesAtTheEnd(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var woken []string
		var w *Waker
		w = NewWaker(func(_ context.Context, function string) error {
			time.Sleep(time.Second)
			woken = append(woken, function)
			if function == "a" {
				w.Wake("b")
			}
			return nil
		})
		w.Wake("a")
		w.Close(t.Context())
		if !slices.Equal(woken, []string{"a", "b"}) {
			t.Errorf("woken were %v", woken)
		}
	})
}

// TestAFailedWakeIsLoggedOnce for as long as the function is unavailable. It has the default logger for itself.
func TestAFailedWakeIsLoggedOnce(t *testing.T) { //nolint:paralleltest // see above
	var log bytes.Buffer
	old := slog.Default()
	slog.SetDefault(slog.New(slog.NewTextHandler(&log, nil)))
	defer slog.SetDefault(old)
	synctest.Test(t, func(t *testing.T) {
		p := newPosts()
		w := NewWaker(p.post)
		down := errors.New("unavailable")
		for _, err := range []error{nil, down, down, nil, down} {
			p.err = err
			w.Wake("a")
			time.Sleep(time.Hour)
			synctest.Wait()
		}
		w.Close(t.Context())
	})
	if n := strings.Count(log.String(), "level=WARN"); n != 2 || strings.Count(log.String(), "\n") != 2 {
		t.Errorf("%d warnings in %s", n, log.String())
	}
}

// TestPostWakes to the function itself, which takes them; what goes wrong shows no key.
func TestPostWakes(t *testing.T) {
	t.Parallel()
	worked := 0
	h := Handler{
		Name: "deliver", Types: []string{WakeType}, Key: key, Timeout: time.Minute,
		Func: func(context.Context, cloudevents.Event) error { worked++; return nil },
	}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/moved/deliver" {
			http.Redirect(w, r, "/events/deliver", http.StatusTemporaryRedirect)
			return
		}
		if r.URL.Path != "/events/deliver" {
			t.Errorf("it was posted to %s", r.URL.Path)
		}
		h.ServeHTTP(w, r)
	}))
	t.Cleanup(server.Close)
	if err := PostWakes(server.URL+"/events/{function}", key, time.Minute)(t.Context(), "deliver"); err != nil ||
		worked != 1 {
		t.Errorf("got %v, worked %d times", err, worked)
	}
	for name, tc := range map[string]struct {
		all  string
		key  domain.Secret
		want string
	}{
		"another key": {server.URL + "/events/{function}", "the-kez", "answered 403"},
		"a redirect":  {server.URL + "/moved/{function}", key, "answered 307"},
		"unavailable": {"http://127.0.0.1:1/{function}", key, "connection refused"},
	} {
		err := PostWakes(tc.all, tc.key, time.Minute)(t.Context(), "deliver")
		if err == nil || !strings.Contains(err.Error(), tc.want) || strings.Contains(err.Error(), "the-ke") {
			t.Errorf("%s: got %v", name, err)
		}
	}
	if worked != 1 {
		t.Errorf("worked %d times", worked)
	}
}

// TestAWakeIsSentAgain when no one was there for a moment. It is not to a function that will never take it, that has
// answered itself, or that may have it already.
func TestAWakeIsSentAgain(t *testing.T) {
	t.Parallel()
	const taken = 1000 // and the status of the function's own answer
	for name, tc := range map[string]struct {
		answers []int // 0 = none
		posts   int
		want    string // in the error
		is      error
	}{
		"for a moment":     {[]int{502, 503, 204}, 3, "", nil},
		"for longer":       {[]int{503, 503, 503, 204}, 3, "answered 503", nil},
		"never":            {[]int{403, 204}, 1, "answered 403", nil},
		"no such function": {[]int{404, 204}, 1, "not deployed", ErrAbsent},
		"failed work":      {[]int{taken + 503, 204}, 1, "answered 503", ErrNotDone},
		"refused":          {[]int{taken + 404, 204}, 1, "answered 404", ErrNotDone},
		"held by Knative":  {[]int{504, 204}, 1, "answered 504", nil},
		"held":             {[]int{0, 204}, 1, "Timeout exceeded", nil},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var mu sync.Mutex
			posts, end := 0, make(chan struct{})
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				mu.Lock()
				status := tc.answers[posts]
				posts++
				mu.Unlock()
				if status == 0 {
					<-end
				}
				if status > taken {
					w.Header().Set(takenHeader, "taken")
				}
				w.WriteHeader(status % taken)
			}))
			t.Cleanup(server.Close)
			t.Cleanup(func() { close(end) })
			timeout := time.Minute
			if tc.answers[0] == 0 {
				timeout = 200 * time.Millisecond
			}
			err := PostWakes(server.URL+"/{function}", key, timeout)(t.Context(), "deliver")
			mu.Lock()
			defer mu.Unlock()
			if (err != nil) != (tc.want != "") || err != nil && !strings.Contains(err.Error(), tc.want) ||
				posts != tc.posts || tc.is != nil && !errors.Is(err, tc.is) {
				t.Errorf("%d posts, and %v", posts, err)
			}
		})
	}
	for name, tc := range map[string]struct {
		err                   error
		isAbsent, isTransient bool
	}{
		"a name that does not exist": {&net.DNSError{IsNotFound: true}, true, false},
		"a name server that hangs":   {&net.DNSError{IsTimeout: true}, false, true},
		"a pod that does not accept": {os.ErrDeadlineExceeded, false, true},
	} {
		failed := &url.Error{Op: "Post", Err: &net.OpError{Op: "dial", Err: tc.err}}
		if isTransient, err := isTransientFailure(failed); isTransient != tc.isTransient ||
			errors.Is(err, ErrAbsent) != tc.isAbsent {
			t.Errorf("%s: %v, retry %t", name, err, isTransient)
		}
	}
}

// TestAClosedConnectionLosesNoWake: a woken function ends connections as it likes.
func TestAClosedConnectionLosesNoWake(t *testing.T) {
	t.Parallel()
	var mu sync.Mutex
	served := map[string]bool{}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		if served[r.RemoteAddr] { // the second on a connection
			panic(http.ErrAbortHandler)
		}
		served[r.RemoteAddr] = true
		if len(r.Header["Idempotency-Key"]) > 0 {
			t.Errorf("it got %v", r.Header)
		}
		w.WriteHeader(http.StatusNoContent)
	}))
	t.Cleanup(server.Close)
	post := PostWakes(server.URL+"/{function}", key, time.Minute)
	for n := range 3 {
		if err := post(t.Context(), "deliver"); err != nil {
			t.Errorf("wake %d: %v", n, err)
		}
	}
}

func TestWakeURL(t *testing.T) {
	t.Parallel()
	for all, want := range map[string]string{
		"http://{function}.cloudfn.svc.cluster.local": "http://deliver.cloudfn.svc.cluster.local",
		"https://{function}.example.com:8443/":        "https://deliver.example.com:8443/",
		"http://127.0.0.1:8080/events/{function}":     "http://127.0.0.1:8080/events/deliver",
		"http://cloudfn": "", "{function}": "", "ftp://{function}": "", "http://u:p@{function}": "",
		"http://x/?{function}": "",
		"http://{function}#x":  "", "http:///{function}": "", "http://{function}\n": "", "http://{function}:x": "",
	} {
		got, err := WakeURL(all, "deliver")
		if got != want || (err == nil) != (want != "") {
			t.Errorf("%q: got %q %v, want %q", all, got, err, want)
		}
	}
}
