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
)

// WakeType is the type of the events that tell a function that there is work for it before its next tick.
const WakeType = "cloudfn.wake.v1"

// Wake makes such an event. Like a tick it only says "now"; what there is to do, the function finds out by itself.
func Wake(function string, key domain.Secret, now time.Time) cloudevents.Event {
	return made(WakeType, "/cloudfn/wake/"+function, key, now)
}

// Waker wakes event functions. Nobody waits for it, and nobody hears of a failure: the function's next tick finds the work.
type Waker struct {
	post func(function string) error
	stop context.CancelFunc // ends the posts that are under way

	mu        sync.Mutex
	functions map[string]*waking
	posts     int           // that are under way
	ending    chan struct{} // closed when the process ends and no post is left; nil while it goes on
}

// waking is what there is to know of one function.
type waking struct {
	posting bool // a post is under way
	again   bool // it was woken since that began
	failed  bool // the last post failed, which was logged
}

// NewWaker makes a Waker. post wakes one function and returns when that has worked, or cannot be had.
func NewWaker(post func(ctx context.Context, function string) error) *Waker {
	ctx, stop := context.WithCancel(context.Background())
	return &Waker{post: func(function string) error { return post(ctx, function) }, stop: stop, functions: map[string]*waking{}}
}

// Wake wakes each of the functions, and returns at once. While a post to one is under way, however many wakes make one
// more post after it: that one begins after the last of them.
func (w *Waker) Wake(functions ...string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, name := range functions {
		f, known := w.functions[name]
		if !known {
			f = &waking{}
			w.functions[name] = f
		}
		switch {
		case w.ending != nil && w.posts == 0: // the process has ended
		case f.posting && w.ending == nil:
			f.again = true
		default:
			w.start(name, f)
		}
	}
}

func (w *Waker) start(name string, f *waking) {
	f.posting = true
	w.posts++
	go w.run(name, f)
}

func (w *Waker) run(name string, f *waking) {
	err := w.post(name)
	w.mu.Lock()
	defer w.mu.Unlock()
	if err != nil && !f.failed { // once, and not for every write while the function is away
		slog.Warn("wake failed; the next tick finds the work", "function", name, "error", err)
	}
	f.failed, f.posting = err != nil, false
	w.posts--
	if f.again {
		f.again = false
		w.start(name, f)
	}
	if w.ending != nil && w.posts == 0 {
		close(w.ending)
	}
}

// Close sends what waits at once, also to a function that is still working, and waits for all posts until ctx ends. It
// is for when nobody but a post itself wakes any more.
func (w *Waker) Close(ctx context.Context) {
	defer w.stop()
	ended := w.end()
	select {
	case <-ended:
	case <-ctx.Done():
	}
}

func (w *Waker) end() <-chan struct{} {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.ending = make(chan struct{})
	for name, f := range w.functions {
		if f.again {
			f.again = false
			w.start(name, f)
		}
	}
	if w.posts == 0 {
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
	if err != nil || text == all || u.Scheme != "http" && u.Scheme != "https" || u.Hostname() == "" || text != u.Scheme+"://"+u.Host+u.EscapedPath() {
		return "", errors.New("WAKE_URL must be an http or https URL with " + placeholder + " in it, without a password or a query, such as http://" +
			placeholder + ".cloudfn.svc.cluster.local")
	}
	return text, nil
}

// The way to a function is short; how long its work takes is its own business.
const (
	wakeDial = 2 * time.Second
	wakeIdle = 10 * time.Second
)

// wakePauses are the pauses after a wake that did not get through: a copy may be ending, or Knative starting one.
var wakePauses = []time.Duration{300 * time.Millisecond, 2 * time.Second}

// PostWakes gives the post of a Waker whose functions are reached by HTTP, at the address of all of them. A post may last as
// long as timeout.
func PostWakes(all string, key domain.Secret, timeout time.Duration) func(context.Context, string) error {
	transport := &http.Transport{ // no proxy: functions are within the cluster
		DialContext: (&net.Dialer{Timeout: wakeDial}).DialContext, TLSHandshakeTimeout: wakeDial, IdleConnTimeout: wakeIdle,
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
			again, err := postWake(ctx, client, address, Wake(function, key, time.Now()))
			if err == nil || !again || n == len(wakePauses) {
				return err
			}
			select {
			case <-time.After(wakePauses[n]):
			case <-ctx.Done():
				return err
			}
		}
	}
}

// postWake posts one event. again says that it may get through a moment later.
func postWake(ctx context.Context, client *http.Client, address string, event cloudevents.Event) (again bool, err error) {
	req, err := cloudevents.NewHTTPRequestFromEvent(ctx, address, event)
	if err != nil {
		return false, err
	}
	req.Header["Idempotency-Key"] = nil // sends nothing: a kept connection that was closed meanwhile loses no wake
	resp, err := client.Do(req)
	if err != nil {
		return true, err
	}
	_ = resp.Body.Close()
	if resp.StatusCode/100 != 2 {
		return resp.StatusCode >= http.StatusInternalServerError, fmt.Errorf("the function answered %d", resp.StatusCode)
	}
	return false, nil
}
