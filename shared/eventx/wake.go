package eventx

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"time"

	cloudevents "github.com/cloudevents/sdk-go/v2"

	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/flow"
)

// WakeType is the type of the events by which functions wake one another.
const WakeType = "cloudfn.wake.v1"

// Wake makes such an event. Like a tick it only says "now"; what there is to do, the function finds out on its own.
func Wake(function string, key domain.Secret, now time.Time) cloudevents.Event {
	return made(WakeType, "/cloudfn/wake/"+function, key, now)
}

var (
	// ErrNotDone means that a function was woken, and that its work failed.
	ErrNotDone = errors.New("the function was woken, and did not do its work")
	// ErrAbsent means that there is no such function at its address.
	ErrAbsent = errors.New("the function is not deployed")
)

// Waker wakes event functions. No one waits for it, and a failure is only logged: the clock finds the work.
type Waker struct {
	post func(function string) error
	stop context.CancelFunc // ends the posts that are under way

	mu        sync.Mutex
	functions map[string]*wakes
	posting   int           // goroutines that post
	ending    chan struct{} // closed when the process ends and nothing is posted; nil before that
}

// wakes are the posts to one function.
type wakes struct {
	posting int
	last    time.Time // when the last one began
	again   bool      // wakes have come since
	failed  bool      // the last post failed, which was logged
}

const (
	// postEvery is the shortest time between two posts to a function: one that has enough events answers immediately.
	postEvery = 250 * time.Millisecond
	// postBeside is how old a post is when a wake makes another one beside it. A function begins what becomes due while
	// it works, but not for as long as its slowest pass takes, and it answers only then.
	postBeside = 5 * time.Second
	// mostPosts are under way to one function at a time. One that is not answered within EVENT_TIMEOUT ends.
	mostPosts = 4
)

// NewWaker makes a Waker. post wakes one function, and returns when that has succeeded or failed.
func NewWaker(post func(ctx context.Context, function string) error) *Waker {
	ctx, stop := context.WithCancel(context.Background())
	return &Waker{
		post: func(function string) error { return post(ctx, function) }, stop: stop, functions: map[string]*wakes{},
	}
}

// Wake wakes each of the functions, and returns immediately. Wakes that come soon after the begin of a post to a
// function make one more post together.
func (w *Waker) Wake(functions ...string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, name := range functions {
		f, isKnown := w.functions[name]
		if !isKnown {
			f = &wakes{}
			w.functions[name] = f
		}
		switch {
		case w.ending == nil:
			w.schedule(name, f)
		case w.posting > 0: // once nothing posts, the process has ended
			w.begin(name, f)
		}
	}
}

// schedule begins a post now, or when it may. It needs the lock.
func (w *Waker) schedule(name string, f *wakes) {
	pause := postEvery
	if f.posting > 0 {
		pause = postBeside
	}
	wait := pause - time.Since(f.last)
	if wait <= 0 && f.posting < mostPosts {
		w.begin(name, f)
		return
	}
	if f.again = true; f.posting < mostPosts { // else the next one that ends does
		time.AfterFunc(wait, func() {
			w.mu.Lock()
			defer w.mu.Unlock()
			if f.again && w.ending == nil {
				w.schedule(name, f)
			}
		})
	}
}

// begin begins a post. It needs the lock.
func (w *Waker) begin(name string, f *wakes) {
	w.posting++
	f.posting++
	f.last, f.again = time.Now(), false
	go func() { w.posted(name, f, w.post(name)) }()
}

// posted ends a post. It logs a failure once, and not for every write while the function is unavailable.
func (w *Waker) posted(name string, f *wakes, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if err != nil && !f.failed {
		slog.Warn("wake failed; the clock finds the work", "function", name, "error", err)
	}
	f.failed = err != nil
	w.posting--
	f.posting--
	if f.again {
		w.schedule(name, f)
	}
	if w.ending != nil && w.posting == 0 {
		close(w.ending)
	}
}

// Close posts the wakes that wait immediately, also to a function that is still working, and waits for all posts until
// ctx ends. Only posts may wake functions from then on.
func (w *Waker) Close(ctx context.Context) {
	defer w.stop()
	select {
	case <-w.end():
	case <-ctx.Done():
	}
}

