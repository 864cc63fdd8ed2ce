package run

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	cloudevents "github.com/cloudevents/sdk-go/v2"

	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/eventx"
	"github.com/cloudfn/cloudfn/shared/flow"
)

// deps is what the functions of a process are built with.
func (p *Process) deps() Deps {
	reach := Reach{Wakes: []string{"tick-more", "things", "nobody"}}
	return Deps{Wake: p.wakesOf(function{Declaration: Declaration{Name: "things", Reach: reach}})}
}

// TestTheDaemonWakesItsOwn functions that are declared, wherever it listens: here it does nowhere.
func TestTheDaemonWakesItsOwn(t *testing.T) {
	p := process(t, nil)
	woken := make(chan cloudevents.Event, 9)
	for i := range p.events {
		p.events[i].Func = func(_ context.Context, e cloudevents.Event) error { woken <- e; return nil }
	}
	p.deps().Wake("tick-things", "tick-more", "things", "nobody")
	p.Close(t.Context())
	if e := <-woken; e.Type() != eventx.WakeType || e.Source() != "/cloudfn/wake/tick-more" || len(woken) != 0 {
		t.Errorf("woken by %s, and %d more", e, len(woken))
	}
}

// TestAFunctionWakesOthers at WAKE_URL, also right before it ends. Without WAKE_URL it wakes no one.
func TestAFunctionWakesOthers(t *testing.T) {
	var paths []string
	server := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		e, err := cloudevents.NewEventFromHTTPRequest(r)
		if err != nil || e.Type() != eventx.WakeType || e.Extensions()[eventx.KeyExtension] != "k" {
			t.Errorf("it got %v %v", e, err)
		}
		paths = append(paths, r.URL.Path)
	}))
	t.Cleanup(server.Close)
	for _, url := range []string{server.URL + "/{function}", ""} {
		p := process(t, map[string]string{"FUNCTION_TARGET": "things", "EVENT_KEY": "k", "WAKE_URL": url})
		p.deps().Wake("tick-more")
		p.Close(t.Context())
	}
	if !slices.Equal(paths, []string{"/tick-more"}) {
		t.Errorf("woken were %v", paths)
	}
}

// TestTheEndStopsWhatWasWoken: Close cancels what was woken and waits for it, but no longer than wakeGrace.
func TestTheEndStopsWhatWasWoken(t *testing.T) {
	for name, tc := range map[string]struct {
		work func(ctx context.Context, ever <-chan struct{})
		took time.Duration
	}{
		"work that stops when it is canceled": {func(ctx context.Context, _ <-chan struct{}) {
			<-ctx.Done()
			time.Sleep(100 * time.Millisecond)
		}, 100 * time.Millisecond},
		"work that does not": {func(_ context.Context, ever <-chan struct{}) { <-ever }, wakeGrace},
	} {
		// Outside of the bubble, because its caches have goroutines that never end.
		p, err := newProcess(t.Context(), environment(nil), Texts{}, io.Discard, tested)
		if err != nil {
			t.Fatal(err)
		}
		synctest.Test(t, func(t *testing.T) {
			ever := make(chan struct{})
			working := make(chan struct{})
			p.events[0].Func = func(ctx context.Context, _ cloudevents.Event) error {
				close(working)
				tc.work(ctx, ever)
				return ctx.Err()
			}
			p.waker.Wake(p.events[0].Name)
			<-working
			began := time.Now()
			p.Close(t.Context())
			if took := time.Since(began); took != tc.took {
				t.Errorf("%s: the end took %s, want %s", name, took, tc.took)
			}
			close(ever)
		})
	}
}

// TestDrainWaitsForWoken: the work of a function that was woken without a request ends before the process does, or is
// canceled after eventGrace.
func TestDrainWaitsForWoken(t *testing.T) {
	for name, tc := range map[string]struct {
		work, took time.Duration
		isCanceled bool
	}{"short": {10 * time.Second, 10 * time.Second, false}, "long": {time.Minute, eventGrace, true}} {
		p, err := newProcess(t.Context(), environment(nil), Texts{}, io.Discard, tested)
		if err != nil {
			t.Fatal(err)
		}
		synctest.Test(t, func(t *testing.T) {
			var failed error
			p.events[0].Func = func(ctx context.Context, _ cloudevents.Event) error {
				flow.Sleep(ctx, tc.work)
				failed = ctx.Err()
				return failed
			}
			began := time.Now()
			go func() { _ = p.wakeOwn(t.Context(), p.events[0].Name) }()
			synctest.Wait()
			if err := p.drain(t.Context(), &http.Server{ReadHeaderTimeout: time.Second}); err != nil {
				t.Error(err)
			}
			if took := time.Since(began).Truncate(time.Second); took != tc.took || (failed != nil) != tc.isCanceled {
				t.Errorf("%s: the end took %s, and the work ended with %v", name, took, failed)
			}
		})
	}
}