func (w *Waker) end() <-chan struct{} {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.ending = make(chan struct{})
	for name, f := range w.functions {
		if f.again {
			w.begin(name, f)
		}
	}
	if w.posting == 0 {
		close(w.ending)
	}
	return w.ending
}

// placeholder stands for a function's name in the address of all of them.
const placeholder = "{function}"

// WakeURL is where a function takes events: the address of all of them with the function's name in it.
func WakeURL(all, function string) (string, error) {
	text := strings.ReplaceAll(all, placeholder, function)
	u, err := url.Parse(text)
	if err != nil || text == all || u.Scheme != "http" && u.Scheme != "https" || u.Hostname() == "" ||
		text != u.Scheme+"://"+u.Host+u.EscapedPath() {
		return "", errors.New("WAKE_URL must be an http or https URL with " + placeholder +
			" in it, without a password or a query, such as http://" + placeholder + ".cloudfn.svc.cluster.local")
	}
	return text, nil
}

// A function is near; its work may take as long as the caller's timeout.
const (
	wakeDial = 2 * time.Second
	wakeIdle = 10 * time.Second
)

// wakePauses are the pauses after a wake that failed: a pod may be ending, or Knative starting one.
var wakePauses = []time.Duration{300 * time.Millisecond, 2 * time.Second}

// PostWakes gives the post of a Waker whose functions are reached by HTTP, at the address of all of them. A post may
// last as long as timeout. The error is ErrNotDone if the function itself has answered that its work failed, and
// ErrAbsent if nothing is at its address.
func PostWakes(all string, key domain.Secret, timeout time.Duration) func(context.Context, string) error {
	transport := &http.Transport{ // no proxy: functions are within the cluster
		DialContext: (&net.Dialer{Timeout: wakeDial}).DialContext, TLSHandshakeTimeout: wakeDial,
		IdleConnTimeout: wakeIdle,
	}
	// A redirect would carry the key to whatever host it names.
	stay := func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	client := &http.Client{Transport: transport, CheckRedirect: stay, Timeout: timeout}
	return func(ctx context.Context, function string) error {
		address, err := WakeURL(all, function)
		if err != nil {
			return err
		}
		for n := 0; ; n++ {
			isTransient, err := postWake(ctx, client, address, Wake(function, key, time.Now()))
			if err == nil || !isTransient || n == len(wakePauses) || !flow.Sleep(ctx, wakePauses[n]) {
				return err
			}
		}
	}
}

// postWake posts one event. isTransient reports whether a retry within seconds may succeed. One that was held until its
// time ended may have been taken: the clock wakes the function again.
func postWake(
	ctx context.Context, client *http.Client, address string, event cloudevents.Event,
) (isTransient bool, err error) {
	req, err := cloudevents.NewHTTPRequestFromEvent(ctx, address, event)
	if err != nil {
		return false, err
	}
	req.Header["Idempotency-Key"] = nil // sends nothing: a kept connection that was closed meanwhile loses no wake
	resp, err := client.Do(req)
	if err != nil {
		return isTransientFailure(err)
	}
	_ = resp.Body.Close()
	switch isTaken := resp.Header.Get(takenHeader) != ""; {
	case resp.StatusCode/100 == 2:
		return false, nil
	case isTaken:
		return false, fmt.Errorf("%w: it answered %d", ErrNotDone, resp.StatusCode)
	case resp.StatusCode == http.StatusNotFound:
		return false, fmt.Errorf("%w: its address answered 404", ErrAbsent)
	}
	isHeld := resp.StatusCode == http.StatusGatewayTimeout
	return resp.StatusCode >= http.StatusInternalServerError && !isHeld,
		fmt.Errorf("the function answered %d", resp.StatusCode)
}

// isTransientFailure returns how a post failed that has no answer, and whether a retry may succeed: not if the function
// may have taken the event.
func isTransientFailure(err error) (isTransient bool, failure error) {
	if failed, isDNS := errors.AsType[*net.DNSError](err); isDNS && failed.IsNotFound {
		return false, fmt.Errorf("%w: %w", ErrAbsent, err)
	}
	if failed, isOp := errors.AsType[*net.OpError](err); isOp && failed.Op == "dial" {
		return true, err
	}
	failed, isNet := errors.AsType[net.Error](err)
	return !isNet || !failed.Timeout(), err
}