// TestTheDaemonTicksOneClock: it sends itself the events of PingSources, and no others: the clock wakes the rest.
func TestTheDaemonTicksOneClock(t *testing.T) {
	p := process(t, map[string]string{"PORT": "0"})
	woken := make(chan string, 9)
	for i, e := range p.events {
		p.events[i].Func = func(_ context.Context, event cloudevents.Event) error {
			woken <- e.Name + " " + event.Type()
			return nil
		}
	}
	ctx, end := context.WithCancel(t.Context())
	served := make(chan error, 1)
	go func() { served <- p.serveDaemon(ctx) }()
	if got := <-woken; got != "tick-things "+eventx.PingType {
		t.Errorf("woken was %s", got)
	}
	end()
	if err := <-served; err != nil || len(woken) != 0 {
		t.Errorf("%v, and %d more were woken", err, len(woken))
	}
}

// TestWhoCanWakeAll: the clock, and only where it reaches the functions.
func TestWhoCanWakeAll(t *testing.T) {
	for name, tc := range map[string]struct {
		function, target, url string
		want                  bool
	}{
		"in the daemon":          {clockName, "", "", true},
		"alone":                  {clockName, "things", "http://{function}.invalid", true},
		"alone, without the URL": {clockName, "things", "", false},
		"another function":       {"things", "", "", false},
	} {
		p := process(t, map[string]string{"FUNCTION_TARGET": tc.target, "EVENT_KEY": "k", "WAKE_URL": tc.url})
		if post := p.postOf(function{Declaration: Declaration{Name: tc.function}}); (post != nil) != tc.want {
			t.Errorf("%s: it can wake all: %t", name, post != nil)
		}
	}
}

// TestStartIsRepeated until it has succeeded, or the process ends.
func TestStartIsRepeated(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, end := context.WithTimeout(t.Context(), time.Minute)
		defer end()
		var first, never int
		p := &Process{starts: []func(context.Context) error{
			func(context.Context) error {
				if first++; first < 3 {
					return errors.New("postgres is unavailable")
				}
				return nil
			},
			func(context.Context) error { never++; return errors.New("postgres is unavailable") },
		}}
		p.atStart(ctx)
		if first != 3 || never != 6 { // after 1, 3, 7, 15, 31 s
			t.Errorf("they were done %d and %d times", first, never)
		}
	})
}

// TestNoEventFunctionWithoutAKey: it would take anybody's events. And no one is woken without one.
func TestNoEventFunctionWithoutAKey(t *testing.T) {
	for name, env := range map[string]map[string]string{
		"an event function": {"FUNCTION_TARGET": "tick-things"},
		"a waking function": {"FUNCTION_TARGET": "things", "WAKE_URL": "http://{function}"},
		"a waking daemon":   {"WAKE_URL": "http://{function}"},
	} {
		_, err := newProcess(t.Context(), environment(env), Texts{}, io.Discard, tested)
		if err == nil || !strings.HasPrefix(err.Error(), "EVENT_KEY is empty: ") ||
			strings.Contains(err.Error(), "\n") {
			t.Errorf("%s: got %v", name, err)
		}
	}
	process(t, map[string]string{"FUNCTION_TARGET": "things"}) // wakes no one, and takes no events
}

// TestATickIsTriedUntilItIsDone, unless it never can be or the next one is near.
func TestATickIsTriedUntilItIsDone(t *testing.T) {
	t.Parallel()
	const s = time.Second
	down, wrong := apperr.New(apperr.Unavailable, "unavailable"), apperr.New(apperr.Invalid, "wrong")
	for name, tc := range map[string]struct {
		results []error // of each try, the last again and again
		next    time.Duration
		want    []time.Duration // when it was tried
	}{
		"done":                 {[]error{nil}, time.Hour, []time.Duration{0}},
		"never":                {[]error{wrong}, time.Hour, []time.Duration{0}},
		"unavailable at first": {[]error{down, errors.New("x"), nil}, time.Hour, []time.Duration{0, 10 * s, 30 * s}},
		"unavailable for long": {[]error{down}, time.Hour, []time.Duration{0, 10 * s, 30 * s, 70 * s, 150 * s}},
		"the next is near":     {[]error{down}, time.Minute, []time.Duration{0, 10 * s, 30 * s}},
		"the next is nearer":   {[]error{down}, 5 * time.Second, []time.Duration{0}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				began, at := time.Now(), []time.Duration{}
				tryTick(t.Context(), began.Add(tc.next), func() error {
					at = append(at, time.Since(began))
					return tc.results[min(len(at), len(tc.results))-1]
				})
				if !slices.Equal(at, tc.want) {
					t.Errorf("it was tried at %v, want %v", at, tc.want)
				}
			})
		})
	}
}

// TestATickEndsWithTheProcess in the middle of a pause.
func TestATickEndsWithTheProcess(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ctx, end := context.WithTimeout(t.Context(), 3*time.Second)
		defer end()
		began, tries := time.Now(), 0
		tryTick(ctx, began.Add(time.Hour), func() error { tries++; return errors.New("unavailable") })
		if took := time.Since(began); took != 3*time.Second || tries != 1 {
			t.Errorf("it took %s and %d tries", took, tries)
		}
	})
}
